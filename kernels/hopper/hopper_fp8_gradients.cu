// The fused backward of dtype fp8, one scale a tensor: hopper_gradients.cu with products of codes
// of 8 bits above head_dim 64.
//
// What differs: a product sums 32 numbers, twice as many at a time, and takes both operands along
// the summed dimension. S' and dP' do. For the others the consumers turn K, once an item, and a
// warpgroup more turns Q and dO of each streamed tile: by ldmatrix, byte picks and stmatrix, in the
// order in which a thread holds columns of P' and dS', so that these stay in registers, or in which
// dS is stored. Tensor cores keep about 14 bits of a sum, so dk and dv of a tile are added
// in fp32; dq is, from tile to tile. Logits and dP get the scales of their operands, by which the
// offsets of lse and delta are divided; P is cast to E4M3 and dS to the gradients' format, both
// times their scale. Results of recipe delayed are cast by launch_result_cast.
//
// Head_dim 64: the kernel of hopper_gradients.cu on bf16 numbers that hold the values of 8-bit
// numbers, which is exact; P and dS are rounded to 8 bits and back.
//
// Ladder: v1 is the portable kernels (attention_fp8.cu), v2 had bf16 products of the values for
// head_dim 128 too. Grid: as hopper_gradients.cu. Shared memory: K, V and turned K of 16 KB each,
// two stages of Q and dO of 8 KB, two of both turned, three of dS, dq of a tile. Accuracy: about
// 14 bits of each sum of a tile. Source: cuDNN's FP8 attention as its front end documents it,
// TransformerEngine's recipes; FlashAttention-3 (arXiv:2407.08608), 3.3, for turning in the kernel.
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_code_consumer.h"
#include "kernels/hopper/hopper_fp8_gradients.h"
#include "kernels/hopper/hopper_gradient_consumer.h"
#include "kernels/hopper/hopper_gradient_launch.h"

namespace cpscope::kernels {
namespace {

// As in hopper_gradients.cu.
template <bool kByTile>
using Values64 = device::FusedBudget<Fp8AsBf16, 64, 128, kByTile>;
template <Fp8Type kGradients, bool kByTile>
using Codes128 = device::FusedBudget<Fp8Codes<kGradients>, 128, 64, kByTile>;

template <bool kByTile>
void launch_order(const BackwardLaunch& launch, Stream stream) {
  if (!takes_hopper_fp8_gradient_codes(launch.shape)) {
    device::launch_budget<Values64<kByTile>>(launch, stream);
  } else if (launch.fp8->gradients == Fp8Type::e4m3) {
    device::launch_budget<Codes128<Fp8Type::e4m3, kByTile>>(launch, stream);
  } else {
    device::launch_budget<Codes128<Fp8Type::e5m2, kByTile>>(launch, stream);
  }
}

}  // namespace

std::string why_not_hopper_fp8_backward(const AttentionShape& shape) {
  if (shape.head_dim_qk > 256 || shape.head_dim_v > 256)
    return "the Hopper backward supports head_dim up to 256";
  if (shape.softcap != 0.0f) return "the Hopper backward of fp8 has no softcap";
  return "";
}

bool takes_hopper_fp8_gradient_codes(const AttentionShape& shape) {
  return !shape.is_mx && is_up_to_128(shape) && (shape.head_dim_qk > 64 || shape.head_dim_v > 64);
}

void launch_hopper_fp8_gradients(const BackwardLaunch& launch, Stream stream) {
  launch.key_tiles.walks_by_tile ? launch_order<true>(launch, stream)
                                 : launch_order<false>(launch, stream);
}

}  // namespace cpscope::kernels
