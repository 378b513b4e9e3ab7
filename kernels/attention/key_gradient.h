#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// dk and dv of one compute item with 16-bit inputs on any tensor core since sm_80; head_dims up to
/// 256.
TileShape portable_key_gradient_tile(const AttentionShape& shape);
void launch_portable_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
