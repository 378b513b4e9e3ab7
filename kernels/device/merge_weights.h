#pragma once

#include "kernels/device/device_code.h"

#include <cmath>

/// How results of two sets of keys become that of both, by log-sum-exp. Rows that see nothing keep
/// lse = -inf and never make a NaN. Source: Milakov & Gimelshein 2018 (arXiv:1805.02867); as
/// FlashAttention-2 (arXiv:2307.08691), 3.1. Accurate library functions: an error of a few ulp.
namespace cpscope::kernels::device {

__device__ __forceinline__ bool is_nothing(float lse) { return lse == -INFINITY; }

/// log(exp(a) + exp(b)); nothing with nothing is nothing.
__device__ __forceinline__ float log_sum_exp(float a, float b) {
  if (is_nothing(a)) return b;
  if (is_nothing(b)) return a;
  const float high = fmaxf(a, b), low = fminf(a, b);
  return high + log1pf(expf(low - high));
}

__device__ __forceinline__ float weight_of(float part, float whole) {
  return is_nothing(part) ? 0.0f : expf(part - whole);
}

/// lse of the whole, and what values from before and new ones count in it.
struct MergeWeights {
  float lse, before, added;

  __device__ __forceinline__ MergeWeights(float lse_before, float lse_added)
      : lse(log_sum_exp(lse_before, lse_added)),
        before(weight_of(lse_before, lse)),
        added(weight_of(lse_added, lse)) {}
};

/// One lane of the whole. The order of roundings is given: whoever merges gets the same bits.
__device__ __forceinline__ float merge_values(float value_before, float weight_before, float added,
                                              float weight_added) {
  return fmaf(value_before, weight_before, multiply_rounded(added, weight_added));
}

}  // namespace cpscope::kernels::device
