#include "sim/plan/layout_lpt.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/plan_summary.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

// Worked numbers of MagiAttention v1.1.1 and of PyTorch's context parallel, from publications or
// from runs of their planners.

namespace cpscope::tests {
namespace {

int64_t slice_area(int64_t sq, int64_t sk, SliceType type) {
  Attention attention;
  attention.mask_type = MaskType::slices;
  attention.slices = {{0, sq, 0, sk, type}};
  const std::vector<SequenceSlot> sequences{{0, sq, sq, 0, sk, sk}};
  const MaskBands mask = compile_mask(attention, sequences);
  int64_t area = 0;
  for (const Band& band : mask.bands) area += count_pairs(band);
  return area;
}

TEST(GoldenSlices, HaveTheAreasOfMagiAttention) {
  for (int64_t sq = 1; sq <= 9; ++sq) {
    for (int64_t sk = 1; sk <= 9; ++sk) {
      const int64_t m = std::min(sq, sk);
      EXPECT_EQ(slice_area(sq, sk, SliceType::full), sq * sk) << sq << " x " << sk;
      EXPECT_EQ(slice_area(sq, sk, SliceType::causal), (2 * sk - m + 1) * m / 2)
          << sq << " x " << sk;
      EXPECT_EQ(slice_area(sq, sk, SliceType::inv_causal), (2 * sk - m + 1) * m / 2)
          << sq << " x " << sk;
      EXPECT_EQ(slice_area(sq, sk, SliceType::bi_causal), sq * std::max<int64_t>(0, sk - sq + 1))
          << sq << " x " << sk;
    }
  }
}

TEST(GoldenSlices, SeeNothingWhereMoreQueriesThanKeysAreCausalOnBothSides) {
  EXPECT_EQ(slice_area(8, 4, SliceType::bi_causal), 0);  // upstream's formula says -24
}

TEST(GoldenWindow, OfMoreQueriesThanKeysSeesSeventeenCells) {
  // Upstream's slices give 14: they drop rows that still see keys to their right.
  Scenario scenario = make_cross_case({8}, {4}, 1, LayoutKind::contiguous);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.window_left = 2;
  scenario.attention.window_right = 2;
  EXPECT_EQ(summarise(plan_of(scenario)).visible_pairs, 17);
}

TEST(GoldenWindow, EqualsTheSlicesThatMagiAttentionMakesOfIt) {
  const auto pairs = [](int64_t left, int64_t right, std::vector<MaskSlice> slices) {
    Scenario window = make_case({8}, 1, LayoutKind::contiguous);
    window.attention.mask_type = MaskType::no_mask;
    window.attention.window_left = left;
    window.attention.window_right = right;
    Scenario sliced = make_case({8}, 1, LayoutKind::contiguous);
    sliced.attention.mask_type = MaskType::slices;
    sliced.attention.slices = std::move(slices);
    return std::pair{summarise(plan_of(window)).visible_pairs,
                     summarise(plan_of(sliced)).visible_pairs};
  };
  const auto both = pairs(2, 2,
                          {{0, 2, 0, 4, SliceType::causal},
                           {2, 6, 0, 8, SliceType::bi_causal},
                           {6, 8, 4, 8, SliceType::inv_causal}});
  EXPECT_EQ(both.first, 34);
  EXPECT_EQ(both.second, 34);
  const auto causal =
      pairs(2, 0, {{0, 2, 0, 2, SliceType::causal}, {2, 8, 0, 8, SliceType::bi_causal}});
  EXPECT_EQ(causal.first, 21);
  EXPECT_EQ(causal.second, 21);
}

TEST(GoldenDispatch, GivesLargestFirstToTheLeastLoaded) {
  const Held held = assign_longest_first({8, 7, 6, 5, 4, 2, 2, 2}, 2);
  const std::vector<int64_t> areas{8, 7, 6, 5, 4, 2, 2, 2};
  std::vector<int64_t> loads;
  for (const std::vector<int64_t>& chunks : held) {
    int64_t load = 0;
    for (const int64_t id : chunks) load += areas[static_cast<size_t>(id)];
    loads.push_back(load);
    EXPECT_EQ(chunks.size(), 4U);
  }
  std::sort(loads.begin(), loads.end());
  EXPECT_EQ(loads, (std::vector<int64_t>{17, 19}));
}

TEST(GoldenDispatch, LeavesNoRankEmptyWhereUpstreamDoes) {
  // Upstream: [[0], [3, 4], [1, 2], []] and an error.
  EXPECT_EQ(assign_longest_first({36, 0, 0, 0, 0}, 4), (Held{{0}, {3, 4}, {2}, {1}}));
}

TEST(GoldenDispatch, PairsCausalChunksAsZigzagDoes) {
  for (const int32_t ranks : {2, 4, 8}) {
    std::vector<int64_t> areas;
    for (int64_t chunk = 0; chunk < 2 * ranks; ++chunk) areas.push_back(10 * chunk + 5);
    for (const std::vector<int64_t>& chunks : assign_longest_first(areas, ranks)) {
      ASSERT_EQ(chunks.size(), 2U);
      EXPECT_EQ(chunks[0] + chunks[1], 2 * ranks - 1) << ranks << " ranks";
    }
  }
}

TEST(GoldenHeadTail, OrdersOfPyTorch) {
  const auto order = [](std::vector<int64_t> lengths, int32_t ranks, LayoutKind layout) {
    return query_order(layout_of(make_case(std::move(lengths), ranks, layout)));
  };
  for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed}) {
    EXPECT_EQ(order({8}, 4, layout), (Order{{0, 7}, {1, 6}, {2, 5}, {3, 4}}));
    EXPECT_EQ(order({8}, 2, layout), (Order{{0, 1, 6, 7}, {2, 3, 4, 5}}));
  }
  EXPECT_EQ(order({4, 8, 4}, 2, LayoutKind::dual_chunk),
            (Order{{0, 3, 4, 5, 10, 11, 12, 15}, {1, 2, 6, 7, 8, 9, 13, 14}}));
}

/// Load and KV traffic of one layout; `share` is of what a ring moves.
struct Worked {
  double max_over_mean;
  double share;
};

Worked work_out(Scenario scenario, LayoutKind layout, int64_t chunk = 1) {
  scenario.parallel.layout = layout;
  scenario.parallel.dispatch_chunk = chunk;
  const PlanSummary ring = summarise(plan_of(scenario));
  scenario.parallel.comm_type = CommType::group_cast;
  const PlanSummary cast = summarise(plan_of(scenario));
  EXPECT_EQ(cast.kv_bytes_moved, ring.kv_bytes_necessary) << show(scenario);
  return {ring.rank_max_over_mean,
          static_cast<double>(cast.kv_bytes_moved) / static_cast<double>(ring.kv_bytes_moved)};
}

TEST(GoldenMagi, CausalEightTokensOnFourRanks) {
  const Scenario scenario = make_case({8}, 4);
  const Worked heap = work_out(scenario, LayoutKind::lpt, 1);
  EXPECT_EQ(heap.max_over_mean, 1.0);
  EXPECT_EQ(heap.share, 0.75);
  const Worked contiguous = work_out(scenario, LayoutKind::contiguous);
  EXPECT_NEAR(contiguous.max_over_mean, 1.67, 0.00501);
  EXPECT_EQ(contiguous.share, 0.5);
  for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed}) {
    const Worked zigzag = work_out(scenario, layout);
    EXPECT_EQ(zigzag.max_over_mean, 1.0);
    EXPECT_EQ(zigzag.share, 0.75);
  }
}

TEST(GoldenMagi, SixteenEqualDocumentsOnFourRanks) {
  const Scenario scenario = make_case(std::vector<int64_t>(16, 128), 4);
  const Worked heap = work_out(scenario, LayoutKind::lpt, 64);  // ceil(2048 / (8 * 4))
  EXPECT_EQ(heap.max_over_mean, 1.0);
  EXPECT_EQ(heap.share, 0.0);
  EXPECT_EQ(work_out(scenario, LayoutKind::contiguous).share, 0.0);
  EXPECT_EQ(work_out(scenario, LayoutKind::dual_chunk_packed).share, 0.0);
  const Worked per_document = work_out(scenario, LayoutKind::dual_chunk);
  EXPECT_EQ(per_document.max_over_mean, 1.0);
  EXPECT_EQ(per_document.share, 0.75);
}

int64_t tokens_moved(Scenario scenario, LayoutKind layout, int64_t chunk) {
  const Worked worked = work_out(scenario, layout, chunk);
  const int64_t ring =
      (scenario.parallel.cp_size - 1) * scenario.batch.lengths.front();  // tokens, K and V each
  return static_cast<int64_t>(worked.share * static_cast<double>(ring) + 0.5);
}

TEST(GoldenMagi, CausalWindowOf64OnFourRanks) {
  Scenario scenario = make_case({1024}, 4);
  scenario.attention.window_left = 63;
  EXPECT_EQ(tokens_moved(scenario, LayoutKind::lpt, 32), 1922);
  EXPECT_EQ(tokens_moved(scenario, LayoutKind::contiguous, 1), 189);
  EXPECT_NEAR(work_out(scenario, LayoutKind::lpt, 32).max_over_mean, 1.03, 0.00501);
  EXPECT_NEAR(work_out(scenario, LayoutKind::contiguous).max_over_mean, 1.03, 0.00501);
  const Worked zigzag = work_out(scenario, LayoutKind::dual_chunk);
  EXPECT_NEAR(zigzag.max_over_mean, 1.03, 0.00501);
  EXPECT_NEAR(zigzag.share, 0.12, 0.00501);
}

TEST(GoldenMagi, CausalWindowOf1024Over64KOnEightRanks) {
  Scenario scenario = make_case({65536}, 8);
  scenario.attention.window_left = 1023;
  struct Row {
    int64_t chunk;
    double share, digit;
  };
  for (const Row& row : {Row{128, 0.99, 0.00501}, Row{512, 0.28, 0.00501}, Row{1024, 0.14, 0.00501},
                         Row{2048, 0.07, 0.00501}, Row{4096, 0.03, 0.00501}}) {
    const Worked heap = work_out(scenario, LayoutKind::lpt, row.chunk);
    EXPECT_NEAR(heap.share, row.share, row.digit) << "chunk " << row.chunk;
    EXPECT_LE(heap.max_over_mean, 1.0085) << "chunk " << row.chunk;
  }
  EXPECT_NEAR(work_out(scenario, LayoutKind::contiguous).share, 0.016, 0.000501);
  EXPECT_NEAR(work_out(scenario, LayoutKind::dual_chunk).share, 0.03, 0.00501);
}

}  // namespace
}  // namespace cpscope::tests
