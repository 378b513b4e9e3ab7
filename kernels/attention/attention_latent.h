#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

namespace cpscope::kernels {

/// Latent attention: V is the first head_dim_v elements of K, whose rows are a launch's v too, and
/// dk is the gradient of both; dv is not written. Inputs in bf16, fp16 or fp32; head_dims up to
/// kMaxLatentDim. Tiles: fp32_tile.
void launch_latent_forward(const ForwardLaunch& launch, Stream stream);
void launch_latent_query_gradient(const BackwardLaunch& launch, Stream stream);
void launch_latent_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
