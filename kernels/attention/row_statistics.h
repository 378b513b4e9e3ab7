#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// The row statistics of a backward on any device; all dtypes.
void launch_portable_row_statistics(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
