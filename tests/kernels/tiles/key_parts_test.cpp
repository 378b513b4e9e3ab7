#include "kernels/tiles/key_parts.h"

#include "kernels/tiles/work_order.h"
#include "tests/kernels/tiles/tile_walk.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

/// Checks the parts of the keys of every tile, and that no tile spans rows without a key in common.
void expect_parts(const TileList& list) {
  ASSERT_EQ(list.parts.size(), list.tiles.size());
  int32_t slots = 0;
  std::vector<int32_t> cut;
  for (size_t t = 0; t < list.tiles.size();) {
    const KeyPart& first = list.parts[t];
    if (first.count > 1) cut.push_back(static_cast<int32_t>(t));
    const OwnedTile& tile = list.tiles[t];
    ASSERT_LE(first.count, kMostKeyParts);
    int32_t least = tile.num_tiles, most = tile.num_tiles, key_end = 0, range_set = 0;
    for (int32_t index = 0; index < first.count; ++index, ++t) {
      const OwnedTile& of_part = list.tiles[t];
      ASSERT_EQ(list.parts[t], (KeyPart{index, first.count, slots}));
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
    ASSERT_TRUE(most - least <= 1 || least >= 8) << "parts of " << least << " to " << most;
    if (first.count > 1) slots += first.count;
  }
  EXPECT_EQ(list.num_part_slots, slots);
  EXPECT_EQ(list.cut_tiles, cut);
}

TEST(KeyParts, HoldEveryVisiblePairOfFewRowsOnce) {
  std::mt19937 random(24);
  int64_t cut = 0;
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    Area area = random_area(random);
    TileShape shape{trial % 2 == 0 ? 4 : 32, 2};
    shape.cuts_keys = true;
    shape.ctas_per_sm = 2;
    const TileList list =
        make_tile_list(area.slices, area.q_rows, area.kv_rows, {2}, shape, TileOwner::queries);
    ASSERT_NO_FATAL_FAILURE(expect_parts(list));
    ASSERT_EQ(list.work.size(), list.tiles.size() * 2);
    const std::vector<int> counts = walk(area, list, TileOwner::queries);
    for (int64_t q = 0; q < area.q_rows; ++q) {
      for (int64_t k = 0; k < area.kv_rows; ++k)
        ASSERT_EQ(counts[q * area.kv_rows + k], sees(area, q, k) ? 1 : 0) << q << ", " << k;
    }
    cut += static_cast<int64_t>(list.cut_tiles.size());
  }
  EXPECT_GT(cut, 100) << "most lists were not cut";
}

TileList list_of_requests(const std::vector<int32_t>& lengths, int32_t heads, int32_t ctas_per_sm) {
  TileShape shape{4, 64};
  shape.cuts_keys = true;
  shape.ctas_per_sm = ctas_per_sm;
  std::vector<BandSlice> slices;
  int32_t q = 0, k = 0;
  for (const int32_t length : lengths) {
    slices.push_back({q, q + 1, k, k + length, -1'000'000, 1'000'000});
    ++q;
    k += length;
  }
  return make_tile_list(slices, q, k, {heads}, shape, TileOwner::queries);
}

/// Streamed tiles of the CTA that has most of them, if each takes the next item as soon as it can.
int64_t most_of_a_cta(const TileList& list) {
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ctas;
  for (int32_t i = 0; i < list.shape.ctas_per_sm * kHopperCtas; ++i) ctas.push(0);
  int64_t most = 0;
  for (const WorkItem& item : list.work) {
    const int64_t end = ctas.top() + list.tiles[item.tile].num_tiles;
    ctas.pop();
    ctas.push(end);
    most = std::max(most, end);
  }
  return most;
}

TEST(KeyParts, GiveEveryCtaAsMuchOfTheKeysAsTheOthers) {
  const auto list_of = [](const std::vector<int32_t>& lengths, int32_t heads) {
    return list_of_requests(lengths, heads, 2);
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
  const TileList many = list_of(std::vector<int32_t>(64, 32'768), 8);
  EXPECT_LE(most_of_a_cta(many), 64 * 512 * 8 / 264 + 4) << "512 equal items would end at 1024";
  EXPECT_TRUE(list_of({400}, 1).cut_tiles.empty()) << "parts have eight tiles or more";
  // One long request among a thousand short ones must not end alone.
  std::vector<int32_t> lengths(1'000, 1'024);
  lengths[77] = 131'072;
  const TileList uneven = list_of(lengths, 8);
  EXPECT_EQ(uneven.cut_tiles.size(), 1U);
  EXPECT_LT(longest_of(uneven), 300) << "of 2048 tiles; each CTA has 546 in all";
}

TEST(KeyParts, FillAllCtasWhereEqualPartsWouldNot) {
  // 64 requests of one tile of heads: 128 equal parts leave 4 of 132 CTAs without work.
  const TileList even = list_of_requests(std::vector<int32_t>(64, 32'768), 1, 1);
  EXPECT_GT(most_of_a_cta(even), 64 * 512 / 132);
  EXPECT_LE(most_of_a_cta(even), 64 * 512 / 132 + 3);
  const TileList pairs = list_of_requests(std::vector<int32_t>(64, 32'768), 2, 1);
  EXPECT_LE(most_of_a_cta(pairs), 2 * 64 * 512 / 132 + 4);
  EXPECT_LT(pairs.work.size(), 3U * 132) << "each part begins anew";
  // One request: a part for every CTA.
  EXPECT_EQ(list_of_requests({131'072}, 1, 1).parts.front().count, 128);
  std::vector<int32_t> lengths;
  std::mt19937 random(7);
  std::lognormal_distribution<double> tiles(4.5, 1.0);
  for (int i = 0; i < 40; ++i) lengths.push_back(64 * static_cast<int32_t>(1 + tiles(random)));
  const TileList drawn = list_of_requests(lengths, 2, 1);
  int64_t all = 0;
  for (const OwnedTile& tile : drawn.tiles) all += 2 * tile.num_tiles;
  EXPECT_LT(most_of_a_cta(drawn), all / 132 * 108 / 100) << all;
}

}  // namespace
}  // namespace cpscope::kernels
