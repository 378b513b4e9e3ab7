#include "sim/plan/decode_items.h"

#include <algorithm>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

TEST(DecodeItems, AreRowsWithManyKeysThatFewOtherRowsSee) {
  const int32_t most = most_decode_rows(128, 128);
  EXPECT_EQ(most, 32);
  EXPECT_EQ(most_decode_rows(192, 128), 16);
  const auto is_decode = [&](const std::vector<BandSlice>& slices, int64_t kv_rows) {
    return is_for_decode(sum_slices(slices), kv_rows, most);
  };
  EXPECT_TRUE(is_decode({{0, 1, 0, 600, -5000, 5000}, {1, 2, 600, 1200, -5000, 5000}}, 1'200));
  EXPECT_TRUE(is_decode({{0, 32, 0, 512, -5000, 5000}}, 600));
  EXPECT_FALSE(is_decode({{0, 33, 0, 512, -5000, 5000}}, 600)) << "too many rows";
  EXPECT_FALSE(is_decode({{0, 32, 0, 511, -5000, 5000}}, 600)) << "too few keys";
  EXPECT_TRUE(is_decode({{3, 4, 0, 512, -5000, 5000}}, 600)) << "rows without keys do not count";
  EXPECT_FALSE(is_decode({}, 600));
  // Rows in an order of their own: each is a slice, and all see the same keys.
  std::vector<BandSlice> apart;
  for (int32_t q = 0; q < 33; ++q) apart.push_back({q, q + 1, 0, 600, -5000, 5000});
  EXPECT_FALSE(is_decode(apart, 600));
  apart.pop_back();
  EXPECT_TRUE(is_decode(apart, 600));
}

TEST(DecodeItems, AreToldBySlices) {
  // Three drafts of 1000 keys, the first of which sees 50 more; and a row that sees the last 100 of
  // 700.
  const std::vector<BandSlice> slices = {
      {0, 3, 0, 1000, -5000, 997}, {0, 1, 2000, 2050, -5000, 5000}, {3, 4, 1000, 1700, 600, 5000}};
  EXPECT_EQ(sum_slices(slices),
            (SliceSums{998 + 999 + 1000 + 50 + 100, 1000 + 50 + 100, 4, 3, 1000}));
  EXPECT_EQ(sum_slices({}), SliceSums{});
}

TEST(DecodeItems, HaveTheKeysOfTheRowThatSeesMost) {
  std::mt19937 random(9);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    BandSlice slice{between(0, 5), 0, between(0, 5), 0, between(-20, 20), 0};
    slice.q1 = slice.q0 + between(1, 12);
    slice.k1 = slice.k0 + between(1, 12);
    slice.hi = slice.lo + between(-1, 25);
    int64_t most = 0;
    for (int32_t q = slice.q0; q < slice.q1; ++q) {
      const ColumnRange seen = columns_of_row(slice, q);
      most = std::max(most, seen.end - seen.begin);
    }
    ASSERT_EQ(sum_slices({&slice, 1}).most_keys, most)
        << fmt::format("rows {} to {}, keys {} to {}, band {} to {}", slice.q0, slice.q1, slice.k0,
                       slice.k1, slice.lo, slice.hi);
  }
}

}  // namespace
}  // namespace cpscope
