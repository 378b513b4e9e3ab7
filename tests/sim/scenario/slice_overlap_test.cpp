#include "sim/scenario/slice_overlap.h"

#include "sim/scenario/portable_random.h"

#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

// From MagiAttention's definition, cell by cell: shares no code with the bands under test.
bool sees(const MaskSlice& slice, int64_t q, int64_t k) {
  if (q < slice.q0 || q >= slice.q1 || k < slice.k0 || k >= slice.k1) return false;
  const int64_t row = q - slice.q0, column = k - slice.k0;
  const int64_t surplus = (slice.k1 - slice.k0) - (slice.q1 - slice.q0);
  const bool below_top = column <= row + surplus, above_bottom = column >= row;
  switch (slice.type) {
    case SliceType::full:
      return true;
    case SliceType::causal:
      return below_top;
    case SliceType::inv_causal:
      return above_bottom;
    case SliceType::bi_causal:
      return below_top && above_bottom;
  }
  return false;
}

std::vector<MaskSlice> draw_slices(uint64_t seed, uint64_t count, uint64_t size) {
  std::vector<MaskSlice> slices;
  uint64_t counter = 0;
  const auto draw = [&](uint64_t below) {
    return static_cast<int64_t>(draw_bits(seed, 0, counter++) % below);
  };
  for (uint64_t i = 0; i < count; ++i) {
    MaskSlice slice;
    slice.q0 = draw(size);
    slice.q1 = slice.q0 + draw(6);
    slice.k0 = draw(size);
    slice.k1 = slice.k0 + draw(6);
    slice.type = static_cast<SliceType>(draw(4));
    slices.push_back(slice);
  }
  return slices;
}

TEST(SliceOverlap, AgreesWithEveryCellOfRandomSlices) {
  constexpr int64_t kSide = 18;
  int64_t sharing_pairs = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const std::vector<MaskSlice> slices = draw_slices(seed, 10, 10);
    std::set<std::pair<int64_t, int64_t>> expected;
    for (size_t a = 0; a < slices.size(); ++a) {
      for (size_t b = a + 1; b < slices.size(); ++b) {
        for (int64_t cell = 0; cell < kSide * kSide; ++cell) {
          const int64_t q = cell / kSide, k = cell % kSide;
          if (sees(slices[a], q, k) && sees(slices[b], q, k)) expected.insert({a, b});
        }
      }
    }
    const SliceOverlapReport report = find_slice_overlaps(slices, 1000);
    std::set<std::pair<int64_t, int64_t>> found;
    for (const SliceOverlap& overlap : report.overlaps) {
      found.insert({overlap.first, overlap.second});
      EXPECT_TRUE(sees(slices[static_cast<size_t>(overlap.first)], overlap.q, overlap.k)) << seed;
      EXPECT_TRUE(sees(slices[static_cast<size_t>(overlap.second)], overlap.q, overlap.k)) << seed;
    }
    ASSERT_EQ(found, expected) << "seed " << seed;
    sharing_pairs += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(sharing_pairs, 1000);
}

TEST(SliceOverlap, LetsBandsOfOneRectangleLieSideBySide) {
  // Below and above the diagonal of one square; the second rectangle excludes the diagonal.
  const std::vector<MaskSlice> slices = {{0, 8, 0, 8, SliceType::causal},
                                         {0, 7, 1, 8, SliceType::inv_causal}};
  EXPECT_TRUE(find_slice_overlaps(slices, 10).overlaps.empty());
}

TEST(SliceOverlap, CallsEmptySlicesHarmless) {
  const std::vector<MaskSlice> slices = {
      {0, 8, 0, 8, SliceType::full}, {4, 4, 0, 8, SliceType::full}, {0, 8, 5, 5, SliceType::full}};
  EXPECT_TRUE(find_slice_overlaps(slices, 10).overlaps.empty());
}

TEST(SliceOverlap, ChecksAHundredThousandTilesOfOneStripQuickly) {
  // All rows overlap, no columns do: naive sweeps become quadratic in this order.
  std::vector<MaskSlice> slices;
  for (int64_t i = 0; i < 100'000; ++i) {
    slices.push_back({0, 1000, 7 * i, 7 * i + 7, SliceType::full});
  }
  const auto start = std::chrono::steady_clock::now();
  const SliceOverlapReport report = find_slice_overlaps(slices, 10);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(report.overlaps.empty());
  EXPECT_TRUE(report.is_complete);
  EXPECT_LT(elapsed.count(), 5.0);
}

TEST(SliceOverlap, StopsAtTheNumberAskedFor) {
  const std::vector<MaskSlice> slices(1000, MaskSlice{0, 10, 0, 10, SliceType::full});
  EXPECT_EQ(find_slice_overlaps(slices, 10).overlaps.size(), 10u);
}

}  // namespace
}  // namespace cpscope
