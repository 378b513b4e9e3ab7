#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/scalar_types.h"

#include <cmath>
#include <cstdint>
#include <numbers>

/// Row statistics as a product operand. Some kernels add -lse and -delta to each row's sums by one
/// extra product step, so that no warp has to read them. Each is the sum of three bf16 numbers,
/// which represent an fp32 number exactly. In memory: bf16 [local head][-lse, -delta][row][8],
/// zeros after the parts, so that 64 rows from any row on are an operand.
namespace cpscope::kernels {

inline constexpr int32_t kOffsetParts = 3, kOffsetLanes = 8;

/// bf16 numbers per head.
constexpr int64_t offsets_of_head(int32_t q_rows) { return int64_t{2} * q_rows * kOffsetLanes; }

/// log2(e) scale: the factor from q.k to the exponent of 2. -lse is divided by it, so it is never
/// zero. With a value this small, weights equal those of a scale of zero.
inline float offset_logit_log2(const AttentionShape& shape) {
  constexpr float kLeast = 1e-30f;
  const float factor = shape.scale * static_cast<float>(std::numbers::log2e);
  return std::abs(factor) < kLeast ? kLeast : factor;
}

}  // namespace cpscope::kernels
