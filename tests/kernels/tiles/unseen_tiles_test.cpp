// Streamed tiles that a warpgroup leaves out (OwnedTile::unseen).
#include "kernels/tiles/tile_list.h"
#include "tests/kernels/tiles/tile_walk.h"

#include <algorithm>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

constexpr int32_t kPartRows = 16;
constexpr TileShape kShape{.owned_rows = 48, .walked_rows = 16, .warpgroup_rows = kPartRows};

TileList list_of(const Area& area, TileShape shape) {
  return make_tile_list(area.slices, area.q_rows, area.kv_rows, {}, shape, TileOwner::queries);
}

/// For every tile of the last run, whether one of `rows` sees a key of it.
std::vector<bool> seen_tiles(const RowStretch& rows, const TileRun& run, const TileList& list) {
  std::vector<bool> seen;
  for (int32_t begin = run.begin; begin < run.end; begin += list.shape.walked_rows) {
    bool sees_one = false;
    for (int32_t key = begin; key < std::min(run.end, begin + list.shape.walked_rows); ++key) {
      for (int32_t q = rows.begin; q < rows.end; ++q) {
        const KeyRange& range = list.ranges[int64_t{run.range_set} * list.q_rows + q];
        sees_one = sees_one || (range.lo <= key && key < range.hi);
      }
    }
    seen.push_back(sees_one);
  }
  return seen;
}

TEST(UnseenTiles, AreTheLastOnesOfWhichAWarpgroupSeesNothing) {
  std::mt19937 random(61);
  int64_t left_out = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const Area area = random_area(random);
    const TileList list = list_of(area, kShape);
    for (const OwnedTile& tile : list.tiles) {
      for (int32_t part = 0; part < 3; ++part) {
        const int32_t begin = tile.begin + part * kPartRows;
        const auto count = static_cast<int32_t>(tile.unseen >> 8 * part & 0xff);
        const auto where = fmt::format("trial {}, rows from {} on", trial, begin);
        if (begin >= tile.end || tile.num_runs == 0) {
          ASSERT_EQ(count, 0) << where;
          continue;
        }
        const std::vector<bool> seen =
            seen_tiles({begin, std::min(tile.end, begin + kPartRows)},
                       list.runs[tile.first_run + tile.num_runs - 1], list);
        const auto num_tiles = static_cast<int32_t>(seen.size());
        ASSERT_LE(count, std::min(kMostUnseen, num_tiles - 1)) << where;
        for (int32_t i = num_tiles - count; i < num_tiles; ++i)
          ASSERT_FALSE(seen[i]) << where << ", tile " << i;
        const bool is_most = count == std::min(kMostUnseen, num_tiles - 1);
        ASSERT_TRUE(is_most || seen[num_tiles - 1 - count]) << where << ": one more is unseen";
        left_out += count;
      }
    }
  }
  EXPECT_GT(left_out, 300);
}

TEST(UnseenTiles, AreThoseBehindTheDiagonalOfACausalSquare) {
  const Area area{96, 96, {{0, 96, 0, 96, -96, 0}}};
  // Of six tiles of keys the first warpgroup of the last 48 rows sees four, the second one five.
  EXPECT_EQ(list_of(area, kShape).tiles[1].unseen, 0x000102u);
}

TEST(UnseenTiles, AreNotLookedForWhereKernelsDoNotLeaveThemOut) {
  const Area area{96, 96, {{0, 96, 0, 96, -96, 0}}};
  for (const OwnedTile& tile : list_of(area, {.owned_rows = 48, .walked_rows = 16}).tiles)
    EXPECT_EQ(tile.unseen, 0u);
}

}  // namespace
}  // namespace cpscope::kernels
