#include "reference/round_rows.h"

#include "sim/run/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

/// Bit patterns a prime apart, and the neighbourhood of every power of two with its ties.
std::vector<float> probing_values() {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4'099)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t fraction :
         {0x000000u, 0x000fffu, 0x001000u, 0x001001u, 0x003000u, 0x007fffu, 0x008000u, 0x008001u,
          0x018000u, 0x7fefffu, 0x7ff000u, 0x7f7fffu, 0x7f8000u, 0x7fffffu}) {
      values.push_back(std::bit_cast<float>((exponent << 23) | fraction));
      values.push_back(-values.back());
    }
  }
  return values;
}

TEST(RoundRows, GivesTheBitsOfRoundToForEveryKindOfValue) {
  const std::vector<float> values = probing_values();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    // Whole rows and single values may use different code.
    std::vector<float> rounded = values, single = values;
    round_rows(dtype, rounded);
    for (float& value : single) round_rows(dtype, std::span<float>(&value, 1));
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = round_to(dtype, values[i]);
      for (const float seen : {rounded[i], single[i]}) {
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(seen)) << to_name(dtype) << " value " << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(seen), std::bit_cast<uint32_t>(expected))
              << to_name(dtype) << " of " << values[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::reference
