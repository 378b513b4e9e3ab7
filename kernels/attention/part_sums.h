#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Computes dk and dv of a backward whose groups were split into parts (DeviceTiles::group_parts):
/// adds up rows of dk_parts and dv_parts, in the order of the parts, into dk and dv in dkv_element,
/// or into the wire's rows. Works on any device.
void launch_part_sums(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
