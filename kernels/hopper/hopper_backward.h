#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"

#include <string>

namespace cpscope::kernels {

/// Empty, or why the Hopper backward has no kernels for the shape.
std::string why_not_hopper_backward(const AttentionShape& shape);

/// Heads of up to 128 elements get dq, dk and dv in one launch, and so do those of up to 192 (q, k)
/// and 128 (v) of 16 bits, without softcap and ALiBi; wider ones and mxfp8 in two. All launches
/// read the results of launch_row_statistics.
bool is_hopper_backward_fused(const AttentionShape& shape);
/// True if no head has more than 128 elements.
inline bool is_up_to_128(const AttentionShape& shape) {
  return shape.head_dim_qk <= 128 && shape.head_dim_v <= 128;
}
/// A fused backward reads offsets, which its products subtract. With a cap it reads log2_lse and
/// delta instead, because the cap comes between product and subtraction; with ALiBi, which needs
/// the row metadata anyway; and above 128 elements of q and k, for want of shared memory.
constexpr bool takes_hopper_offsets(LogitForm form, int32_t head_dim_qk) {
  return form == LogitForm::plain && head_dim_qk <= 128;
}

TileShape hopper_gradients_tile_shape(const AttentionShape& shape);
void launch_hopper_gradients(const BackwardLaunch& launch, Stream stream);

TileShape hopper_wide_query_gradient_tile_shape(const AttentionShape& shape);
void launch_hopper_wide_query_gradient(const BackwardLaunch& launch, Stream stream);
TileShape hopper_wide_key_gradient_tile_shape();
void launch_hopper_wide_key_gradient(const BackwardLaunch& launch, Stream stream);

}  // namespace cpscope::kernels
