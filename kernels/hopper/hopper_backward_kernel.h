#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/device/fp8_values.h"
#include "kernels/hopper/hopper_pipeline.h"
#include "kernels/hopper/hopper_products.h"

#include <cmath>
#include <cstdint>

/// Code that the backward kernels of sm_90a share. Every sum has one order, given by the order of a
/// CTA's streamed tiles or by turns, so two runs give the same bits.
namespace cpscope::kernels::device {

/// FP8 with one scale a tensor. BackwardParams::scale is then the factor of rounded dS times q or
/// k.
struct Fp8Factors {
  Fp8Type gradients = Fp8Type::e5m2;
  float weights = 1.0f;   // of P before it is rounded
  float products = 1.0f;  // of V dO^T: dP
  float d_logits = 1.0f;  // of P (dP - delta) before it is rounded
  // Where products subtract lse and delta, P is made with its factor.
  float weight_log2 = 0.0f;  // log2 of `weights`
  float slopes = 1.0f;       // of such a P times dP: products * d_logits / weights
  float dv = 1.0f;           // of rounded P times d_out
};

struct BackwardParams {
  TensorMap q, k, v, d_out;
  DeviceTiles tiles;
  int32_t q_rows;
  int32_t* counter;
  const float* log2_lse;            // [local head][q row], +inf for rows without a visible key
  const float* delta;               // [local head][q row]
  DeviceRows first;                 // dq, or dk
  DeviceRows second;                // dv
  int32_t head_dim_qk, head_dim_v;  // padded
  // group, first_kv_head: with stationary keys, those of a part of a KV head's query heads
  // (TileList::group_parts). A part is treated as a KV head, except for reading k and v.
  int32_t num_heads, first_head, first_kv_head, group;
  float scale;
  float logit_log2;   // factor of q.k, or of tanh(q.k * inverse_cap), to the exponent of 2
  float inverse_cap;  // scale / softcap
  AlibiRows alibi;
  int32_t group_parts;
  Fp8Factors fp8;
};

/// Query heads [first, last) of the item that read a KV head, or that belong to a part of them.
struct HeadRange {
  int32_t first, last;

  __device__ HeadRange(const BackwardParams& p, int32_t kv_head) {
    const int32_t begin = (p.first_kv_head + kv_head) * p.group - p.first_head;
    first = begin > 0 ? begin : 0;
    last = begin + p.group < p.num_heads ? begin + p.group : p.num_heads;
  }
};

/// ALiBi of a thread's rows `first` and first + 8 among `all`, to be added to log2_lse.
__device__ __forceinline__ AlibiOfTwo alibi_log2(const BackwardParams& p, const float* all,
                                                 int32_t first, int32_t head) {
  return {p.alibi.slopes, p.first_head + head, all, first, 8, kLog2E};
}

/// State of a thread for its two query rows.
struct QueryRows {
  float log2_lse[2], delta[2];
  RowRanges ranges;

  __device__ __forceinline__ QueryRows(const BackwardParams& p, int32_t first_row, int32_t head) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = first_row + 8 * r;
      const int64_t place = static_cast<int64_t>(head) * p.q_rows + row;
      log2_lse[r] = row < p.q_rows ? p.log2_lse[place] : INFINITY;
      delta[r] = row < p.q_rows ? p.delta[place] : 0.0f;
    }
  }
};

/// Probability of a pair, and the slope of the cap at its logit (1 without a cap). log2_lse: plus
/// the pair's ALiBi.
template <LogitForm kForm>
__device__ __forceinline__ float weigh(const BackwardParams& p, float product, float log2_lse,
                                       float& slope) {
  if constexpr (kForm == LogitForm::capped) {
    const TanhPoint capped = tanh_with_slope(product * p.inverse_cap);
    slope = capped.slope;
    return exp2_approx(capped.value * p.logit_log2 - log2_lse);
  } else {
    slope = 1.0f;
    return exp2_approx(product * p.logit_log2 - log2_lse);
  }
}

/// Two weights as operands of a product.
template <class B>
__device__ __forceinline__ uint32_t round_weights(const BackwardParams& p, float a, float b) {
  if constexpr (B::kIsFp8) {
    return B::kHasOffsets ? pack_fp8_values(Fp8Type::e4m3, a, b)
                          : pack_fp8_values(Fp8Type::e4m3, a * p.fp8.weights, b * p.fp8.weights);
  } else {
    return pack<typename B::T>(a, b);
  }
}
/// Two numbers dS as operands of a product; those of mxfp8 have been cast.
template <class B>
__device__ __forceinline__ uint32_t round_grads(const BackwardParams& p, float a, float b) {
  if constexpr (B::kIsFp8 && !B::kIsMx) {
    return pack_fp8_values(p.fp8.gradients, a, b);
  } else {
    return pack<typename B::T>(a, b);
  }
}

/// dS of a pair before it is rounded; with fp8 times its scale.
template <class B>
__device__ __forceinline__ float slope_of(const BackwardParams& p, float weight, float dp,
                                          float delta) {
  if constexpr (B::kIsFp8 && B::kHasOffsets) {
    return weight * dp * p.fp8.slopes;
  } else if constexpr (B::kIsFp8) {
    return weight * (dp * p.fp8.products - delta) * p.fp8.d_logits;
  } else {
    return weight * (dp - delta);
  }
}

/// The scale of dv.
template <class B>
__device__ __forceinline__ float dv_scale(const BackwardParams& p) {
  return B::kIsFp8 ? p.fp8.dv : 1.0f;
}

inline BackwardParams make_backward_params(const BackwardLaunch& launch) {
  const AttentionShape& shape = launch.shape;
  BackwardParams p{};
  p.q_rows = shape.q_rows;
  p.log2_lse = launch.log2_lse;
  p.delta = launch.delta;
  p.head_dim_qk = padded_lanes(shape.head_dim_qk);
  p.head_dim_v = padded_lanes(shape.head_dim_v);
  p.num_heads = shape.num_heads;
  p.first_head = shape.first_head;
  p.first_kv_head = shape.first_kv_head;
  p.group = shape.group;
  p.scale = shape.scale;
  const bool has_cap = shape.softcap != 0.0f;
  p.logit_log2 = (has_cap ? shape.softcap : shape.scale) * kLog2E;
  p.inverse_cap = has_cap ? shape.scale / shape.softcap : 0.0f;
  if (shape.has_alibi_alone) p.alibi = launch.terms->alibi;
  return p;
}

/// Sets where dk and dv go, and the KV heads for a kernel with stationary keys.
inline void set_key_results(const BackwardLaunch& launch, BackwardParams& p) {
  p.group_parts = launch.key_tiles.group_parts;
  p.group /= p.group_parts;
  p.first_kv_head *= p.group_parts;
  p.first = p.group_parts > 1 ? launch.dk_parts : launch.dk;
  p.second = p.group_parts > 1 ? launch.dv_parts : launch.dv;
}

/// Sets the factors of FP8. launch's rows hold codes as bf16 numbers, without their scales.
inline void set_fp8_factors(const BackwardLaunch& launch, BackwardParams& p) {
  const Fp8Numbers& fp8 = *launch.fp8;
  p.fp8 = {.gradients = fp8.gradients,
           .weights = fp8.weights,
           .products = fp8.descale * fp8.d_out_descale,
           .d_logits = launch.shape.scale * fp8.d_logits,
           .weight_log2 = std::log2(fp8.weights),
           .slopes = 1.0f,
           .dv = fp8.d_out_descale / fp8.weights};
  p.scale = fp8.descale / fp8.d_logits;
  p.logit_log2 *= fp8.descale * fp8.descale;
}

/// The launch with rows quantised along themselves (mxfp8).
inline BackwardLaunch with_rows_of(const BackwardLaunch& launch, const Fp8Numbers& fp8) {
  BackwardLaunch quantised = launch;
  quantised.q = fp8.q;
  quantised.k = fp8.k;
  quantised.v = fp8.v;
  quantised.d_out = fp8.d_out;
  return quantised;
}

/// Makes maps for tiles of q_rows query rows and kv_rows key rows.
inline void make_backward_maps(const BackwardLaunch& launch, int32_t q_rows, int32_t kv_rows,
                               BackwardParams& p) {
  const AttentionShape& shape = launch.shape;
  make_row_map(p.q, launch.q, shape.dtype, shape.num_heads, p.head_dim_qk, {q_rows});
  make_row_map(p.d_out, launch.d_out, shape.dtype, shape.num_heads, p.head_dim_v, {q_rows});
  make_row_map(p.k, launch.k, shape.dtype, shape.num_kv_heads, p.head_dim_qk, {kv_rows});
  make_row_map(p.v, launch.v, shape.dtype, shape.num_kv_heads, p.head_dim_v, {kv_rows});
}

/// The same for rows of codes. A map takes two of them as one number of 16 bits.
inline void make_code_maps(const BackwardLaunch& launch, int32_t q_rows, int32_t kv_rows,
                           BackwardParams& p) {
  const AttentionShape& shape = launch.shape;
  const Fp8Numbers& fp8 = *launch.fp8;
  constexpr int32_t kLanes = kCodeLanes / 2;
  make_row_map(p.q, in_pairs(fp8.q_codes), Dtype::bf16, shape.num_heads, kLanes, {q_rows});
  make_row_map(p.d_out, in_pairs(fp8.d_out_codes), Dtype::bf16, shape.num_heads, kLanes, {q_rows});
  make_row_map(p.k, in_pairs(fp8.k_codes), Dtype::bf16, shape.num_kv_heads, kLanes, {kv_rows});
  make_row_map(p.v, in_pairs(fp8.v_codes), Dtype::bf16, shape.num_kv_heads, kLanes, {kv_rows});
}

}  // namespace cpscope::kernels::device
