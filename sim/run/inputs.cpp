#include "sim/run/inputs.h"

#include "sim/base/bit_cast.h"
#include "sim/run/dtype.h"

#include <array>
#include <cmath>
#include <optional>

namespace cpscope {

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kLogOfTwo = 0.69314718055994530942;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr uint64_t kGoldenRatioBits = 0x9e3779b97f4a7c15;

/// SplitMix64's finaliser: every input bit changes half of the output bits on average.
constexpr uint64_t mix_bits(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

/// One step of the chain: the key of the pair (`key`, `word`).
constexpr uint64_t absorb(uint64_t key, uint64_t word) {
  return mix_bits((key ^ word) + kGoldenRatioBits);
}

uint64_t row_key(uint64_t seed, InputTensor tensor, const TokenPlace& place, int32_t head) {
  uint64_t key = absorb(0, seed);
  key = absorb(key, static_cast<uint64_t>(tensor));
  key = absorb(key, static_cast<uint64_t>(place.sequence));
  key = absorb(key, static_cast<uint64_t>(place.position));
  key = absorb(key, static_cast<uint64_t>(head));
  return absorb(key, place.is_valid ? 1 : 0);
}

/// Evaluates c[0] + x*(c[1] + x*(...)).
template <size_t kCount>
double evaluate_series(const std::array<double, kCount>& coefficients, double x) {
  double sum = coefficients[kCount - 1];
  for (size_t i = kCount - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// log, sin and cos are implemented here, because the C library's versions differ in the last bit
// between versions and processors, and the inputs of a scenario have to be the same everywhere.
// Additions, products, quotients and square roots are exact by IEEE 754 as long as nothing is
// contracted.

/// Natural log of a normal positive value, error about 2 ulp: 2*atanh((m-1)/(m+1)) after m is
/// brought into [sqrt(1/2), sqrt(2)), where eleven terms of the series leave less than 2^-56.
double log_of(double value) {
  uint64_t bits = bit_cast<uint64_t>(value);
  double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022);
  bits = (bits & 0x000fffffffffffff) | 0x3fe0000000000000;
  double mantissa = bit_cast<double>(bits);  // [1/2, 1)
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    exponent -= 1.0;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  constexpr std::array<double, 11> kAtanh = {2.0,        2.0 / 3.0,  2.0 / 5.0,  2.0 / 7.0,
                                             2.0 / 9.0,  2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0,
                                             2.0 / 17.0, 2.0 / 19.0, 2.0 / 21.0};
  return exponent * kLogOfTwo + s * evaluate_series(kAtanh, s * s);
}

struct CosSin {
  double cos = 0.0;
  double sin = 0.0;
};

/// cos and sin of 2*pi*turn, 0 <= turn < 1: Taylor series on the nearest quarter turn, |y| <= pi/4.
CosSin cos_sin_of_turn(double turn) {
  const double quarters = turn * 4.0;
  const int32_t quadrant = (static_cast<int32_t>(turn * 8.0) + 1) / 2;  // the nearest, 0..4
  const double y = (quarters - static_cast<double>(quadrant)) * (kPi / 2.0);
  // 1/n! with alternating signs, n even for cos and odd for sin.
  constexpr std::array<double, 9> kCos = {1.0,
                                          -1.0 / 2.0,
                                          1.0 / 24.0,
                                          -1.0 / 720.0,
                                          1.0 / 40320.0,
                                          -1.0 / 3628800.0,
                                          1.0 / 479001600.0,
                                          -1.0 / 87178291200.0,
                                          1.0 / 20922789888000.0};
  constexpr std::array<double, 9> kSin = {1.0,
                                          -1.0 / 6.0,
                                          1.0 / 120.0,
                                          -1.0 / 5040.0,
                                          1.0 / 362880.0,
                                          -1.0 / 39916800.0,
                                          1.0 / 6227020800.0,
                                          -1.0 / 1307674368000.0,
                                          1.0 / 355687428096000.0};
  const double cos = evaluate_series(kCos, y * y);
  const double sin = y * evaluate_series(kSin, y * y);
  switch (quadrant & 3) {
    case 0:
      return {.cos = cos, .sin = sin};
    case 1:
      return {.cos = -sin, .sin = cos};
    case 2:
      return {.cos = -cos, .sin = -sin};
    default:
      return {.cos = sin, .sin = -cos};
  }
}

struct NormalPair {
  double even = 0.0;
  double odd = 0.0;
};

/// Elements 2*pair and 2*pair+1 of a row, N(0,1) before rounding (Box-Muller).
NormalPair normal_pair(uint64_t key, int32_t pair) {
  const uint64_t lane = 2 * static_cast<uint64_t>(pair);
  // u is in (0, 1], so that the log is finite; the turn is in [0, 1).
  const double u = static_cast<double>((absorb(key, lane) >> 11) + 1) * 0x1p-53;
  const double turn = static_cast<double>(absorb(key, lane + 1) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * log_of(u));
  const CosSin direction = cos_sin_of_turn(turn);
  return {.even = radius * direction.cos, .odd = radius * direction.sin};
}

/// What the values of a row are made of.
class RowSource {
 public:
  RowSource(const Numerics& numerics, InputTensor tensor, const TokenPlace& place, int32_t head)
      : key_(row_key(numerics.seed, tensor, place, head)) {
    const bool has_logits = tensor == InputTensor::q || tensor == InputTensor::k;
    if (numerics.inputs != InputKind::peaked || !has_logits || !place.is_valid) return;
    const TokenPlace common{place.sequence, place.position % kInputDirections, true};
    direction_ = row_key(numerics.seed, InputTensor::direction, common, 0);
  }

  NormalPair pair(int32_t index) const {
    NormalPair values = normal_pair(key_, index);
    if (!direction_) return values;
    const NormalPair added = normal_pair(*direction_, index);
    values.even += added.even;
    values.odd += added.odd;
    return values;
  }

 private:
  uint64_t key_;
  std::optional<uint64_t> direction_;
};

}  // namespace

double input_value(const Numerics& numerics, InputTensor tensor, const TokenPlace& place,
                   int32_t head, int32_t lane) {
  const NormalPair pair = RowSource(numerics, tensor, place, head).pair(lane / 2);
  return round_to(numerics.dtype, lane % 2 == 0 ? pair.even : pair.odd);
}

void fill_input_row(const Numerics& numerics, InputTensor tensor, const TokenPlace& place,
                    int32_t head, double* row, int32_t lanes) {
  const RowSource source(numerics, tensor, place, head);
  for (int32_t lane = 0; lane + 1 < lanes; lane += 2) {
    const NormalPair pair = source.pair(lane / 2);
    row[lane] = pair.even;
    row[lane + 1] = pair.odd;
  }
  if (lanes % 2 == 1) row[lanes - 1] = source.pair(lanes / 2).even;
  round_values(numerics.dtype, {row, static_cast<size_t>(lanes)});
}

std::vector<double> sink_logits(const Numerics& numerics, int32_t heads) {
  // Sinks are parameters, kept in fp32 whatever the dtype of the activations.
  Numerics precise = numerics;
  if (precise.dtype != Dtype::fp64) precise.dtype = Dtype::fp32;
  const TokenPlace place{.sequence = 0, .position = 0, .is_valid = true};
  std::vector<double> logits(static_cast<size_t>(heads));
  for (int32_t head = 0; head < heads; ++head) {
    logits[static_cast<size_t>(head)] = input_value(precise, InputTensor::sink, place, head, 0);
  }
  return logits;
}

}  // namespace cpscope
