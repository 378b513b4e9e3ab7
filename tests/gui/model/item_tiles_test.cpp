#include "gui/model/item_tiles.h"

#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::ItemTiles;
using gui::PlanIndex;

/// Counts by checking every cell of the item's square.
ItemTiles count_cells_of(const Plan& plan, const ComputeItem& item, int64_t edge) {
  const int64_t rows = plan.rows(item.q_tokens), columns = plan.rows(item.kv_tokens);
  std::vector<char> visible(static_cast<size_t>(rows * columns), 0);
  for (const BandSlice& s : plan.slices_of(item)) {
    for (int64_t q = s.q0; q < s.q1; ++q) {
      for (int64_t k = s.k0; k < s.k1; ++k) {
        const int64_t diagonal = (k - s.k0) - (q - s.q0);
        if (diagonal >= s.lo && diagonal <= s.hi) visible[static_cast<size_t>(q * columns + k)] = 1;
      }
    }
  }
  ItemTiles tiles{edge};
  for (int64_t q0 = 0; q0 < rows; q0 += edge) {
    for (int64_t k0 = 0; k0 < columns; k0 += edge) {
      int64_t seen = 0, area = 0;
      for (int64_t q = q0; q < std::min(rows, q0 + edge); ++q) {
        for (int64_t k = k0; k < std::min(columns, k0 + edge); ++k) {
          seen += visible[static_cast<size_t>(q * columns + k)];
          ++area;
        }
      }
      (seen == 0 ? tiles.empty : seen == area ? tiles.full : tiles.partial) += 1;
      tiles.visible_pairs += seen;
      tiles.computed_pairs += seen == 0 ? 0 : area;
    }
  }
  return tiles;
}

TEST(ItemTiles, AgreeWithLookingAtEveryPair) {
  for_plans_of_seeds(150, [](const PlanIndex& index, uint64_t seed) {
    const Plan& plan = index.plan();
    for (const ComputeItem& item : plan.forward.computes) {
      const int64_t edge = 1 + static_cast<int64_t>(seed % 9);
      const ItemTiles seen = gui::count_item_tiles(plan, item, edge);
      const ItemTiles expected = count_cells_of(plan, item, edge);
      EXPECT_EQ(seen.edge, edge);
      EXPECT_EQ(seen.full, expected.full);
      EXPECT_EQ(seen.partial, expected.partial);
      EXPECT_EQ(seen.empty, expected.empty);
      EXPECT_EQ(seen.visible_pairs, expected.visible_pairs);
      EXPECT_EQ(seen.computed_pairs, expected.computed_pairs);
      EXPECT_EQ(seen.visible_pairs * item.heads.size(), item.visible_pairs);
    }
  });
}

TEST(ItemTiles, CountFullTilesOfLongSequencesWithoutLookingAtThem) {
  Scenario scenario = walker_case({1 << 20}, 1);
  scenario.numerics.backward = false;
  const PlanIndex index(*plan_unless_refused(scenario));
  const ItemTiles tiles =
      gui::count_item_tiles(index.plan(), index.plan().forward.computes[0], 128);
  EXPECT_EQ(tiles.partial, 8192);
  EXPECT_EQ(tiles.full, 8192 * 8191 / 2);
  EXPECT_EQ(tiles.empty, 8192 * 8191 / 2);
}

}  // namespace
}  // namespace cpscope::tests
