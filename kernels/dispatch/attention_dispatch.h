#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Set of kernels: portable ones (sm_80 and later), or those for Hopper (sm_90a) or Blackwell
/// (sm_100a, a forward alone).
enum class Generation { portable, sm90, sm100 };

/// Tile shapes that the kernels of a generation require for a shape.
TileShape forward_tile_shape(Generation generation, const AttentionShape& shape);
/// True if launch_key_gradient makes dq too. Then there is no launch_query_gradient, and the launch
/// has turns_taken.
bool is_backward_fused(Generation generation, const AttentionShape& shape);
/// The codes of one byte that the forward, or the backward, multiplies, which have to be made for
/// it.
CodeForm code_form(Generation generation, const AttentionShape& shape);
CodeForm gradient_code_form(Generation generation, const AttentionShape& shape);
/// True if the recipe's cast of gradients is left to the caller: these kernels write sums.
bool leaves_gradient_casts(Generation generation, const AttentionShape& shape);
/// True if launch_key_gradient reads offsets.
bool takes_offsets(Generation generation, const AttentionShape& shape);
TileShape query_gradient_tile_shape(Generation generation, const AttentionShape& shape);
TileShape key_gradient_tile_shape(Generation generation, const AttentionShape& shape);

/// Bytes of a forward's `parts`, for this list of query tiles; 0 if no tile is cut.
int64_t forward_part_bytes(const AttentionShape& shape, const TileList& list);

/// Empty, or why the generation has no kernels for the shape in this direction.
std::string why_not_forward(Generation generation, const AttentionShape& shape);
std::string why_not_backward(Generation generation, const AttentionShape& shape);

/// These enqueue the kernels on `stream`; errors are thrown as DeviceError.
void launch_forward(Generation generation, const ForwardLaunch& launch, Stream stream);
void launch_row_statistics(const BackwardLaunch& launch, Stream stream);
void launch_query_gradient(Generation generation, const BackwardLaunch& launch, Stream stream);
void launch_key_gradient(Generation generation, const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
