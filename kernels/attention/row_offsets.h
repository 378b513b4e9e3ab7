#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/fp8_numbers.h"
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

/// What sums of products are multiplied by: q.k, to the exponent of 2, and d_out.v, to dP. Offsets
/// are divided by them, so they are never zero. With values this small, weights equal those of a
/// scale of zero.
struct OffsetFactors {
  float logit_log2 = 1.0f;
  float d_p = 1.0f;
};

/// fp8: of a shape that is_fp8.
inline OffsetFactors offset_factors(const AttentionShape& shape, const Fp8Numbers* fp8 = nullptr) {
  constexpr float kLeast = 1e-30f;
  OffsetFactors factors;
  factors.logit_log2 = shape.scale * static_cast<float>(std::numbers::log2e);
  if (shape.is_fp8) {
    factors.logit_log2 *= fp8->descale * fp8->descale;
    factors.d_p = fp8->descale * fp8->d_out_descale;
  }
  for (float* const factor : {&factors.logit_log2, &factors.d_p})
    if (std::abs(*factor) < kLeast) *factor = kLeast;
  return factors;
}

}  // namespace cpscope::kernels
