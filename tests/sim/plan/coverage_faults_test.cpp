#include "sim/plan/check/check_rows.h"
#include "sim/plan/check/pair_print.h"
#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <random>

#include <gtest/gtest.h>

// Faults in computes: bands, pair counts, heads, forward against backward.

namespace cpscope::tests {
namespace {

/// The last compute item of a pass that has slices, so that a checker that only looks at the first
/// item fails the test.
ComputeItem* busy_item(Pass& pass) {
  for (auto item = pass.computes.rbegin(); item != pass.computes.rend(); ++item) {
    if (item->num_slices > 0) return &*item;
  }
  return nullptr;
}

/// Applies `change` to one band, in forward and backward alike, and corrects the pair counts.
/// `change` returns whether it could; the last band that it can change is taken.
Fault change_band(std::function<bool(const Plan&, const ComputeItem&, BandSlice&)> change) {
  return [change](Plan& plan) -> std::optional<Place> {
    for (size_t i = plan.forward.computes.size(); i-- > 0;) {
      const ComputeItem item = plan.forward.computes[i];
      std::vector<BandSlice> bands = slices_of(plan, item);
      for (BandSlice& band : bands) {
        BandSlice changed = band;
        if (!change(plan, item, changed)) continue;
        band = changed;
        set_slices_everywhere(plan, item, bands);
        return Place{};
      }
    }
    return std::nullopt;
  };
}

TEST(GoodPlan, PassesEveryCheckBeforeAnyFaultIsPlanted) {
  for (const GoodPlan& good : good_plans()) {
    const std::vector<CheckResult> checks = inspect_plan(good.plan);
    EXPECT_EQ(checks.size(), 7U) << good.name;
    for (const CheckResult& check : checks)
      EXPECT_TRUE(check.ok) << good.name << ", " << check.name << ": " << check.detail;
    EXPECT_TRUE(check_plan(good.plan).ok()) << good.name;
  }
}

TEST(FaultyPlan, IsAnErrorOfKindFailedAndHasADoorOfItsOwn) {
  Plan plan = good_plans().front().plan;
  plan.forward.computes.back().num_slices = 0;
  const Result<CheckedPlan> checked = check_plan(plan);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().kind, ErrorKind::failed);
  const CheckedPlan admitted = admit_faulty_plan(plan, "a test");
  EXPECT_EQ(admitted.admitted_because(), "a test");
  EXPECT_EQ(admitted.checks().size(), 7U);
}

TEST(CoverageFault, AForwardSliceIsDropped) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        ComputeItem* item = busy_item(plan.forward);
        --item->num_slices;
        return place_of(*item);
      },
      13);
}

TEST(CoverageFault, ASliceIsDroppedAndThePairsCountedAnew) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        const ComputeItem* item = busy_item(plan.forward);
        std::vector<BandSlice> bands = slices_of(plan, *item);
        bands.pop_back();
        set_slices_everywhere(plan, *item, bands);
        return Place{};
      },
      13);
}

TEST(CoverageFault, ABackwardSliceIsDropped) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        ComputeItem* item = busy_item(plan.backward);
        Place place = place_of(*item);
        --item->num_slices;
        // An item of one slice becomes empty: the forward's step is named instead.
        if (item->num_slices == 0) place.step = -1;
        return place;
      },
      13);
}

TEST(CoverageFault, ABackwardItemWorksOnAnothersBands) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        ComputeItem* last = busy_item(plan.backward);
        for (const ComputeItem& other : plan.backward.computes) {
          if (other.num_slices == 0 || other.first_slice == last->first_slice) continue;
          last->first_slice = other.first_slice;
          last->num_slices = other.num_slices;
          last->visible_pairs = other.visible_pairs;
          return place_of(*last);
        }
        return std::nullopt;
      },
      8);
}

TEST(CoverageFault, ASliceIsThereTwice) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        const ComputeItem* item = busy_item(plan.forward);
        std::vector<BandSlice> bands = slices_of(plan, *item);
        bands.push_back(bands.front());
        const Place place = place_of(*item);
        set_slices_everywhere(plan, *item, bands);
        // Ranks that share the work share the fault; the first of them is named.
        const CommType comm = plan.scenario.parallel.comm_type;
        const bool shared = comm == CommType::a2a || comm == CommType::a2a_p2p;
        return shared ? Place{} : place;
      },
      13);
}

TEST(CoverageFault, ABandShowsOneDiagonalMore) {
  expect_caught("coverage", change_band([](const Plan&, const ComputeItem&, BandSlice& band) {
                  ++band.hi;
                  return band.hi < band.k1 - band.k0;
                }),
                8);
}

TEST(CoverageFault, ABandShowsOneDiagonalLess) {
  expect_caught("coverage", change_band([](const Plan&, const ComputeItem&, BandSlice& band) {
                  --band.hi;
                  return true;
                }),
                13);
}

TEST(CoverageFault, ABandStartsOneDiagonalLater) {
  expect_caught("coverage", change_band([](const Plan&, const ComputeItem&, BandSlice& band) {
                  ++band.lo;
                  return true;
                }),
                13);
}

TEST(CoverageFault, ABandMovesByOneDiagonal) {
  // Where the band is a parallelogram the number of pairs stays the same: only its place is wrong.
  expect_caught("coverage", change_band([](const Plan&, const ComputeItem&, BandSlice& band) {
                  ++band.lo;
                  ++band.hi;
                  return true;
                }),
                13);
}

TEST(CoverageFault, ABandMovesByOneColumn) {
  expect_caught("coverage",
                change_band([](const Plan& plan, const ComputeItem& item, BandSlice& band) {
                  if (band.k1 >= plan.rows(item.kv_tokens)) return false;
                  ++band.k0;
                  ++band.k1;
                  return true;
                }),
                8);
}

TEST(CoverageFault, ABandReachesIntoTheNextRow) {
  expect_caught("coverage",
                change_band([](const Plan& plan, const ComputeItem& item, BandSlice& band) {
                  ++band.q1;
                  --band.lo;
                  return band.q1 <= plan.rows(item.q_tokens);
                }),
                8);
}

/// Row of the list that holds padding directly after row - 1, which holds none.
bool is_padding(const Plan& plan, RunListId list, int64_t row, Side side) {
  const int64_t token = expand(plan.list(list)).at(static_cast<size_t>(row));
  for (const SequenceSlot& sequence : plan.layout.slots.sequences) {
    const SlotSide slot = sequence.side(side);
    if (slot.is_valid(token)) return false;
  }
  return true;
}

/// Widens the first band that ends just before padding, on any item.
Fault widen_into_padding(Side side) {
  return [is_query = side == Side::q, side](Plan& plan) -> std::optional<Place> {
    for (const ComputeItem& item : plan.forward.computes) {
      std::vector<BandSlice> bands = slices_of(plan, item);
      const RunListId list = is_query ? item.q_tokens : item.kv_tokens;
      for (BandSlice& band : bands) {
        int32_t& end = is_query ? band.q1 : band.k1;
        if (end >= plan.rows(list) || !is_padding(plan, list, end, side)) continue;
        ++end;
        if (is_query) --band.lo;
        if (!is_query) ++band.hi;
        const Place place = place_of(item);
        set_slices_everywhere(plan, item, bands);
        return plan.scenario.parallel.comm_type == CommType::a2a_p2p ? Place{} : place;
      }
    }
    return std::nullopt;
  };
}

TEST(CoverageFault, AQueryOfPaddingIsComputed) {
  expect_caught("coverage", widen_into_padding(Side::q), 5, "is padding");
}

TEST(CoverageFault, AKeyOfPaddingIsSeen) {
  expect_caught("coverage", widen_into_padding(Side::kv), 5, "is padding");
}

TEST(CoverageFault, ABandLeavesItsBufferAndAnotherMakesUpForIt) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        const ComputeItem* item = busy_item(plan.forward);
        std::vector<BandSlice> bands = slices_of(plan, *item);
        const int64_t pairs = pairs_of(bands);
        const int32_t rows = static_cast<int32_t>(plan.rows(item->q_tokens));
        // The same number of cells in one full column after the end of the query buffer.
        const int32_t height = static_cast<int32_t>(pairs);
        const Place place = place_of(*item);
        set_slices_everywhere(plan, *item, {{rows, rows + height, 0, 1, -(height - 1), 0}});
        const CommType comm = plan.scenario.parallel.comm_type;
        return comm == CommType::a2a || comm == CommType::a2a_p2p ? Place{} : place;
      },
      13);
}

TEST(CoverageFault, ABandStartsBeforeItsBuffer) {
  expect_caught("coverage", change_band([](const Plan&, const ComputeItem&, BandSlice& band) {
                  band.q0 -= band.q1;
                  band.q1 = 0;
                  return true;
                }),
                13);
}

TEST(CoverageFault, OneItemComputesFewerHeadsThanItSays) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        if (plan.scenario.attention.heads < 2) return std::nullopt;
        ComputeItem* item = busy_item(plan.forward);
        const Place place = place_of(*item);
        for (Pass* pass : {&plan.forward, &plan.backward}) {
          for (ComputeItem& other : pass->computes) {
            if (other.rank == item->rank && other.heads.size() > 1) --other.heads.end;
          }
        }
        if (item->visible_pairs == pairs_of(slices_of(plan, *item)) * item->heads.size())
          return std::nullopt;
        return Place{place.rank, -1};
      },
      8);
}

TEST(CoverageFault, TwoItemsCountPairsThatOnlyTogetherAreRight) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        ComputeItem* last = busy_item(plan.forward);
        for (ComputeItem& other : plan.forward.computes) {
          if (other.num_slices == 0 || &other == last) continue;
          last->visible_pairs += 1;
          other.visible_pairs -= 1;
          return Place{};
        }
        return std::nullopt;
      },
      13);
}

TEST(CoverageFault, TheKvOfTwoRingStepsIsSwappedWithItsName) {
  expect_caught(
      "coverage",
      [](Plan& plan) -> std::optional<Place> {
        std::vector<ComputeItem>& items = plan.forward.computes;
        for (size_t i = 0; i < items.size(); ++i) {
          for (size_t j = i + 1; j < items.size(); ++j) {
            const bool swappable = items[i].rank == items[j].rank &&
                                   items[i].kv_tokens != items[j].kv_tokens &&
                                   items[i].step != items[j].step && items[i].num_slices > 0 &&
                                   items[j].num_slices > 0;
            if (!swappable) continue;
            std::swap(items[i].kv, items[j].kv);
            std::swap(items[i].kv_tokens, items[j].kv_tokens);
            return Place{to_index(items[i].rank), -1};
          }
        }
        return std::nullopt;
      },
      4);
}

TEST(CoverageFault, ASlantedBandJoinsRunsOfDifferentStride) {
  for (int32_t rows = 1; rows <= 3; ++rows) {
    for (int32_t columns = 1; columns <= 3; ++columns) {
      Scenario scenario = make_case({12}, 1, LayoutKind::contiguous);
      scenario.attention.mask_type = MaskType::no_mask;
      Plan plan = plan_of(scenario);
      ComputeItem& item = plan.forward.computes.front();
      item.kv_tokens = plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()), 1, 6});
      plan.runs.push_back({0, 12, 2});
      set_slices(plan, item, {{0, rows, 0, columns, 0, 0}});
      item.visible_pairs = std::min(rows, columns);
      const CheckResult check = check_coverage(plan);
      EXPECT_FALSE(check.ok) << rows << " rows, " << columns << " columns";
      // A single row or column fits any stride; there only the number of pairs is too small.
      EXPECT_EQ(check.detail.find("runs of different stride") != std::string::npos,
                rows > 1 && columns > 1)
          << rows << " rows, " << columns << " columns: " << check.detail;
    }
  }
}

/// The result of the check for one rank that sees everything and has these bands.
std::string verdict_on(const std::vector<BandSlice>& bands, int64_t chunk_size = 0) {
  Scenario scenario = make_case({12}, 1, LayoutKind::contiguous);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.chunk_size = chunk_size;
  Plan plan = plan_of(scenario);
  ComputeItem& item = plan.forward.computes.front();
  set_slices(plan, item, bands);
  item.visible_pairs = pairs_of(bands);
  return check_coverage(plan).detail;
}

/// A number for what one item computes: a query list and a key list of one rank, with these bands.
uint64_t print_of(const std::vector<TokenRun>& q, const std::vector<TokenRun>& k,
                  const std::vector<BandSlice>& bands) {
  Plan plan = plan_of(make_case({64}, 1, LayoutKind::contiguous));
  ComputeItem& item = plan.forward.computes.front();
  const auto add_list = [&](const std::vector<TokenRun>& runs) {
    const auto first = static_cast<int64_t>(plan.runs.size());
    plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
    return plan.run_lists.push_back({first, static_cast<int64_t>(runs.size()), count_ids(runs)});
  };
  item.q_tokens = add_list(q);
  item.kv_tokens = add_list(k);
  set_slices(plan, item, bands);
  return PairPrint(plan).of_items(Direction::forward);
}

TEST(PairPrint, SumsABandAsItsCells) {
  const std::vector<std::vector<TokenRun>> lists{
      {{0, 12, 1}}, {{40, 52, 1}}, {{3, 39, 3}}, {{20, 24, 1}, {2, 10, 1}}};
  std::mt19937 random(31);
  const auto draw = [&random](int32_t limit) { return static_cast<int32_t>(random() % limit); };
  int slanted = 0, full = 0;
  while (slanted < 2000 || full < 200) {
    const bool is_full = full < 200 && draw(4) == 0;
    const auto& q = lists[static_cast<size_t>(is_full ? draw(4) : draw(2))];
    const auto& k = lists[static_cast<size_t>(is_full ? draw(4) : draw(2))];
    const bool is_strided = !is_full && draw(3) == 0;
    const int32_t q0 = draw(12), k0 = draw(12), lo = draw(15) - 9;
    BandSlice band{q0, q0 + 1 + draw(12 - q0), k0, k0 + 1 + draw(12 - k0), lo, lo + draw(6)};
    if (is_full) band.lo = -20, band.hi = 20;
    if (count_pairs(band) == 0) continue;
    ++(is_full ? full : slanted);
    const auto& rows = is_strided ? lists[2] : q;
    const auto& columns = is_strided ? lists[2] : k;
    std::vector<BandSlice> cells;
    for (int32_t row = band.q0; row < band.q1; ++row) {
      const ColumnRange seen = columns_of_row(band, row);
      for (auto column = static_cast<int32_t>(seen.begin); column < seen.end; ++column)
        cells.push_back({row, row + 1, column, column + 1, 0, 0});
    }
    ASSERT_EQ(print_of(rows, columns, {band}), print_of(rows, columns, cells))
        << band.q0 << ".." << band.q1 << " x " << band.k0 << ".." << band.k1 << ", " << band.lo
        << ".." << band.hi;
    cells.pop_back();
    ASSERT_NE(print_of(rows, columns, {band}), print_of(rows, columns, cells));
  }
}

TEST(CoverageFault, TwoBandsOfOneItemShareACell) {
  EXPECT_EQ(verdict_on({{0, 12, 0, 12, -11, 11}, {3, 4, 5, 6, 0, 0}}),
            "forward: query token 3 and key token 5 with head 0 are computed by rank 0 in step 0 "
            "and by rank 0 in step 0");
}

TEST(CoverageFault, ASlantedBandReachesOneRowIntoTheNextChunk) {
  const std::string crossing = "crosses a chunk boundary";
  EXPECT_EQ(verdict_on({{0, 4, 0, 4, 0, 0}}, 4).find(crossing), std::string::npos);
  EXPECT_NE(verdict_on({{0, 5, 0, 5, 0, 0}}, 4).find(crossing), std::string::npos);
  EXPECT_NE(verdict_on({{3, 5, 3, 5, 0, 0}}, 4).find(crossing), std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
