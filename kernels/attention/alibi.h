#pragma once

#include "kernels/attention/score_term_rows.h"
#include "kernels/device/device_code.h"

#include <cmath>
#include <cstdint>

namespace cpscope::kernels::device {

/// What ALiBi subtracts from a logit (arXiv:2108.12409; distances in both directions).
__device__ __forceinline__ float alibi_of(float slope, float query_position, float key_position) {
  return slope * fabsf(query_position - key_position);
}

/// ALiBi of a thread's two stationary rows, of queries or of keys, for one query head.
struct AlibiOfTwo {
  float slope = 0.0f;
  float positions[2] = {0.0f, 0.0f};

  AlibiOfTwo() = default;
  /// all: positions of the side's rows; rows: `first` and first + step; unit: of the result.
  __device__ __forceinline__ AlibiOfTwo(const float* slopes, int32_t head, const float* all,
                                        int32_t first, int32_t step, float unit)
      : slope(slopes[head] * unit), positions{all[first], all[first + step]} {}

  /// For row r and a row of the other side.
  __device__ __forceinline__ float of(int r, float other_position) const {
    return alibi_of(slope, positions[r], other_position);
  }
};

}  // namespace cpscope::kernels::device
