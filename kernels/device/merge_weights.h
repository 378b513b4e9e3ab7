#pragma once

#include "kernels/device/device_code.h"

#include <cmath>

/// Merges the results of two disjoint sets of keys by log-sum-exp. Rows without a visible key keep
/// lse = -inf and never make a NaN. Source: Milakov & Gimelshein 2018 (arXiv:1805.02867); as
/// FlashAttention-2 (arXiv:2307.08691), 3.1. Uses accurate library functions: an error of a few
/// ulp.
namespace cpscope::kernels::device {

__device__ __forceinline__ bool is_nothing(float lse) { return lse == -INFINITY; }

/// log(exp(a) + exp(b)); -inf if both are -inf.
__device__ __forceinline__ float log_sum_exp(float a, float b) {
  if (is_nothing(a)) return b;
  if (is_nothing(b)) return a;
  const float high = fmaxf(a, b), low = fminf(a, b);
  return high + log1pf(expf(low - high));
}

__device__ __forceinline__ float weight_of(float part, float whole) {
  return is_nothing(part) ? 0.0f : expf(part - whole);
}

/// lse of both sets together, and the weights of the previous and of the added values in it.
struct MergeWeights {
  float lse, before, added;

  __device__ __forceinline__ MergeWeights(float lse_before, float lse_added)
      : lse(log_sum_exp(lse_before, lse_added)),
        before(weight_of(lse_before, lse)),
        added(weight_of(lse_added, lse)) {}
};

/// Merges one element. The order of roundings is fixed, so every caller gets the same bits.
__device__ __forceinline__ float merge_values(float value_before, float weight_before, float added,
                                              float weight_added) {
  return fmaf(value_before, weight_before, multiply_rounded(added, weight_added));
}

}  // namespace cpscope::kernels::device
