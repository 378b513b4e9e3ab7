#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

/// Forward of latent attention (V is the first elements of K) on tensor cores of sm_90a, in bf16
/// or fp16, or of quantised rows with one scale a tensor, for prompts and for decode steps.
namespace cpscope::kernels {

/// Empty, or why this kernel does not support a shape with is_latent. It does not wait for inputs
/// in pieces.
std::string why_not_hopper_latent_forward(const AttentionShape& shape);

/// A stationary tile holds several query heads of the KV head with their query rows, and tile lists
/// cut its keys into parts (TileShape::cuts_keys).
TileShape hopper_latent_forward_tile_shape(const AttentionShape& shape);

/// Bytes of the launch's `parts`, for this list of query tiles; 0 if no tile is cut.
int64_t hopper_latent_part_bytes(const AttentionShape& shape, const TileList& list);

void launch_hopper_latent_forward(const ForwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
