#pragma once

#include "sim/base/bit_cast.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>

namespace cpscope {

/// Half the distance from 1 to the next value, so the largest relative error of one rounding:
/// bf16 (8 significant bits) 2^-8, fp16 (11) 2^-11, fp32 (24) 2^-24, fp64 (53) 2^-53.
double unit_roundoff(Dtype dtype);

/// A binary format with `kSignificantBits` (the leading one included) and smallest normal exponent
/// `kMinExponent`, relative to double: the constants that the rounding below needs.
template <int kSignificantBits, int kMinExponent>
struct NarrowFormat {
  static constexpr int kDroppedBits = 53 - kSignificantBits;
  static constexpr uint64_t kDroppedMask = (uint64_t{1} << kDroppedBits) - 1;
  static constexpr uint64_t kHalfMinusOne = kDroppedMask >> 1;
  static constexpr uint64_t kMinNormalBits = static_cast<uint64_t>(1023 + kMinExponent) << 52;
  // The formats here have a symmetric exponent range: the largest exponent is 1 - kMinExponent.
  static constexpr uint64_t kFirstTooLargeBits = static_cast<uint64_t>(1023 + 2 - kMinExponent)
                                                 << 52;
  // Adding this number to a value below the smallest normal leaves a sum whose last bit is the
  // format's subnormal quantum, 2^(kMinExponent + 1 - kSignificantBits).
  static constexpr double kSubnormalShift = bit_cast<double>(
      static_cast<uint64_t>(1023 + kMinExponent + 1 - kSignificantBits + 52) << 52);
};
using Bf16Format = NarrowFormat<8, -126>;
using Fp16Format = NarrowFormat<11, -14>;

/// Nearest value of the narrow format, ties to even, held in a double.
template <class Format>
inline double round_to_narrow(double value) {
  constexpr uint64_t kInfinityBits = uint64_t{0x7ff} << 52;
  const uint64_t bits = bit_cast<uint64_t>(value);
  const uint64_t sign = bits & (uint64_t{1} << 63);
  const uint64_t magnitude = bits ^ sign;
  if (magnitude < Format::kMinNormalBits) {
    // The processor's own addition rounds; the sign is restored because of -0.
    const double shifted = bit_cast<double>(magnitude) + Format::kSubnormalShift;
    return bit_cast<double>(sign | bit_cast<uint64_t>(shifted - Format::kSubnormalShift));
  }
  if (magnitude >= kInfinityBits) return value;
  // Half a unit (less one where the kept part is even) carries into the kept part, and from there
  // into the exponent at a power of two.
  const uint64_t odd = (magnitude >> Format::kDroppedBits) & 1;
  const uint64_t rounded = (magnitude + Format::kHalfMinusOne + odd) & ~Format::kDroppedMask;
  return bit_cast<double>(sign | (rounded < Format::kFirstTooLargeBits ? rounded : kInfinityBits));
}

/// bf16 bits of the nearest value, ties to even. A NaN stays a NaN with its upper payload.
inline uint16_t to_bf16_bits(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    const uint32_t kept = bits >> 16;
    // A payload only in the dropped half would turn the NaN into infinity.
    return static_cast<uint16_t>((kept & 0x7fu) != 0 ? kept : kept | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float from_bf16_bits(uint16_t bits) {
  return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// fp16 bits of the nearest value, ties to even. A NaN stays a NaN with its upper payload.
inline uint16_t to_fp16_bits(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) {  // 65536 and above, infinity, NaN
    if (magnitude <= 0x7f800000u) return static_cast<uint16_t>(sign | 0x7c00u);
    const uint32_t payload = (magnitude >> 13) & 0x3ffu;
    return static_cast<uint16_t>(sign | 0x7c00u | (payload != 0 ? payload : 0x200u));
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: the last bit of value + 0.5 is worth 2^-24
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rebiased = magnitude - (uint32_t{127 - 15} << 23);
  // Values of 65520 and above carry into the exponent of infinity.
  return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + odd) >> 13));
}

inline float from_fp16_bits(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return bit_cast<float>(sign | bit_cast<uint32_t>(value));
  }
  return bit_cast<float>(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
}

/// Nearest value of `dtype`, ties to even; overflow becomes infinity, NaN stays NaN, subnormals are
/// kept. fp64 returns the value unchanged. One rounding, straight from double (no double rounding
/// through fp32).
inline double round_to(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::bf16:
      return round_to_narrow<Bf16Format>(value);
    case Dtype::fp16:
      return round_to_narrow<Fp16Format>(value);
    case Dtype::fp32:
      return static_cast<double>(static_cast<float>(value));
    case Dtype::fp64:
      break;
  }
  return value;
}

/// The same for a float source.
inline float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::bf16:
      return from_bf16_bits(to_bf16_bits(value));
    case Dtype::fp16:
      return from_fp16_bits(to_fp16_bits(value));
    case Dtype::fp32:
    case Dtype::fp64:
      break;
  }
  return value;
}

/// round_to for every element, with the choice of dtype outside the loop.
void round_values(Dtype dtype, std::span<double> values);
void round_values(Dtype dtype, std::span<float> values);

}  // namespace cpscope
