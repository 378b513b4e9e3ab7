#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/scalar_types.h"

#include <cmath>
#include <cstdint>
#include <numbers>

/// What products of some kernels take off each row's sums by a step of their own, so that no warp
/// has to read it: -lse and -delta, each as the sum of three bf16 numbers, which is all that an
/// fp32 number holds. In memory: bf16 [local head][-lse, -delta][row][8], the parts before zeros,
/// so that 64 rows, wherever they begin, are an operand.
namespace cpscope::kernels {

inline constexpr int32_t kOffsetParts = 3, kOffsetLanes = 8;

/// bf16 numbers of a head.
constexpr int64_t offsets_of_head(int32_t q_rows) { return int64_t{2} * q_rows * kOffsetLanes; }

/// log2(e) scale: what q.k is to the exponent of 2. -lse is divided by it, so it is never zero;
/// this small, weights are those of a scale of zero.
inline float offset_logit_log2(const AttentionShape& shape) {
  constexpr float kLeast = 1e-30f;
  const float factor = shape.scale * static_cast<float>(std::numbers::log2e);
  return std::abs(factor) < kLeast ? kLeast : factor;
}

}  // namespace cpscope::kernels
