#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Forward of one compute item with 16-bit inputs on any tensor core since sm_80; head_dims up to
/// 256.
TileShape portable_forward_tile(const AttentionShape& shape);
void launch_portable_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
