#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// dq of one compute item with 16-bit inputs on any tensor core since sm_80; head_dims up to 256.
TileShape portable_query_gradient_tile(const AttentionShape& shape);
void launch_portable_query_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
