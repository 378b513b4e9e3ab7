// The fused backward of dtype fp8, one scale a tensor: hopper_gradients.cu on quantised rows.
//
// Operands are bf16 numbers that hold the values of 8-bit numbers, which is exact, so products run
// at the rate of bf16. What differs: logits and dP get the scales of their operands, by which the
// offsets of lse and delta are divided; P is rounded to E4M3 and dS to the gradients' format, both
// times their scale, before they are operands.
// Results of recipe delayed are cast by launch_result_cast.
//
// Products of 8-bit operands would read dO, Q and K a second time, turned: they take both operands
// along the summed dimension.
//
// Ladder: v1 is the portable kernels (attention_fp8.cu). Grid, shared memory: as
// hopper_gradients.cu. Accuracy: fp32 sums of exact products. Source: cuDNN's FP8
// attention as its front end documents it, TransformerEngine's recipes.
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_fp8_gradients.h"
#include "kernels/hopper/hopper_gradient_launch.h"

namespace cpscope::kernels {
namespace {

// As in hopper_gradients.cu.
template <bool kByTile>
using Codes64 = device::FusedBudget<Fp8AsBf16, 64, 128, kByTile, false>;
template <bool kByTile>
using Codes128 = device::FusedBudget<Fp8AsBf16, 128, 64, kByTile, false>;

template <bool kByTile>
void launch_codes(const BackwardLaunch& launch, Stream stream) {
  if (launch.shape.head_dim_qk <= 64 && launch.shape.head_dim_v <= 64) {
    device::launch_budget<Codes64<kByTile>>(launch, stream);
  } else {
    device::launch_budget<Codes128<kByTile>>(launch, stream);
  }
}

}  // namespace

std::string why_not_hopper_fp8_backward(const AttentionShape& shape) {
  if (shape.head_dim_qk > 256 || shape.head_dim_v > 256)
    return "the Hopper backward supports head_dim up to 256";
  if (shape.softcap != 0.0f) return "the Hopper backward of fp8 has no softcap";
  return "";
}

void launch_hopper_fp8_gradients(const BackwardLaunch& launch, Stream stream) {
  launch.key_tiles.walks_by_tile ? launch_codes<true>(launch, stream)
                                 : launch_codes<false>(launch, stream);
}

}  // namespace cpscope::kernels
