#include "kernels/tiles/key_parts.h"

#include "tests/kernels/tiles/tile_walk.h"

#include <algorithm>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

/// Checks the parts of the keys of every tile, and that no tile spans rows without a key in common.
void expect_parts(const TileList& list) {
  ASSERT_EQ(list.parts.size(), list.tiles.size());
  int32_t slots = 0, cut = 0;
  for (size_t t = 0; t < list.tiles.size();) {
    const KeyPart& first = list.parts[t];
    const OwnedTile& tile = list.tiles[t];
    ASSERT_LE(first.count, kMostKeyParts);
    int32_t least = tile.num_tiles, most = tile.num_tiles, key_end = 0, range_set = 0;
    for (int32_t index = 0; index < first.count; ++index, ++t) {
      const OwnedTile& of_part = list.tiles[t];
      ASSERT_EQ(list.parts[t], (KeyPart{index, first.count, slots, cut}));
      ASSERT_EQ(of_part.begin, tile.begin);
      ASSERT_EQ(of_part.end, tile.end);
      least = std::min(least, of_part.num_tiles);
      most = std::max(most, of_part.num_tiles);
      for (int32_t r = 0; r < of_part.num_runs; ++r) {
        const TileRun& run = list.runs[of_part.first_run + r];
        ASSERT_TRUE(run.range_set > range_set || run.begin >= key_end) << "keys are out of order";
        range_set = run.range_set;
        key_end = run.end;
      }
    }
    ASSERT_LE(most - least, 1) << "parts of other lengths";
    if (first.count == 1) continue;
    slots += first.count;
    ++cut;
  }
  EXPECT_EQ(list.num_part_slots, slots);
  EXPECT_EQ(list.num_cut_tiles, cut);
}

TEST(KeyParts, HoldEveryVisiblePairOfFewRowsOnce) {
  std::mt19937 random(24);
  int64_t cut = 0;
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    Area area = random_area(random);
    TileShape shape{trial % 2 == 0 ? 4 : 32, 2};
    shape.cuts_keys = true;
    const TileList list =
        make_tile_list(area.slices, area.q_rows, area.kv_rows, {2}, shape, TileOwner::queries);
    ASSERT_NO_FATAL_FAILURE(expect_parts(list));
    ASSERT_EQ(list.work.size(), list.tiles.size() * 2);
    const std::vector<int> counts = walk(area, list, TileOwner::queries);
    for (int64_t q = 0; q < area.q_rows; ++q) {
      for (int64_t k = 0; k < area.kv_rows; ++k)
        ASSERT_EQ(counts[q * area.kv_rows + k], sees(area, q, k) ? 1 : 0) << q << ", " << k;
    }
    cut += list.num_cut_tiles;
  }
  EXPECT_GT(cut, 100) << "most lists were not cut";
}

TEST(KeyParts, GiveEveryCtaAsMuchOfTheKeysAsTheOthers) {
  TileShape shape{4, 64};
  shape.cuts_keys = true;
  const auto list_of = [&](const std::vector<int32_t>& lengths, int32_t heads) {
    std::vector<BandSlice> slices;
    int32_t q = 0, k = 0;
    for (const int32_t length : lengths) {
      slices.push_back({q, q + 1, k, k + length, -1'000'000, 1'000'000});
      ++q;
      k += length;
    }
    return make_tile_list(slices, q, k, {heads}, shape, TileOwner::queries);
  };
  const auto longest_of = [](const TileList& list) {
    int32_t longest = 0;
    for (const OwnedTile& tile : list.tiles) longest = std::max(longest, tile.num_tiles);
    return longest;
  };
  // 264 CTAs at once. Requests do not share tiles, although they are neighbours.
  const TileList one = list_of({131'072}, 8);
  EXPECT_EQ(one.parts.front().count, 33);
  EXPECT_EQ(list_of(std::vector<int32_t>(16, 8'192), 8).parts.front().count, 2) << "256 items";
  EXPECT_EQ(list_of(std::vector<int32_t>(64, 32'768), 8).num_cut_tiles, 0) << "512 items";
  EXPECT_EQ(list_of({400}, 1).num_cut_tiles, 0) << "parts have eight tiles or more";
  // One long request among a thousand short ones must not end alone.
  std::vector<int32_t> lengths(1'000, 1'024);
  lengths[77] = 131'072;
  const TileList uneven = list_of(lengths, 8);
  EXPECT_EQ(uneven.num_cut_tiles, 1);
  EXPECT_LT(longest_of(uneven), 300) << "of 2048 tiles; each CTA has 546 in all";
}

}  // namespace
}  // namespace cpscope::kernels
