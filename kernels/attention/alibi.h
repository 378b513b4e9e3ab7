#pragma once

#include "kernels/attention/score_term_rows.h"
#include "kernels/device/device_code.h"

#include <cstdint>

namespace cpscope::kernels::device {

/// What ALiBi subtracts from a logit (arXiv:2108.12409; distances in both directions).
__device__ __forceinline__ float alibi_of(float slope, int32_t query_position,
                                          int32_t key_position) {
  const int32_t apart = query_position - key_position;
  return slope * static_cast<float>(apart < 0 ? -apart : apart);
}

/// ALiBi of a thread's two stationary rows, of queries or of keys, for one query head.
struct AlibiOfTwo {
  float slope = 0.0f;
  int32_t positions[2] = {0, 0};

  AlibiOfTwo() = default;
  /// all: positions of the side's rows; rows: `first` and first + step; unit: of the result.
  __device__ __forceinline__ AlibiOfTwo(const float* slopes, int32_t head, const int32_t* all,
                                        int32_t first, int32_t step, float unit)
      : slope(slopes[head] * unit), positions{all[first], all[first + step]} {}

  /// For row r and a row of the other side.
  __device__ __forceinline__ float of(int r, int32_t other_position) const {
    return alibi_of(slope, positions[r], other_position);
  }
};

}  // namespace cpscope::kernels::device
