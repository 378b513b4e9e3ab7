#include "reference/round_rows.h"

#include "sim/base/bit_cast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace cpscope::reference {
namespace {

constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kQuietBit = 0x00400000;

/// Magnitude bits with the last `dropped` bits rounded away, ties to even; infinity for a NaN,
/// whose bits might overflow.
template <int kDropped>
int32_t round_bits(int32_t magnitude) {
  const int32_t bounded = std::min(magnitude, kInfinity);
  const int32_t odd = (bounded >> kDropped) & 1;
  return (bounded + (1 << (kDropped - 1)) - 1 + odd) & ~((1 << kDropped) - 1);
}

float round_bf16(float value) {
  const int32_t bits = bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t rounded = magnitude > kInfinity ? kInfinity | kQuietBit : round_bits<16>(magnitude);
  return bit_cast<float>(rounded | (bits ^ magnitude));
}

float round_fp16(float value) {
  constexpr int32_t kSmallestNormal = 0x38800000;  // 2^-14
  constexpr int32_t kTooLarge = 0x47800000;        // 2^16
  const int32_t bits = bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the last bit of value + 0.5 is worth 2^-24, fp16's subnormal step.
  const int32_t small = bit_cast<int32_t>((bit_cast<float>(magnitude) + 0.5f) - 0.5f);
  const int32_t normal = round_bits<13>(magnitude);
  const int32_t finite = magnitude < kSmallestNormal ? small : normal;
  const int32_t limited = finite >= kTooLarge ? kInfinity : finite;
  const int32_t rounded = magnitude > kInfinity ? kInfinity | kQuietBit : limited;
  return bit_cast<float>(rounded | (bits ^ magnitude));
}

/// Rounds the first values with the processor's own conversion, eight at a time, if it has one;
/// returns their number. The bits are those of round_fp16, except for the payload of a NaN.
size_t round_fp16_by_eights([[maybe_unused]] std::span<float> values) {
  size_t done = 0;
#ifdef __F16C__
  for (; done + 8 <= values.size(); done += 8) {
    float* eight = values.data() + done;
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(eight), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(eight, _mm256_cvtph_ps(halves));
  }
#endif
  return done;
}

}  // namespace

void round_rows(Dtype dtype, std::span<float> values) {
  if (dtype == Dtype::bf16) {
    for (float& value : values) value = round_bf16(value);
  } else if (dtype == Dtype::fp16) {
    for (float& value : values.subspan(round_fp16_by_eights(values))) value = round_fp16(value);
  }
}

void round_rows(Dtype dtype, std::span<double> values) { round_values(dtype, values); }

}  // namespace cpscope::reference
