#include "reference/round_rows.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cpscope::reference {
namespace {

constexpr int32_t kInfinity = 0x7f800000;
constexpr int32_t kQuietBit = 0x00400000;

/// Magnitude bits with the last `dropped` bits rounded away, ties to even; infinity for a NaN,
/// whose bits might overflow.
template <int dropped>
int32_t round_bits(int32_t magnitude) {
  const int32_t bounded = std::min(magnitude, kInfinity);
  const int32_t odd = (bounded >> dropped) & 1;
  return (bounded + (1 << (dropped - 1)) - 1 + odd) & ~((1 << dropped) - 1);
}

float round_bf16(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  const int32_t rounded = magnitude > kInfinity ? kInfinity | kQuietBit : round_bits<16>(magnitude);
  return std::bit_cast<float>(rounded | (bits ^ magnitude));
}

float round_fp16(float value) {
  constexpr int32_t kSmallestNormal = 0x38800000;  // 2^-14
  constexpr int32_t kTooLarge = 0x47800000;        // 2^16
  const int32_t bits = std::bit_cast<int32_t>(value);
  const int32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the last bit of value + 0.5 is worth 2^-24, fp16's subnormal step.
  const int32_t small = std::bit_cast<int32_t>((std::bit_cast<float>(magnitude) + 0.5f) - 0.5f);
  const int32_t normal = round_bits<13>(magnitude);
  const int32_t finite = magnitude < kSmallestNormal ? small : normal;
  const int32_t limited = finite >= kTooLarge ? kInfinity : finite;
  const int32_t rounded = magnitude > kInfinity ? kInfinity | kQuietBit : limited;
  return std::bit_cast<float>(rounded | (bits ^ magnitude));
}

}  // namespace

void round_rows(Dtype dtype, std::span<float> values) {
  if (dtype == Dtype::bf16) {
    for (float& value : values) value = round_bf16(value);
  } else if (dtype == Dtype::fp16) {
    for (float& value : values) value = round_fp16(value);
  }
}

void round_rows(Dtype dtype, std::span<double> values) { round_values(dtype, values); }

}  // namespace cpscope::reference
