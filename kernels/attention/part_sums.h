#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// dk and dv of a backward whose groups were dealt in parts (DeviceTiles::group_parts): rows of
/// dk_parts and dv_parts, added up in the order of the parts, to dk and dv in dkv_element, or to
/// the wire's rows. Works on any device.
void launch_part_sums(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
