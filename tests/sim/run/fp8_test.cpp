#include "sim/run/fp8.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// The value of a code, from the definition of the format; NaN for codes that are no finite number.
double decode(Fp8Type type, int code) {
  const int mantissa_bits = type == Fp8Type::e4m3 ? 3 : 2, bias = type == Fp8Type::e4m3 ? 7 : 15;
  const int exponent_bits = 7 - mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1),
            exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = code & 0x80 ? -1.0 : 1.0;
  const bool is_special = type == Fp8Type::e4m3 ? (code & 0x7f) == 0x7f : exponent == 31;
  if (is_special) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// Positive finite values in ascending order of their codes.
std::vector<double> table_of(Fp8Type type) {
  std::vector<double> table;
  for (int code = 0; code < 128 && !std::isnan(decode(type, code)); ++code)
    table.push_back(decode(type, code));
  return table;
}

TEST(Fp8, KeepsTheValueOfEveryCode) {
  for (const Fp8Type type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    int finite = 0;
    for (int code = 0; code < 256; ++code) {
      const double value = decode(type, code);
      if (std::isnan(value)) continue;
      ++finite;
      const float kept = round_to(type, static_cast<float>(value));
      EXPECT_EQ(kept, value) << "code " << code;
      EXPECT_EQ(std::signbit(kept), std::signbit(value)) << "code " << code;
    }
    EXPECT_EQ(finite, type == Fp8Type::e4m3 ? 254 : 248);
    EXPECT_EQ(table_of(type).back(), largest_of(type));
  }
}

TEST(Fp8, RoundsToTheNearestValueAndTiesToTheEvenCode) {
  for (const Fp8Type type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    const std::vector<double> table = table_of(type);
    for (size_t code = 0; code + 1 < table.size(); ++code) {
      const double low = table[code], high = table[code + 1], middle = (low + high) / 2;
      const auto tie = static_cast<float>(middle);
      ASSERT_EQ(tie, middle);
      const double even = code % 2 == 0 ? low : high;
      for (const float sign : {1.0f, -1.0f}) {
        EXPECT_EQ(round_to(type, sign * tie), sign * even) << middle;
        EXPECT_EQ(round_to(type, sign * std::nextafter(tie, 0.0f)), sign * low) << middle;
        EXPECT_EQ(round_to(type, sign * std::nextafter(tie, 1e9f)), sign * high) << middle;
      }
    }
  }
}

TEST(Fp8, SaturatesAndKeepsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Fp8Type type : {Fp8Type::e4m3, Fp8Type::e5m2}) {
    for (const float large : {largest_of(type) * 1.01f, largest_of(type) * 100, kInfinity}) {
      EXPECT_EQ(round_to(type, large), largest_of(type));
      EXPECT_EQ(round_to(type, -large), -largest_of(type));
    }
    EXPECT_TRUE(std::isnan(round_to(type, std::numeric_limits<float>::quiet_NaN())));
    EXPECT_EQ(round_to(type, std::numeric_limits<float>::denorm_min()), 0.0f);
  }
}

TEST(Fp8, ScalesTheLargestValueToTheLargestCode) {
  EXPECT_EQ(scale_for(Fp8Type::e4m3, 4.0f), 112.0f);
  EXPECT_EQ(scale_for(Fp8Type::e5m2, 4.0f), 14336.0f);
  for (const float none : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(scale_for(Fp8Type::e4m3, none), 1.0f);
  EXPECT_EQ(scale_for(Fp8Type::e4m3, 1e-40f), std::numeric_limits<float>::max());
}

TEST(Fp8, RoundsTheScaleOfABlockUpToAPowerOfTwo) {
  for (int exponent = -100; exponent <= 100; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(block_descale(448 * power), power);
    EXPECT_EQ(block_descale(std::nextafter(448 * power, 1e38f)), 2 * power);
    EXPECT_EQ(block_descale(std::nextafter(448 * power, 0.0f)), power);
  }
  EXPECT_EQ(block_descale(0.0f), 0x1p-127f);
  // No value of a block is clipped.
  for (const float amax : {0.3f, 1.7f, 447.9f, 1e-20f})
    EXPECT_NEAR(quantise_in_block(amax, block_descale(amax)), amax, amax / 16);
}

}  // namespace
}  // namespace cpscope
