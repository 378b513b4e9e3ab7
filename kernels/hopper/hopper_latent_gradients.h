#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

/// Gradients of latent attention (V is the first elements of K) on tensor cores of sm_90a, in bf16
/// or fp16.
namespace cpscope::kernels {

/// Empty, or why these kernels do not support a shape with is_latent.
std::string why_not_hopper_latent_backward(const AttentionShape& shape);

/// Of both kernels, for query tiles and key tiles.
TileShape hopper_latent_gradient_tile_shape();

/// dq.
void launch_hopper_latent_query_gradient(const BackwardLaunch& launch, Stream stream);
/// dk, the gradient of both K and V; dv is not written.
void launch_hopper_latent_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
