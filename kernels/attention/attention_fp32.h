#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Attention with fp32 inputs. Every product is an fp32 fused multiply-add; tensor cores are not
/// used. head_dims up to 256. One tile shape serves all three launches.
TileShape fp32_tile(const AttentionShape& shape);
void launch_fp32_forward(const ForwardLaunch& launch, Stream stream);
void launch_fp32_query_gradient(const BackwardLaunch& launch, Stream stream);
void launch_fp32_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
