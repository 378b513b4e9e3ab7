#include "gui/model/pair_map.h"

#include "gui/model/mask/mask_marks.h"
#include "gui/model/mask/work_map.h"
#include "sim/plan/visible_interval.h"
#include "tests/gui/model/pair_truth.h"
#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::CellAxis;
using gui::CellClass;
using gui::CellWork;
using gui::PairGrid;
using gui::PlanIndex;

/// Grids over the whole square and over parts of it: even cells, single tokens, and uneven cells.
std::vector<PairGrid> some_grids(const PlanIndex& index, uint64_t seed) {
  const int64_t q = index.tokens(Side::q), k = index.tokens(Side::kv);
  std::mt19937_64 dice(seed);
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(dice() % static_cast<uint64_t>(limit));
  };
  std::vector<PairGrid> grids{{gui::cut_evenly(0, q, q), gui::cut_evenly(0, k, k)},
                              {gui::cut_evenly(0, q, 1), gui::cut_evenly(0, k, 1)},
                              {gui::cut_evenly(0, q, 7), gui::cut_evenly(0, k, 5)}};
  for (int n = 0; n < 3; ++n) {
    const int64_t q0 = below(q), k0 = below(k);
    grids.push_back({gui::cut_evenly(q0, q0 + 1 + below(q - q0), 1 + below(9)),
                     gui::cut_evenly(k0, k0 + 1 + below(k - k0), 1 + below(9))});
  }
  PairGrid uneven;
  for (int64_t id = 0; id < q; id += 1 + below(6)) uneven.q.edges.push_back(id);
  for (int64_t id = 0; id < k; id += 1 + below(9)) uneven.k.edges.push_back(id);
  uneven.q.edges.push_back(q);
  uneven.k.edges.push_back(k);
  grids.push_back(uneven);
  return grids;
}

/// Calls look(row, column, i, j) with every pair of every cell.
template <class Look>
void for_each_pair(const PairGrid& grid, Look look) {
  for (int64_t row = 0; row < grid.rows(); ++row)
    for (int64_t column = 0; column < grid.columns(); ++column)
      for (int64_t i = grid.q.edges[row]; i < grid.q.edges[row + 1]; ++i)
        for (int64_t j = grid.k.edges[column]; j < grid.k.edges[column + 1]; ++j)
          look(row, column, i, j);
}

TEST(PairMap, CountsAndClassesAgreeWithSinglePairs) {
  for_plans_of_seeds(90, [](const PlanIndex& index, uint64_t seed) {
    if (index.tokens(Side::q) == 0 || index.tokens(Side::kv) == 0) return;
    const PairTruth truth = write_out(index, Direction::forward);
    for (const PairGrid& grid : some_grids(index, seed)) {
      std::vector<int64_t> seen(static_cast<size_t>(grid.cells()), 0);
      std::vector<char> has_pair(seen.size(), 0);
      std::vector<int64_t> of_tokens(seen.size(), 0);  // pairs with a token on both sides
      for_each_pair(grid, [&](int64_t row, int64_t column, int64_t i, int64_t j) {
        seen[grid.at(row, column)] += truth.is_visible[truth.at(i, j)];
        if (index.is_valid(Side::q, i) && index.is_valid(Side::kv, j))
          has_pair[grid.at(row, column)] = 1, ++of_tokens[grid.at(row, column)];
      });
      const std::vector<int64_t> counts = gui::count_cells(index, grid);
      ASSERT_EQ(counts, seen);
      const std::vector<CellClass> classes = gui::classify_cells(index, grid, counts);
      for (int64_t row = 0; row < grid.rows(); ++row) {
        for (int64_t column = 0; column < grid.columns(); ++column) {
          const int64_t count = seen[grid.at(row, column)];
          const bool is_full = count > 0 && count == of_tokens[grid.at(row, column)];
          const CellClass expected = is_full                          ? CellClass::full
                                     : count > 0                      ? CellClass::partial
                                     : has_pair[grid.at(row, column)] ? CellClass::empty
                                                                      : CellClass::padding;
          ASSERT_EQ(static_cast<int>(classes[grid.at(row, column)]), static_cast<int>(expected))
              << "cell " << row << ", " << column;
        }
      }
    }
  });
}

/// The longest row of steps without work between the first and the last of a cell.
std::pair<int32_t, int32_t> longest_gap(const std::set<int32_t>& steps) {
  std::pair<int32_t, int32_t> gap{0, 0};
  for (auto it = steps.begin(); it != steps.end() && std::next(it) != steps.end(); ++it) {
    if (*std::next(it) - *it - 1 > gap.second - gap.first) gap = {*it + 1, *std::next(it)};
  }
  return gap;
}

TEST(PairMap, KnowsTheLongestGapInTheStepsOfACell) {
  int64_t gaps = 0;
  for_plans_of_seeds(90, [&](const PlanIndex& index, uint64_t seed) {
    if (index.tokens(Side::q) == 0 || index.tokens(Side::kv) == 0) return;
    const PairTruth truth = write_out(index, Direction::forward);
    for (const PairGrid& grid : some_grids(index, seed)) {
      std::vector<std::set<int32_t>> steps(static_cast<size_t>(grid.cells()));
      for_each_pair(grid, [&](int64_t row, int64_t column, int64_t i, int64_t j) {
        const CellWork& work = truth.work[truth.at(i, j)];
        // A pair that several steps compute, one for each share of the heads, has all of them.
        for (int32_t step = work.first_step; work.has_work() && step <= work.last_step; ++step)
          steps[grid.at(row, column)].insert(step);
      });
      const gui::WorkMap map =
          gui::find_work(index, grid, gui::count_cells(index, grid), Direction::forward);
      for (size_t cell = 0; cell < steps.size(); ++cell) {
        const auto [begin, end] = longest_gap(steps[cell]);
        ASSERT_EQ(map.cells[cell].gap_begin, begin);
        ASSERT_EQ(map.cells[cell].gap_end, end);
        gaps += end > begin ? 1 : 0;
      }
    }
  });
  EXPECT_GT(gaps, 40);
}

/// A cell of 1 Mi tokens where a ring ends next to where it begins.
TEST(MaskTime, ShowsWorkOfNowInACellOfTheFirstAndTheLastSteps) {
  CellWork work{0, 1023, 0, 9, CellWork::kManyItems};
  work.gap_begin = 3;
  work.gap_end = 1020;
  const auto when = [&](int32_t step) { return gui::time_of(work, {step, step + 1, 1024}).when; };
  EXPECT_EQ(when(2), gui::PaintWhen::now);
  EXPECT_EQ(when(3), gui::PaintWhen::later);
  EXPECT_EQ(when(500), gui::PaintWhen::later);
  EXPECT_EQ(when(1020), gui::PaintWhen::now);
  EXPECT_NEAR(gui::time_of(work, {500, 501, 1024}).done_share, 3.0 / 7, 1e-6);
  EXPECT_EQ(gui::time_of(work, {1024, 1024, 1024}).when, gui::PaintWhen::done);
}

/// Checks that every cell of every grid has the steps, ranks and item of its single pairs.
void expect_work_of_pairs(const PlanIndex& index, uint64_t seed) {
  if (index.tokens(Side::q) == 0 || index.tokens(Side::kv) == 0) return;
  for (const Direction direction : kDirections) {
    const PairTruth truth = write_out(index, direction);
    for (const PairGrid& grid : some_grids(index, seed)) {
      std::vector<CellWork> expected(static_cast<size_t>(grid.cells()));
      for_each_pair(grid, [&](int64_t row, int64_t column, int64_t i, int64_t j) {
        join(expected[grid.at(row, column)], truth.work[truth.at(i, j)]);
      });
      const gui::WorkMap map =
          gui::find_work(index, grid, gui::count_cells(index, grid), direction);
      ASSERT_EQ(map.coarseness, 1);
      for (size_t cell = 0; cell < expected.size(); ++cell) {
        CellWork a = map.cells[cell];
        const CellWork& b = expected[cell];
        a.gap_begin = a.gap_end = 0;  // has a test of its own
        ASSERT_TRUE(a == b) << "cell " << cell << " of " << grid.columns() << " columns: steps "
                            << a.first_step << ".." << a.last_step << " instead of " << b.first_step
                            << ".." << b.last_step << ", ranks " << a.first_rank << ".."
                            << a.last_rank << " instead of " << b.first_rank << ".." << b.last_rank;
      }
    }
  }
}

TEST(PairMap, StepsRanksAndItemsAgreeWithSinglePairs) {
  for_plans_of_seeds(90, expect_work_of_pairs);
}

TEST(PairMap, StepsOverTheCellsThatAStripeSkips) {
  for (const CommType comm : kCommTypes) {
    for (const int32_t ranks : {2, 3, 4}) {
      for (const int64_t stripe : {1, 2}) {
        Scenario scenario = walker_case({37, 11}, ranks);
        scenario.attention.heads = 12;
        scenario.parallel.comm_type = comm;
        scenario.parallel.a2a_size = ranks == 4 ? 2 : 1;
        scenario.parallel.layout = LayoutKind::striped;
        scenario.parallel.stripe = stripe;
        scenario.batch.pad_between_seqs = true;
        const auto plan = plan_unless_refused(scenario);
        if (!plan) continue;
        SCOPED_TRACE(testing::Message() << to_name(comm) << ", " << ranks << " ranks");
        expect_work_of_pairs(PlanIndex(*plan), static_cast<uint64_t>(ranks));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(PairMap, FineCellsAddUpToCoarseOnesAndToAllVisiblePairs) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    const int64_t q = index.tokens(Side::q), k = index.tokens(Side::kv);
    if (q < 4 || k < 4) return;
    // Every third edge of the fine axis is an edge of the coarse one.
    CellAxis fine_q, fine_k, coarse_q, coarse_k;
    for (int64_t id = 0; id < q; ++id) fine_q.edges.push_back(id);
    for (int64_t id = 0; id < k; ++id) fine_k.edges.push_back(id);
    fine_q.edges.push_back(q);
    fine_k.edges.push_back(k);
    for (int64_t id = 0; id < q; id += 3) coarse_q.edges.push_back(id);
    for (int64_t id = 0; id < k; id += 3) coarse_k.edges.push_back(id);
    coarse_q.edges.push_back(q);
    coarse_k.edges.push_back(k);
    const PairGrid fine{fine_q, fine_k}, coarse{coarse_q, coarse_k};
    const std::vector<int64_t> fine_counts = gui::count_cells(index, fine);
    std::vector<int64_t> sums(static_cast<size_t>(coarse.cells()), 0);
    int64_t all = 0;
    for (int64_t row = 0; row < fine.rows(); ++row) {
      for (int64_t column = 0; column < fine.columns(); ++column) {
        sums[coarse.at(row / 3, column / 3)] += fine_counts[fine.at(row, column)];
        all += fine_counts[fine.at(row, column)];
      }
    }
    ASSERT_EQ(gui::count_cells(index, coarse), sums);
    ASSERT_EQ(all, count_all_visible(index.plan()));
  });
}

TEST(PairMap, CountsTilesAndWasteAsSinglePairsDo) {
  for_plans_of_seeds(90, [](const PlanIndex& index, uint64_t) {
    const PairTruth truth = write_out(index, Direction::forward);
    for (const int64_t edge : {1, 2, 3, 8, 128}) {
      gui::TileCount expected{.edge = edge};
      for (int64_t q0 = 0; q0 < truth.q; q0 += edge) {
        for (int64_t k0 = 0; k0 < truth.k; k0 += edge) {
          int64_t visible = 0, padding = 0, area = 0;
          for (int64_t i = q0; i < std::min(truth.q, q0 + edge); ++i) {
            for (int64_t j = k0; j < std::min(truth.k, k0 + edge); ++j) {
              ++area;
              visible += truth.is_visible[truth.at(i, j)];
              padding += !index.is_valid(Side::q, i) || !index.is_valid(Side::kv, j);
            }
          }
          (visible == 0 ? expected.empty : visible == area ? expected.full : expected.partial) += 1;
          expected.visible_pairs += visible;
          if (visible == 0) continue;
          expected.wasted_pairs += area - visible;
          expected.padding_pairs += padding;
        }
      }
      const gui::TileCount tiles = gui::count_tiles(index, edge);
      ASSERT_EQ(tiles.edge, edge);
      EXPECT_EQ(tiles.full, expected.full) << "edge " << edge;
      EXPECT_EQ(tiles.partial, expected.partial) << "edge " << edge;
      EXPECT_EQ(tiles.empty, expected.empty) << "edge " << edge;
      EXPECT_EQ(tiles.visible_pairs, expected.visible_pairs);
      EXPECT_EQ(tiles.wasted_pairs, expected.wasted_pairs) << "edge " << edge;
      EXPECT_EQ(tiles.padding_pairs, expected.padding_pairs) << "edge " << edge;
    }
  });
}

TEST(PairMap, CutsAnItemIntoBandsThatHoldItsPairsAndNoOthers) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t seed) {
    const PairTruth truth = write_out(index, Direction::forward);
    std::mt19937_64 dice(seed);
    const gui::PairRange inside{static_cast<int64_t>(dice() % 20), truth.q,
                                static_cast<int64_t>(dice() % 20), truth.k - truth.k / 4};
    const auto& items = index.plan().forward.computes;
    for (size_t n = 0; n < items.size(); ++n) {
      std::vector<gui::WorkBand> bands;
      ASSERT_TRUE(gui::cut_item(index, items[n], inside, 1'000'000, bands));
      int64_t pairs = 0;
      for (const gui::WorkBand& band : bands) {
        for (int64_t i = 0; i < band.q.count(); ++i) {
          for (int64_t j = 0; j < band.k.count(); ++j) {
            if (j - i < band.lo || j - i > band.hi) continue;
            ++pairs;
            ASSERT_LT(band.q.at(i), inside.q_end);
            ASSERT_GE(band.q.at(i), inside.q_begin);
            ASSERT_LT(band.k.at(j), inside.k_end);
            ASSERT_GE(band.k.at(j), inside.k_begin);
            const CellWork& work = truth.work[truth.at(band.q.at(i), band.k.at(j))];
            ASSERT_TRUE(work.item == static_cast<int64_t>(n) || work.item == CellWork::kManyItems);
          }
        }
      }
      const PairGrid grid{{{inside.q_begin, inside.q_end}}, {{inside.k_begin, inside.k_end}}};
      if (inside.q_begin >= inside.q_end || inside.k_begin >= inside.k_end) continue;
      int64_t expected = 0;
      for_each_pair(grid, [&](int64_t, int64_t, int64_t i, int64_t j) {
        expected += truth.work[truth.at(i, j)].item == static_cast<int64_t>(n);
      });
      // Pairs of several items (heads split over ranks) have no item number.
      if (expected > 0) {
        ASSERT_EQ(pairs, expected) << "item " << n;
      }
    }
  });
}

TEST(PairMap, BoundsItsWorkWhereStripesAreFinerThanCells) {
  Scenario scenario = walker_case({1 << 16}, 256);
  scenario.parallel.layout = LayoutKind::striped;
  scenario.parallel.stripe = 1;
  scenario.numerics.backward = false;
  const auto plan = plan_unless_refused(scenario);
  ASSERT_TRUE(plan);
  const PlanIndex index(*plan);
  const int64_t tokens = index.tokens(Side::q);
  const PairGrid grid{gui::cut_evenly(0, tokens, 512), gui::cut_evenly(0, tokens, 512)};
  const std::vector<int64_t> counts = gui::count_cells(index, grid);
  const gui::WorkMap map = gui::find_work(index, grid, counts, Direction::forward);
  EXPECT_GT(map.coarseness, 1);
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      const CellWork& cell = map.cells[grid.at(row, column)];
      ASSERT_EQ(cell.has_work(), column <= row) << row << ", " << column;
      if (!cell.has_work()) continue;
      // Every cell of 128 x 128 tokens below the diagonal contains pairs of half of the ranks.
      EXPECT_FALSE(cell.has_one_rank());
      EXPECT_LT(cell.first_step, cell.last_step);
      // The cell's work includes the work of the pair in its corner.
      const int64_t q = row * 128 + 127, k = column * 128;
      const int64_t step = ((q - k) % 256 + 256) % 256;
      ASSERT_TRUE(cell.first_step <= step && step <= cell.last_step);
      ASSERT_TRUE(cell.first_rank <= q % 256 && q % 256 <= cell.last_rank);
      ASSERT_EQ(cell.item, CellWork::kManyItems);
    }
  }
  // With cells of single tokens, every pair has its own step: the distance in stripes on the ring.
  const PairGrid fine{gui::cut_evenly(40'000, 40'300, 300), gui::cut_evenly(20'000, 20'300, 300)};
  const gui::WorkMap exact =
      gui::find_work(index, fine, gui::count_cells(index, fine), Direction::forward);
  EXPECT_EQ(exact.coarseness, 1);
  for (int64_t row = 0; row < 300; row += 7) {
    for (int64_t column = 0; column < 300; column += 11) {
      const CellWork& cell = exact.cells[fine.at(row, column)];
      const int64_t q = 40'000 + row, k = 20'000 + column;
      ASSERT_EQ(cell.first_rank, q % 256);
      ASSERT_EQ(cell.first_step, ((q - k) % 256 + 256) % 256);
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
