#include "tests/kernels/tiles/tile_walk.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {

bool sees(const Area& area, int64_t q, int64_t k) {
  for (const BandSlice& s : area.slices) {
    const int64_t offset = (k - s.k0) - (q - s.q0);
    if (q >= s.q0 && q < s.q1 && k >= s.k0 && k < s.k1 && offset >= s.lo && offset <= s.hi)
      return true;
  }
  return false;
}

Area random_area(std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int32_t>(random() % std::max<int64_t>(1, n));
  };
  Area area{below(300) + 1, below(300) + 1, {}};
  const int32_t row_cuts = below(4) + 1, column_cuts = below(3) + 1;
  for (int32_t i = 0; i < row_cuts; ++i) {
    for (int32_t j = 0; j < column_cuts; ++j) {
      const auto q = [&](int32_t n) { return static_cast<int32_t>(area.q_rows * n / row_cuts); };
      const auto k = [&](int32_t n) {
        return static_cast<int32_t>(area.kv_rows * n / column_cuts);
      };
      BandSlice slice{q(i), q(i + 1), k(j), k(j + 1), -1000, 1000};
      slice.q0 += below((slice.q1 - slice.q0) / 2);  // padding between blocks
      slice.k0 += below((slice.k1 - slice.k0) / 2);
      if (below(3) > 0) slice.hi = below(200) - 60;
      if (below(3) > 0) slice.lo = slice.hi - below(200);
      if (below(5) > 0 && slice.q0 < slice.q1 && slice.k0 < slice.k1) area.slices.push_back(slice);
    }
  }
  return area;
}

std::vector<int> walk(const Area& area, const TileList& list, TileOwner owner) {
  std::vector<int> counts(static_cast<size_t>(area.q_rows * area.kv_rows), 0);
  const bool queries_own = owner == TileOwner::queries;
  for (const OwnedTile& tile : list.tiles) {
    int32_t num_tiles = 0;
    for (int32_t r = 0; r < tile.num_runs; ++r) {
      const TileRun& run = list.runs[tile.first_run + r];
      EXPECT_LT(run.begin, run.end) << "a run without rows";
      for (int32_t row = run.begin; row < run.end; ++num_tiles) {
        const int32_t walked = list.shape.walked_rows;
        row = list.shape.by_blocks ? (row / walked + 1) * walked : row + walked;
      }
      if (run.is_masked == 0) {
        EXPECT_EQ((run.end - run.begin) % list.shape.walked_rows, 0) << "a short tile without mask";
      }
      for (int32_t walked = run.begin; walked < run.end; ++walked) {
        bool has_partner = false;
        for (int32_t owned = tile.begin; owned < tile.end; ++owned) {
          const int32_t q = queries_own ? owned : walked, k = queries_own ? walked : owned;
          const KeyRange& range = list.ranges[int64_t{run.range_set} * list.q_rows + q];
          const bool visible = k >= range.lo && k < range.hi;
          has_partner |= visible;
          EXPECT_TRUE(visible || run.is_masked != 0)
              << fmt::format("unmasked, but ({}, {}) is hidden", q, k);
          if (visible) ++counts[q * area.kv_rows + k];
        }
        EXPECT_TRUE(has_partner) << fmt::format("row {} is read for nothing", walked);
      }
    }
    EXPECT_EQ(tile.num_tiles, num_tiles) << "of the owned tile at row " << tile.begin;
  }
  return counts;
}

}  // namespace cpscope::kernels
