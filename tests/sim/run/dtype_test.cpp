#include "sim/run/dtype.h"

#include "tests/sim/run/special_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// The format as in the standards, for a slow and obvious rounding.
struct Format {
  Dtype dtype;
  int significant_bits;
  int min_exponent;
  int max_exponent;
};
constexpr Format kBf16{Dtype::bf16, 8, -126, 127};
constexpr Format kFp16{Dtype::fp16, 11, -14, 15};
constexpr Format kFp32{Dtype::fp32, 24, -126, 127};

double round_slowly(const Format& format, double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const int quantum = exponent - format.significant_bits + 1;
  // nearbyint rounds ties to even; both scalings are by powers of two in double's range.
  const double units = std::nearbyint(std::scalbn(value, -quantum));
  const double rounded = std::scalbn(units, quantum);
  return std::abs(rounded) >= std::scalbn(1.0, format.max_exponent + 1)
             ? std::copysign(kInfinity, value)
             : rounded;
}

void expect_same(const Format& format, double value) {
  const double expected = round_slowly(format, value);
  const double seen = round_to(format.dtype, value);
  ASSERT_EQ(std::isnan(expected), std::isnan(seen)) << "rounding " << std::hexfloat << value;
  if (std::isnan(expected)) return;
  ASSERT_EQ(expected, seen) << "rounding " << std::hexfloat << value;
  ASSERT_EQ(std::signbit(expected), std::signbit(seen)) << "sign of " << std::hexfloat << value;
}

/// Every non-negative finite value of a 16-bit format, in ascending order.
std::vector<double> all_values(float (*from_bits)(uint16_t)) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const double value = from_bits(static_cast<uint16_t>(bits));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

template <class ToBits, class FromBits>
void expect_every_pattern_returns(ToBits to_bits, FromBits from_bits, Dtype dtype) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = from_bits(bits);
    ASSERT_EQ(bits, to_bits(value)) << "pattern " << std::hex << pattern;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(round_to(dtype, value)));
      ASSERT_TRUE(std::isnan(round_to(dtype, static_cast<double>(value))));
    } else {
      ASSERT_EQ(value, round_to(dtype, value));
      ASSERT_EQ(static_cast<double>(value), round_to(dtype, static_cast<double>(value)));
    }
  }
}

TEST(Dtype, ReturnsEveryBf16PatternUnchanged) {
  expect_every_pattern_returns(to_bf16_bits, from_bf16_bits, Dtype::bf16);
}

TEST(Dtype, ReturnsEveryFp16PatternUnchanged) {
  expect_every_pattern_returns(to_fp16_bits, from_fp16_bits, Dtype::fp16);
}

TEST(Dtype, DecodesFp16AsTheStandardSays) {
  EXPECT_EQ(from_fp16_bits(0x0001), 0x1p-24f);
  EXPECT_EQ(from_fp16_bits(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(from_fp16_bits(0x0400), 0x1p-14f);
  EXPECT_EQ(from_fp16_bits(0x3c00), 1.0f);
  EXPECT_EQ(from_fp16_bits(0x3555), 0.333251953125f);
  EXPECT_EQ(from_fp16_bits(0x7bff), 65504.0f);
  EXPECT_EQ(from_fp16_bits(0xfc00), -std::numeric_limits<float>::infinity());
}

/// Between any two neighbours: the tie goes to the even one, and one step of double next to the tie
/// goes to the nearer one. Rounding through float first would be wrong there.
void expect_ties_to_even(const Format& format, float (*from_bits)(uint16_t)) {
  std::vector<double> values = all_values(from_bits);
  const double beyond = std::scalbn(1.0, format.max_exponent + 1);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_last = i + 1 == values.size();
    const double below = values[i];
    const double above = is_last ? kInfinity : values[i + 1];
    const double middle = below + ((is_last ? beyond : values[i + 1]) - below) / 2;
    const double even = i % 2 == 0 ? below : above;
    for (const double sign : {1.0, -1.0}) {
      ASSERT_EQ(sign * even, round_to(format.dtype, sign * middle)) << "tie " << middle;
      ASSERT_EQ(sign * below, round_to(format.dtype, sign * std::nextafter(middle, 0.0)));
      ASSERT_EQ(sign * above, round_to(format.dtype, sign * std::nextafter(middle, kInfinity)));
    }
    // A float holds every tie of these formats too.
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(even, static_cast<double>(round_to(format.dtype, tie)));
    ASSERT_EQ(below, static_cast<double>(round_to(format.dtype, std::nextafter(tie, 0.0f))));
    if (!is_last || format.dtype == Dtype::fp16) {
      ASSERT_EQ(above, static_cast<double>(
                           round_to(format.dtype, std::nextafter(tie, 2.0f * tie + 1.0f))));
    }
  }
}

TEST(Dtype, RoundsBf16TiesToEvenAndNeighboursToTheNearest) {
  expect_ties_to_even(kBf16, from_bf16_bits);
}

TEST(Dtype, RoundsFp16TiesToEvenAndNeighboursToTheNearest) {
  expect_ties_to_even(kFp16, from_fp16_bits);
}

TEST(Dtype, NeverRoundsTwice) {
  // Through float, 1 + 2^-8 + 2^-40 becomes the tie 1 + 2^-8 first and then 1.
  EXPECT_EQ(round_to(Dtype::bf16, 1.0 + 0x1p-8 + 0x1p-40), 1.0 + 0x1p-7);
  EXPECT_EQ(round_to(Dtype::fp16, 1.0 + 0x1p-11 + 0x1p-40), 1.0 + 0x1p-10);
}

TEST(Dtype, AgreesWithTheSlowDefinitionOnRandomDoubles) {
  std::mt19937_64 random(20260722);
  for (const Format& format : {kBf16, kFp16, kFp32}) {
    for (int i = 0; i < 200'000; ++i) {
      const uint64_t bits = random();
      // Most random 64-bit patterns are out of range; the second half is near the format's range.
      expect_same(format, std::bit_cast<double>(bits));
      const int span = format.max_exponent - format.min_exponent + 2 * format.significant_bits;
      const int exponent = format.min_exponent - format.significant_bits - 2 +
                           static_cast<int>(random() % static_cast<uint64_t>(span));
      expect_same(format, std::scalbn(1.0 + static_cast<double>(bits >> 12) * 0x1p-52, exponent));
    }
  }
}

TEST(Dtype, KeepsSignedZerosInfinitiesAndNaN) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    EXPECT_FALSE(std::signbit(round_to(dtype, 0.0)));
    EXPECT_TRUE(std::signbit(round_to(dtype, -0.0)));
    EXPECT_TRUE(std::signbit(round_to(dtype, -0.0f)));
    EXPECT_EQ(round_to(dtype, kInfinity), kInfinity);
    EXPECT_EQ(round_to(dtype, -kInfinity), -kInfinity);
    EXPECT_TRUE(std::isnan(round_to(dtype, std::numeric_limits<double>::quiet_NaN())));
    EXPECT_TRUE(std::isnan(round_to(dtype, std::numeric_limits<float>::quiet_NaN())));
  }
  // A negative value that underflows gives a negative zero.
  EXPECT_TRUE(std::signbit(round_to(Dtype::bf16, -0x1p-200)));
  EXPECT_TRUE(std::signbit(round_to(Dtype::fp16, -0x1p-26f)));
}

TEST(Dtype, KeepsANaNWhosePayloadIsInTheDroppedBits) {
  const float nan = std::bit_cast<float>(uint32_t{0x7f800001});
  EXPECT_TRUE(std::isnan(from_bf16_bits(to_bf16_bits(nan))));
  EXPECT_TRUE(std::isnan(from_fp16_bits(to_fp16_bits(nan))));
}

TEST(Dtype, LeavesDoublesAlone) {
  EXPECT_EQ(round_to(Dtype::fp64, 0.1), 0.1);
  EXPECT_EQ(round_to(Dtype::fp64, 5e-324), 5e-324);
}

TEST(Dtype, RoundsSpansLikeSingleValues) {
  std::mt19937_64 random(7);
  std::vector<double> values(1001);
  for (double& value : values) value = std::bit_cast<double>((random() >> 2) + (uint64_t{1} << 61));
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    std::vector<double> rounded = values;
    round_values(dtype, std::span<double>(rounded));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i], round_to(dtype, values[i]));
  }
}

TEST(Dtype, NamesTheLargestRelativeErrorOfOneRounding) {
  for (const Format& format : {kBf16, kFp16, kFp32}) {
    const double u = unit_roundoff(format.dtype);
    EXPECT_EQ(round_to(format.dtype, 1.0 + 2 * u), 1.0 + 2 * u);
    EXPECT_EQ(round_to(format.dtype, 1.0 + u), 1.0);
    EXPECT_EQ(round_to(format.dtype, 1.0 + 1.5 * u), 1.0 + 2 * u);
  }
  EXPECT_EQ(unit_roundoff(Dtype::fp64), std::numeric_limits<double>::epsilon() / 2);
}

}  // namespace
}  // namespace cpscope
