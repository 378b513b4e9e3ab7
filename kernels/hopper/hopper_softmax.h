#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/attention_launch.h"
#include "kernels/attention/softcap.h"
#include "kernels/hopper/hopper_pipeline.h"

#include <cmath>
#include <cstdint>

/// Parameters of the Hopper forward, the rows of a tile that a thread has, and their running
/// softmax.
namespace cpscope::kernels::device {

struct ForwardParams {
  TensorMap q, k, v;
  TensorMap narrow_out;  // out in the dtype, for budgets that send rows
  DeviceTiles tiles;
  int32_t q_rows;
  int32_t* counter;
  void* out;
  int32_t is_narrow;  // out holds the dtype, else fp32
  int32_t merges;     // out, in fp32, and lse hold the result for other keys, which is merged
  int32_t rounds;     // merged results are rounded to the dtype
  int64_t out_row_stride, out_head_stride;
  int32_t out_head_dim;  // padded
  float* lse;
  int64_t lse_row_stride;
  float* max_logit;
  int32_t first_head, first_kv_head, group;
  float q_k_factor;  // with a cap scale / softcap, with ALiBi `scale`
  float softcap;
  AlibiRows alibi;
  float logit_scale;   // factor of the softmax's inputs: 1 if they were altered, else `scale`
  int32_t heads_log2;  // number of query heads in a tile, interleaved row by row, at most 3
  float v_descale;     // FP8: multiplies v
  float out_scale;     // FP8: of out, which is cast with it; 0: it is not
  float weight_log2;   // FP8 without codes: the largest weight is 2 to this
  float logit_log2;    // FP8 codes: logit_scale for powers of two
};

/// Most query heads in a tile: with more, the two rows of a thread would belong to two heads.
inline constexpr int32_t kMostHeadsLog2 = 3;

/// Rows of a stationary tile. kHasHeads: of several query heads, interleaved row by row.
template <bool kHasHeads>
struct TileRows {
  int32_t heads_log2;

  __device__ explicit TileRows(const ForwardParams& p) : heads_log2(kHasHeads ? p.heads_log2 : 0) {}

  __device__ __forceinline__ int32_t num_heads() const { return 1 << heads_log2; }
  /// For a row of the tile: its row in the item, relative to the tile's first one; and its head.
  __device__ __forceinline__ int32_t row_of(int32_t in_tile) const { return in_tile >> heads_log2; }
  __device__ __forceinline__ int32_t head_of(int32_t in_tile, int32_t item_head) const {
    return (item_head << heads_log2) + (in_tile & (num_heads() - 1));
  }
  /// Distance from the first of a thread's rows to the second, of the same head.
  __device__ __forceinline__ int32_t step() const { return kHasHeads ? 8 >> heads_log2 : 8; }
};

__device__ __forceinline__ float max_of_row(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}
__device__ __forceinline__ float sum_of_row(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

/// How far a weight may be from 1, in powers of two, so that it is at most an eighth of a row's
/// sum; at most `most`; 0 of a NaN. Weights of 16 bits may be that much larger than their
/// reference's, which is 1; the reference of codes may be that much above the largest logit, whose
/// weight is 1 here. A larger weight is rounded, unlike 1, and codes of small weights lose bits:
/// where one key outweighs all others together, either error would be visible.
__device__ __forceinline__ float slack_of_sum(float sum, float most) {
  return fminf(fmaxf(0.0f, log2_approx(sum * 0.125f)), most);
}

/// Hides keys that a thread's two rows do not see. span_of(r): those that row r sees.
template <int kLogits, class Walk, class SpanOf>
__device__ __forceinline__ void hide_unseen(float (&logits)[kLogits], const Walk& walk,
                                            const SpanOf& span_of) {
  if (walk.is_masked == 0) return;
  const int32_t key = walk.row + 2 * (threadIdx.x % 4);
  const KeySpan span[2] = {span_of(0), span_of(1)};
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    if (!span[(i / 2) & 1].has(key + (i / 4) * 8 + (i & 1))) logits[i] = -INFINITY;
  }
}

/// The first of a thread's two rows, and their head.
struct RowPlace {
  int32_t first, head;
};

/// Running softmax of a thread's two rows. Weights are relative to a reference, an earlier largest
/// logit. While no logit exceeds `limit`, which is usual once a row has some keys, earlier results
/// are not rescaled, and lanes need not exchange their logits.
template <class B>
struct RowState {
  // The range of fp16: with a million equal keys, an eighth of the sum is more.
  static constexpr float kMostSlack = 15.0f;

  // Logits are those before logit_scale.
  float largest[2] = {-INFINITY, -INFINITY};    // of this thread
  float reference[2] = {-INFINITY, -INFINITY};  // the logit of weight 1
  float limit[2] = {-INFINITY, -INFINITY};
  float subtracted[2] = {0.0f, 0.0f};  // the reference as an exponent of 2
  float sum[2] = {0.0f, 0.0f};         // of this thread's columns
  RowRanges ranges;
  int32_t range_set = -1;  // range set of `ranges`

  /// Products -> logits with ALiBi, less `shift` of their row. Where the positions of a tile's keys
  /// rise evenly, and all are on one side of the warp's rows, as most are, the distance is linear:
  /// its part that all keys share is the shift. A tile's rows are looked up again for each of its
  /// products: where three CTAs share a multiprocessor no registers are left for them.
  __device__ __forceinline__ static void add_alibi(const ForwardParams& p,
                                                   float (&logits)[B::kWalked / 2],
                                                   const typename B::Walk& walk, RowPlace rows,
                                                   float (&shift)[2]) {
    const AlibiOfTwo alibi(p.alibi.slopes, p.first_head + rows.head, p.alibi.query_positions,
                           rows.first, TileRows<B::kHasHeads>(p).step(), 1.0f);
    const int32_t own = 2 * static_cast<int32_t>(threadIdx.x % 4);
    const float* const keys = p.alibi.key_positions + walk.row;
    const PositionStretch stretch = p.alibi.key_stretches[walk.row];
    const int32_t end = walk.end - walk.row < B::kWalked ? walk.end : walk.row + B::kWalked;
    const float first = keys[0],
                last = first + stretch.step * static_cast<float>(end - 1 - walk.row);
    const float low = fminf(alibi.positions[0], alibi.positions[1]),
                high = fmaxf(alibi.positions[0], alibi.positions[1]);
    const bool is_before = fmaxf(first, last) <= low, is_after = fminf(first, last) >= high;
    if (any_in_warp(stretch.end < end || !(is_before || is_after))) {
      shift[0] = shift[1] = 0.0f;
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; i += 4) {
        const float even = keys[own + 2 * i], odd = keys[own + 2 * i + 1];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float &one = logits[i + 2 * r], &other = logits[i + 2 * r + 1];
          one = one * p.q_k_factor - alibi.of(r, even);
          other = other * p.q_k_factor - alibi.of(r, odd);
        }
      }
      return;
    }
    const float slope = is_before ? alibi.slope : -alibi.slope, step = slope * stretch.step;
    const float nearest = first + stretch.step * static_cast<float>(own);
#pragma unroll
    for (int r = 0; r < 2; ++r) shift[r] = slope * (nearest - alibi.positions[r]);
#pragma unroll
    for (int i = 0; i < B::kWalked / 2; i += 4) {
      const float even = step * static_cast<float>(2 * i),
                  odd = step * static_cast<float>(2 * i + 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float &one = logits[i + 2 * r], &other = logits[i + 2 * r + 1];
        one = one * p.q_k_factor + even;
        other = other * p.q_k_factor + odd;
      }
    }
  }

  /// logits -> exp2(logit - reference). Returns whether a row of the warp has a new reference.
  /// shrink: factor for earlier results then.
  __device__ __forceinline__ bool take(const ForwardParams& p, float (&logits)[B::kWalked / 2],
                                       float (&shrink)[2], const typename B::Walk& walk,
                                       RowPlace rows) {
    float shift[2] = {0.0f, 0.0f};
    if constexpr (B::kForm == LogitForm::capped) {
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i)
        logits[i] = p.softcap * tanh_with_slope(logits[i] * p.q_k_factor).value;
    } else if constexpr (B::kForm == LogitForm::alibi) {
      add_alibi(p, logits, walk, rows, shift);
    }
    hide_unseen(logits, walk, [&](int r) { return ranges.span(r, walk.end); });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = B::kForm == LogitForm::alibi ? -INFINITY : largest[r];
#pragma unroll
      for (int i = 2 * r; i < B::kWalked / 2; i += 4)
        most = fmaxf(most, fmaxf(logits[i], logits[i + 1]));
      largest[r] = B::kForm == LogitForm::alibi ? fmaxf(largest[r], most + shift[r]) : most;
    }
    const float to_log2 = p.logit_scale * kLog2E;
    const float(&most)[2] = B::kIsFp8 ? reference : limit;
    const bool outgrown = any_in_warp(largest[0] > most[0] || largest[1] > most[1]);
    if (outgrown) move_references(to_log2, p.weight_log2, shrink);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float part = 0.0f, less = subtracted[r];
      if constexpr (B::kForm == LogitForm::alibi) less -= shift[r] * to_log2;
#pragma unroll
      for (int i = 2 * r; i < B::kWalked / 2; i += 4) {
        logits[i] = exp2_approx(logits[i] * to_log2 - less);
        logits[i + 1] = exp2_approx(logits[i + 1] * to_log2 - less);
        part += logits[i] + logits[i + 1];
      }
      sum[r] += part;
    }
    return outgrown;
  }

  /// Sets references, and limits, to the largest logits.
  __device__ __forceinline__ void move_references(float to_log2, float weight_log2,
                                                  float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = max_of_row(largest[r]);
      const float growth = (top - reference[r]) * to_log2;  // a NaN while nothing is visible
      // 1 if the reference does not change.
      shrink[r] = growth > 0.0f ? exp2_approx(-growth) : 1.0f;
      reference[r] = limit[r] = top;
      subtracted[r] = top == -INFINITY ? 0.0f : top * to_log2;
      // Weights are that much larger.
      if constexpr (B::kIsFp8) subtracted[r] -= weight_log2;
      sum[r] *= shrink[r];
    }
  }

  /// Called after move_references, when the sum covers all keys so far.
  __device__ __forceinline__ void raise_limits(const ForwardParams& p) {
    const float from_log2 = reciprocal_approx(p.logit_scale * kLog2E);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float slack = slack_of_sum(sum_of_row(sum[r]), kMostSlack);
      limit[r] = reference[r] + slack * from_log2;
    }
  }

  /// The largest logit of row r that this thread has seen.
  __device__ __forceinline__ float largest_logit(const ForwardParams&, int r) const {
    return largest[r];
  }
};

}  // namespace cpscope::kernels::device
