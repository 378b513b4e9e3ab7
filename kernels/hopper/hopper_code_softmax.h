#pragma once

#include "kernels/device/fp8_values.h"
#include "kernels/device/tensor_core.h"
#include "kernels/hopper/hopper_softmax.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace cpscope::kernels::device {

/// Running softmax of a thread's two rows whose weights become E4M3 codes. Those are at most 448,
/// the weight of a row's reference, which therefore must not be below any logit. Two things keep
/// that from costing time in every tile.
///
/// A reference rises above the largest logit (kMostSlack), because the four warps of a warpgroup
/// wait for the one that rescales its sums: where each row's reference is its largest logit, 64
/// rows of random logits have a new one in three tiles of four, of 171.
///
/// A tile's weights are made before its largest logit is known (weigh), and their largest one is
/// found meanwhile. If it is too large, which is rare, all of them are scaled down (scale_down), or
/// made again from their logits if it is so large that the others may be lost (take).
template <class B>
struct CodeRows {
  static constexpr float kMostSlack = 2.0f;
  // Weights up to this one become 448, and err as if they were rounded.
  static constexpr float kMostWeight = 464.0f;
  // Larger ones may be infinite, and so may sums.
  static constexpr float kMostScaled = 0x1p60f;
  // Where no key is visible yet. If the first one comes in a tile without a mask, which is rare,
  // its weight is infinite.
  static constexpr float kNoReference = -1e30f;

  // A weight is 2 to (logit * logit_log2 - subtracted); logits are those before logit_scale.
  float subtracted[2] = {kNoReference, kNoReference};
  float sum[2] = {0.0f, 0.0f};  // of this thread's columns
  int32_t largest[2] = {0, 0};  // bits of this thread's largest weight
  RowRanges ranges;
  int32_t range_set = -1;  // range set of `ranges`

  static constexpr int kAll = B::kWalked / 2;

  /// Hides keys that the rows do not see.
  __device__ __forceinline__ void hide(float (&logits)[kAll], const typename B::Walk& walk) const {
    hide_unseen(logits, walk, [&](int r) {
      KeyRange range = ranges.range[r];
      range.lo = range.lo > walk.first ? range.lo : walk.first;
      return clip_to_run(range, walk.end);
    });
  }

  /// Gives rows of a masked tile, in which documents begin, their first reference. They have no
  /// sums yet that would have to be multiplied.
  __device__ __forceinline__ void begin_rows(const ForwardParams& p, const float (&logits)[kAll],
                                             const typename B::Walk& walk) {
    if (walk.is_masked == 0) return;
    if (!any_in_warp(subtracted[0] == kNoReference || subtracted[1] == kNoReference)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float exponent = top_of(logits, r) * p.logit_log2;
      if (subtracted[r] == kNoReference)
        subtracted[r] = fmaxf(kNoReference, exponent - B::kWeightLog2);
    }
  }

  /// logits -> weights, relative to the references so far. part: their sums.
  __device__ __forceinline__ void weigh(const ForwardParams& p, float (&logits)[kAll],
                                        float (&part)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r] = 0.0f;
#pragma unroll
      for (int i = 2 * r; i < kAll; i += 4) {
        logits[i] = exp2_approx(logits[i] * p.logit_log2 - subtracted[r]);
        logits[i + 1] = exp2_approx(logits[i + 1] * p.logit_log2 - subtracted[r]);
        part[r] += logits[i] + logits[i + 1];
        // Weights are not below 0, so their order is that of their bits.
        largest[r] = max_of_three(largest[r], signed_bits(logits[i]), signed_bits(logits[i + 1]));
      }
    }
  }

  /// Whether this thread has a weight that is too large.
  __device__ __forceinline__ bool is_outgrown() const { return has_above(kMostWeight); }
  /// Whether it has one that is too large to scale others down with it.
  __device__ __forceinline__ bool is_lost() const { return has_above(kMostScaled); }

  /// Raises references so far that no weight is too large, and adds the weights up. shrink: factor
  /// for earlier results.
  __device__ __forceinline__ void scale_down(float (&weights)[kAll], const float (&part)[2],
                                             float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += part[r];
      const float most = max_of_row(weight_of(largest[r]));
      shrink[r] = raise_reference(r, subtracted[r] + log2_approx(most),
                                  sum_of_row(sum[r]) * reciprocal_approx(most));
    }
#pragma unroll
    for (int i = 0; i < kAll; ++i) weights[i] *= shrink[(i / 2) & 1];
  }

  /// logits -> weights, of which none is too large, and adds them up. Logits of which nothing is
  /// known: of the first tile, or of one whose weights are lost.
  __device__ __forceinline__ void take(const ForwardParams& p, float (&logits)[kAll]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!(weight_of(largest[r]) <= kMostScaled)) largest[r] = 0;  // also of a NaN
      const float exponent = top_of(logits, r) * p.logit_log2;
      raise_reference(r, exponent, sum_of_row(sum[r]) * exp2_approx(subtracted[r] - exponent));
    }
    float part[2];
    weigh(p, logits, part);
    sum[0] += part[0];
    sum[1] += part[1];
  }

  /// The largest logit of row r that this thread has seen.
  __device__ __forceinline__ float largest_logit(const ForwardParams& p, int r) const {
    return (subtracted[r] + log2_approx(weight_of(largest[r]))) * reciprocal_approx(p.logit_log2);
  }

 private:
  /// The largest of the tile's logits of row r.
  __device__ __forceinline__ static float top_of(const float (&logits)[kAll], int r) {
    float top = -INFINITY;
#pragma unroll
    for (int i = 2 * r; i < kAll; i += 4) top = fmaxf(top, fmaxf(logits[i], logits[i + 1]));
    return max_of_row(top);
  }
  __device__ __forceinline__ static int32_t signed_bits(float value) {
    return static_cast<int32_t>(to_bits(value));
  }
  __device__ __forceinline__ static float weight_of(int32_t bits) {
    return from_bits(static_cast<uint32_t>(bits));
  }
  /// True of a NaN.
  __device__ __forceinline__ bool has_above(float weight) const {
    return largest[0] > signed_bits(weight) || largest[1] > signed_bits(weight);
  }

  /// Lets the weight of the row's largest logit, whose power of two is given, be at most 448.
  /// relative: the row's sum of weights, where this logit's is 1; a NaN if no key is visible.
  /// Returns the factor for earlier results.
  __device__ __forceinline__ float raise_reference(int r, float exponent, float relative) {
    const float next =
        fmaxf(subtracted[r], exponent + slack_of_sum(relative, kMostSlack) - B::kWeightLog2);
    const float shrink = exp2_approx(subtracted[r] - next);
    subtracted[r] = next;
    sum[r] *= shrink;
    largest[r] = signed_bits(weight_of(largest[r]) * shrink);
    return shrink;
  }
};

/// logits = Q K^T of a warp's 16 rows and a tile of keys, by this warp alone: a product of a
/// warpgroup takes all four. q: address of the warp's rows, k: of the tile; codes, 128 a row.
template <int kWalked>
__device__ __forceinline__ void multiply_in_warp(float (&logits)[kWalked / 2], uint32_t q,
                                                 uint32_t k) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kWalked / 2; ++i) logits[i] = 0.0f;
#pragma unroll 1  // else loads are in flight for which there are no registers
  for (int step = 0; step < kPanelRowBytes / 32; ++step) {
    const auto load = [=](uint32_t(&words)[4], uint32_t at, int row, int chunk) {
      load_matrix_x4(words, at + row * kPanelRowBytes + (((2 * step + chunk) ^ (row & 7)) << 4));
    };
    uint32_t a[4];
    load(a, q, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < kWalked / 8; i += 2) {
      uint32_t b[4];
      load(b, k, 8 * i + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Of 16 adjacent codes a thread has four, of rows and of keys the same: its pairs.
        const uint32_t* const rows = a + j % 2 * 2;
        multiply_add<Fp16>(*reinterpret_cast<float(*)[4]>(logits + 4 * i + j / 2 * 4),
                           {halves_of_codes(rows[0]), halves_of_codes(rows[1]),
                            halves_of_codes(rows[0] >> 16), halves_of_codes(rows[1] >> 16)},
                           halves_of_codes(b[j]), halves_of_codes(b[j] >> 16));
      }
    }
  }
}

/// The running softmax of a configuration.
template <class B>
using SoftmaxRows = std::conditional_t<B::kHasCodes, CodeRows<B>, RowState<B>>;

}  // namespace cpscope::kernels::device
