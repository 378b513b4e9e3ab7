#pragma once

#include "sim/run/dtype.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace cpscope {

/// The 8-bit formats of OCP's FP8 (E4M3 is its "fn" form: no infinities, one NaN).
enum class Fp8Type : uint8_t {
  e4m3,  // 4 significant bits, smallest normal 2^-6, largest 448
  e5m2   // 3 significant bits, smallest normal 2^-14, largest 57344
};

struct E4m3Format : NarrowFormat<4, -6> {
  static constexpr uint64_t kFirstTooLargeBits = static_cast<uint64_t>(1023 + 9) << 52;
  static constexpr double kLargest = 448;
};
struct E5m2Format : NarrowFormat<3, -14> {
  static constexpr double kLargest = 57'344;
};

constexpr float largest_of(Fp8Type type) {
  return static_cast<float>(type == Fp8Type::e4m3 ? E4m3Format::kLargest : E5m2Format::kLargest);
}

/// Largest relative error of a value in the normal range.
constexpr double unit_roundoff(Fp8Type type) { return type == Fp8Type::e4m3 ? 0x1p-4 : 0x1p-3; }

/// Nearest value, ties to even; values beyond the largest, infinities too, become the largest. NaN
/// stays NaN.
template <class Format>
inline float round_saturating(float value) {
  constexpr auto kLargest = static_cast<float>(Format::kLargest);
  if (value > kLargest) return kLargest;
  if (value < -kLargest) return -kLargest;
  return static_cast<float>(round_to_narrow<Format>(static_cast<double>(value)));
}

inline float round_to(Fp8Type type, float value) {
  return type == Fp8Type::e4m3 ? round_saturating<E4m3Format>(value)
                               : round_saturating<E5m2Format>(value);
}

/// The value that is read back after value * scale has been stored in 8 bits. Products in fp32;
/// `descale` is 1 / scale.
inline float quantise(Fp8Type type, float value, float scale, float descale) {
  return round_to(type, value * scale) * descale;
}

/// The scale that brings `amax` to the largest value of the format, in fp32. An amax of 0, infinity
/// or NaN gives 1; an infinite scale becomes the largest fp32 number (TransformerEngine's rules).
inline float scale_for(Fp8Type type, float amax) {
  if (!(amax > 0) || !std::isfinite(amax)) return 1.0f;
  const float scale = largest_of(type) / amax;
  return std::isfinite(scale) ? scale : std::numeric_limits<float>::max();
}

/// Values that share a scale in MXFP8.
inline constexpr int64_t kMxBlock = 32;

/// The descale of an MXFP8 block of E4M3 values: amax / 448 in fp32, rounded up to a power of two
/// that E8M0 holds (2^-127 .. 2^127).
inline float block_descale(float amax) {
  const float ratio = amax / static_cast<float>(E4m3Format::kLargest);
  if (!(ratio > 0)) return 0x1p-127f;
  if (!std::isfinite(ratio)) return 0x1p127f;
  int exponent = 0;
  if (std::frexp(ratio, &exponent) == 0.5f) --exponent;  // a power of two already
  return std::ldexp(1.0f, exponent < -127 ? -127 : exponent > 127 ? 127 : exponent);
}

/// The same as `quantise` with the scale of a block: dividing by a power of two is exact.
inline float quantise_in_block(float value, float descale) {
  return round_saturating<E4m3Format>(value / descale) * descale;
}

}  // namespace cpscope
