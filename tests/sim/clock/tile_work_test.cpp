#include "sim/clock/tile_work.h"

#include "sim/plan/planner/planner.h"
#include "sim/scenario/random_scenario.h"

#include <algorithm>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// Rows that share a tile, and the tiles of keys that they stream, counted cell by cell.
TileWork count_by_cells(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const TileCost& cost) {
  TileWork work;
  for (int64_t begin = 0; begin < q_rows; begin += cost.tile_rows) {
    const int64_t end = std::min<int64_t>(q_rows, begin + cost.tile_rows);
    std::vector<int64_t> rows_that_see(static_cast<size_t>(kv_rows), 0);
    for (int64_t q = begin; q < end; ++q) {
      for (const BandSlice& slice : slices) {
        if (q < slice.q0 || q >= slice.q1) continue;
        const ColumnRange seen = columns_of_row(slice, q);
        for (int64_t k = seen.begin; k < seen.end; ++k) ++rows_that_see[static_cast<size_t>(k)];
      }
    }
    bool is_touched = false;
    for (int64_t k = 0; k < kv_rows;) {
      if (rows_that_see[static_cast<size_t>(k)] == 0) {
        ++k;
        continue;
      }
      is_touched = true;
      int64_t stop = k, whole = 0, longest_whole = 0;
      for (; stop < kv_rows && rows_that_see[static_cast<size_t>(stop)] > 0; ++stop) {
        whole = rows_that_see[static_cast<size_t>(stop)] == end - begin ? whole + 1 : 0;
        longest_whole = std::max(longest_whole, whole);
      }
      const int64_t all = (stop - k + cost.tile_keys - 1) / cost.tile_keys;
      work.whole += longest_whole / cost.tile_keys;
      work.masked += all - longest_whole / cost.tile_keys;
      k = stop;
    }
    work.owned += is_touched ? 1 : 0;
  }
  return work;
}

TEST(TileCounter, CountsWhatAWalkOverAllCellsCounts) {
  const TileCost cost{16, 8, 0, 1, 1, 1};
  int64_t items = 0, tiles = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const Result<Plan> made = make_plan(random_scenario(9'100'000 + seed));
    if (!made) continue;
    const Plan& plan = made.value();
    TileCounter counter(cost);
    for (const ComputeItem& item : plan.forward.computes) {
      // A striped local order has slices of several strides together: gaps of single keys.
      if (item.num_slices == 0 || plan.layout.kind == LayoutKind::indices) continue;
      const int64_t q_rows = plan.rows(item.q_tokens);
      const TileWork closed = counter.count(plan.slices_of(item), q_rows, 1);
      const TileWork cells =
          count_by_cells(plan.slices_of(item), q_rows, plan.rows(item.kv_tokens), cost);
      ASSERT_EQ(closed.owned, cells.owned) << "seed " << seed;
      // Where slices come in another order than their keys, walks are not joined.
      ASSERT_GE(closed.whole + closed.masked, cells.whole + cells.masked) << "seed " << seed;
      items += 1;
      tiles += cells.whole + cells.masked;
      if (plan.scenario.attention.mask_type == MaskType::slices) continue;
      EXPECT_LE(closed.whole + closed.masked, 1.25 * (cells.whole + cells.masked) + 4)
          << "seed " << seed;
    }
  }
  EXPECT_GT(items, 200);
  EXPECT_GT(tiles, 2000);
}

TEST(TileCounter, KnowsCausalTilesInClosedForm) {
  // 64 rows in tiles of 16, keys in tiles of 8: tile t sees 16 t + 1 keys with all of its rows.
  TileCounter counter({16, 8, 0, 0.5, 1, 2});
  const BandSlice causal{0, 64, 0, 64, -63, 0};
  const TileWork work = counter.count({&causal, 1}, 64, 3);
  EXPECT_EQ(work.owned, 4 * 3);
  EXPECT_EQ(work.whole, (0 + 2 + 4 + 6) * 3);
  EXPECT_EQ(work.masked, (2 + 2 + 2 + 2) * 3);
  EXPECT_DOUBLE_EQ(work.longest_us, 0.5 + 6 + 4);
  EXPECT_DOUBLE_EQ(work.shortest_us, 0.5 + 0 + 4);
  EXPECT_DOUBLE_EQ(work.sum_us, 3 * (4 * 0.5 + 12 + 16));
}

TEST(TileCounter, SpreadsTilesWithATailWhereLongOnesBeginLate) {
  TileWork work{.owned = 6, .sum_us = 60, .longest_us = 14, .shortest_us = 6};
  EXPECT_DOUBLE_EQ(spread_us(work, 4, 0), 60.0 / 4 + 6 * 2 / 4.0);  // two of eight places are free
  EXPECT_DOUBLE_EQ(spread_us(work, 4, 0.5), 60.0 / 4 + 0.5 * 8);
  EXPECT_DOUBLE_EQ(spread_us(work, 100, 0), 14) << "the longest tile ends last";
}

TEST(TileCounter, JoinsDocumentsThatShareATile) {
  TileCounter counter({16, 8, 0, 0, 1, 1});
  const std::vector<BandSlice> documents = {
      {0, 5, 0, 5, -4, 0}, {5, 12, 5, 12, -6, 0}, {12, 16, 12, 16, -3, 0}};
  const TileWork work = counter.count(documents, 16, 1);
  EXPECT_EQ(work.owned, 1);
  EXPECT_EQ(work.whole + work.masked, 2) << "16 keys without a gap";
}

}  // namespace
}  // namespace cpscope
