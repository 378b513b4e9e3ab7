// The Hopper forward of dtype fp8: hopper_forward_kernel.h with E4M3 products, or with bf16
// products of the same values.
//
// Codes, for one scale a tensor and head_dim up to 128. What differs from 16 bits: a product sums
// 32 numbers; Q and K are codes of one byte; V is stored by elements of head_dim, because products
// of 8 bits read both operands along the summed dimension, and its keys in the order in which a
// thread holds its weights, so that P needs no exchange between threads. Tiles of keys begin on 16
// keys. Weights are 448 exp(logit - reference), cast as they are; the row sum is that before the
// cast (CodeRows). Sums of P V are kept in fp32 (KeptSums).
//
// Values: mxfp8, whose blocks have scales that no product of codes can apply on Hopper, and wider
// heads. Operands are bf16 numbers that hold the values of 8-bit numbers, which is exact; weights
// are rounded to E4M3. Products run at the rate of bf16, and their sums are exact.
//
// Ladder: v1 is the portable kernel (attention_fp8.cu); v2 had two consumers and tiles of 128 keys,
// and added every tile to sums in fp32 in registers; v3 has three consumers, because a warp waits
// for its own instructions half of the time, and keeps sums in shared memory; v4 rescales in fewer
// tiles; v5 makes weights before it knows the largest logit of a tile, and its warpgroups take no
// turns; v6 has tiles of 128 keys, and half of the products, for head_dim up to 64.
// Grid, block: as hopper_forward_kernel.h. Shared memory: 24 KB of Q, 12 KB for each stage of K, 16
// KB of V (128 keys, of which a tile takes 96), 102 KB of sums; head_dim 64: 16 KB, 8 KB, 54 KB.
// Registers: 160 a consumer's thread.
// Accuracy: tensor cores keep about 14 bits of a sum, also of a logit.
// Source: FlashAttention-3 (arXiv:2407.08608), 3.3; DeepSeek-V3 (arXiv:2412.19437), 3.3.2.
#include "kernels/attention/fp8_numbers.h"
#include "kernels/hopper/hopper_forward_launch.h"
#include "kernels/hopper/hopper_fp8_forward.h"

#include <cmath>

namespace cpscope::kernels {
namespace {

using device::ForwardParams;

// As in hopper_forward.cu.
using Codes64 = device::ForwardBudget<E4m3, 128, 64, 3, 128, 3, 3, 1, false, false, 32, 160>;
using Codes128 = device::ForwardBudget<E4m3, 128, 128, 3, 96, 3, 3, 1, false, false, 32, 160>;
using Values128 = device::ForwardBudget<Fp8AsBf16, 128, 128, 2, 128, 2, 2, 1, true, false, 40, 232>;
using Values256 = device::ForwardBudget<Fp8AsBf16, 256, 256, 2, 80, 2, 2, 1, false, false, 24, 240>;

void set_fp8_scales(const ForwardLaunch& launch, ForwardParams& p) {
  const Fp8Numbers& fp8 = *launch.fp8;
  p.logit_scale = launch.shape.scale * fp8.descale * fp8.descale;
  p.v_descale = fp8.descale;
  p.out_scale = fp8.out;
  p.weight_log2 = std::log2(fp8.weights);
}

bool fits(const AttentionShape& shape, int32_t head_dim) {
  return shape.head_dim_qk <= head_dim && shape.head_dim_v <= head_dim;
}

/// Calls visit with the budget for a shape.
template <class Visit>
auto with_budget(const AttentionShape& shape, Visit visit) {
  if (takes_hopper_fp8_codes(shape))
    return fits(shape, Codes64::kV) ? visit(Codes64{}) : visit(Codes128{});
  return fits(shape, Values128::kQk) ? visit(Values128{}) : visit(Values256{});
}

template <class B>
void launch_values(const ForwardLaunch& launch, Stream stream) {
  const AttentionShape& shape = launch.shape;
  const Fp8Numbers& fp8 = *launch.fp8;
  ForwardParams p = forward_params(launch);
  const int32_t qk = padded_lanes(shape.head_dim_qk), v = padded_lanes(shape.head_dim_v);
  make_row_map(p.q, fp8.q, Dtype::bf16, shape.num_heads, qk, {B::kOwned});
  make_row_map(p.k, fp8.k, Dtype::bf16, shape.num_kv_heads, qk, {B::kWalked});
  make_row_map(p.v, fp8.v, Dtype::bf16, shape.num_kv_heads, v, {B::kWalked});
  set_fp8_scales(launch, p);
  launch_attend<B>(p, stream);
}

template <class B>
void launch_codes(const ForwardLaunch& launch, Stream stream) {
  const AttentionShape& shape = launch.shape;
  const Fp8Numbers& fp8 = *launch.fp8;
  ForwardParams p = forward_params(launch);
  make_row_map(p.q, in_pairs(fp8.q_codes), Dtype::bf16, shape.num_heads, B::kQk / 2, {B::kOwned});
  make_row_map(p.k, in_pairs(fp8.k_codes), Dtype::bf16, shape.num_kv_heads, B::kQk / 2,
               {B::kWalked});
  const DeviceRows v = in_pairs(fp8.v_codes);
  make_row_map(p.v, v, Dtype::bf16, shape.num_kv_heads, static_cast<int32_t>(v.row_stride),
               {B::kV});
  set_fp8_scales(launch, p);
  p.logit_log2 = p.logit_scale * device::kLog2E;
  launch_attend<B>(p, stream);
}

}  // namespace

std::string why_not_hopper_fp8_forward(const AttentionShape& shape) {
  if (shape.head_dim_qk > Values256::kQk || shape.head_dim_v > Values256::kV)
    return "the Hopper forward supports head_dim up to 256";
  if (shape.softcap != 0.0f) return "the Hopper forward of fp8 has no softcap";
  if (!(shape.scale > 0.0f)) return "the Hopper forward needs a scale above 0";
  return "";
}

bool takes_hopper_fp8_codes(const AttentionShape& shape) {
  return !shape.is_mx && fits(shape, Codes128::kV);
}

TileShape hopper_fp8_forward_tile_shape(const AttentionShape& shape) {
  return with_budget(shape, [](auto budget) {
    using B = decltype(budget);
    return TileShape{
        .owned_rows = B::kOwned, .walked_rows = B::kWalked, .ctas_per_sm = B::kCtasPerSm};
  });
}

void launch_hopper_fp8_forward(const ForwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  with_budget(launch.shape, [&](auto budget) {
    using B = decltype(budget);
    if constexpr (B::kHasCodes) {
      launch_codes<B>(launch, stream);
    } else {
      launch_values<B>(launch, stream);
    }
  });
}

}  // namespace cpscope::kernels
