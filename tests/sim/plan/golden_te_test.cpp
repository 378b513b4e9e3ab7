#include "sim/plan/mask_bands.h"
#include "sim/plan/planner/needed_rows.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

// TransformerEngine's token orders, ring sections and valid lengths, from worked examples.

namespace cpscope::tests {
namespace {

Order te_order(std::vector<int64_t> lengths, int32_t ranks) {
  return query_order(layout_of(make_case(std::move(lengths), ranks, LayoutKind::dual_chunk)));
}

TEST(GoldenTokenOrder, OfOneSequenceOnTwoRanks) {
  EXPECT_EQ(te_order({8}, 2), (Order{{0, 1, 6, 7}, {2, 3, 4, 5}}));
}

TEST(GoldenTokenOrder, OfTwoPackedSequencesOnTwoRanks) {
  EXPECT_EQ(te_order({8, 4}, 2), (Order{{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}}));
}

TEST(GoldenTokenOrder, OfFourPackedSequencesOnFourRanks) {
  EXPECT_EQ(te_order({8, 8, 8, 16}, 4), (Order{{0, 7, 8, 15, 16, 23, 24, 25, 38, 39},
                                               {1, 6, 9, 14, 17, 22, 26, 27, 36, 37},
                                               {2, 5, 10, 13, 18, 21, 28, 29, 34, 35},
                                               {3, 4, 11, 12, 19, 20, 30, 31, 32, 33}}));
}

TEST(GoldenTokenOrder, OfSixteenTokensOnFourRanksAsJaxComputesIt) {
  EXPECT_EQ(te_order({16}, 4)[1], (std::vector<int64_t>{2, 3, 12, 13}));
}

std::vector<int64_t> gather_to_sequence(std::vector<int64_t> lengths, int32_t ranks) {
  const Layout layout = layout_of(make_case(std::move(lengths), ranks, LayoutKind::dual_chunk));
  return expand(reorder_to_sequence(layout.q_runs.values()).rank_to_sequence);
}

TEST(GoldenGather, OfTwoPackedSequencesOnTwoRanks) {
  EXPECT_EQ(gather_to_sequence({8, 4}, 2),
            (std::vector<int64_t>{0, 1, 6, 7, 8, 9, 2, 3, 4, 10, 11, 5}));
}

TEST(GoldenGather, OfHalfShardsBeforeAndAfterAttention) {
  // One token per half-shard, so that indices of tokens are indices of half-shards.
  const Layout layout = layout_of(make_case({8}, 4, LayoutKind::dual_chunk));
  const ReorderIndex index = reorder_to_sequence(layout.q_runs.values());
  EXPECT_EQ(expand(index.rank_to_sequence), (std::vector<int64_t>{0, 2, 4, 6, 7, 5, 3, 1}));
  EXPECT_EQ(expand(index.sequence_to_rank), (std::vector<int64_t>{0, 7, 1, 6, 2, 5, 3, 4}));
}

TEST(GoldenGather, LeavesAnAllToAllGroupWithDualChunksOfTheRing) {
  // Four ranks, groups of two: group p holds what rank p of two ranks would hold.
  const Layout fine = layout_of(make_case({32, 16}, 4, LayoutKind::dual_chunk));
  const Order coarse = te_order({32, 16}, 2);
  for (int32_t p = 0; p < 2; ++p) {
    const std::vector<TokenRun> group[] = {fine.q_runs[RankId{2 * p}],
                                           fine.q_runs[RankId{2 * p + 1}]};
    EXPECT_EQ(expand(reorder_to_sequence(group).sequence_tokens), coarse[static_cast<size_t>(p)])
        << "group " << p;
  }
}

int64_t valid_tokens(const Scenario& scenario, int32_t rank) {
  const Layout layout = layout_of(scenario);
  int64_t valid = 0;
  for (const int64_t token : expand(layout.q_runs[RankId{rank}])) {
    for (const SequenceSlot& slot : layout.slots.sequences)
      valid += token >= slot.q_begin && token < slot.q_begin + slot.q_valid ? 1 : 0;
  }
  return valid;
}

TEST(GoldenValidLength, OfSevenTokensOnTwoRanks) {
  const Scenario scenario = make_case({7}, 2, LayoutKind::dual_chunk);
  EXPECT_EQ(layout_of(scenario).slots.tokens, 8);
  EXPECT_EQ(valid_tokens(scenario, 0), 3);
  EXPECT_EQ(valid_tokens(scenario, 1), 4);
}

TEST(GoldenValidLength, Of698TokensOnFourRanks) {
  const Scenario scenario = make_case({698}, 4, LayoutKind::dual_chunk);
  EXPECT_EQ(layout_of(scenario).slots.tokens, 704);
  EXPECT_EQ(valid_tokens(scenario, 0), 170);
  for (int32_t rank = 1; rank < 4; ++rank) EXPECT_EQ(valid_tokens(scenario, rank), 176) << rank;
}

TEST(GoldenAllGather, NeedsTheKeysOfAWindowedChunk) {
  // Four chunks of 4, chunk 1, window (5, 5): keys [0, 13).
  Scenario scenario = make_case({16}, 2);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.window_left = 5;
  scenario.attention.window_right = 5;
  const Layout layout = layout_of(scenario);
  const MaskBands mask = compile_mask(scenario.attention, layout.slots.sequences);
  const std::vector<TokenRun> chunk{{4, 8, 1}};
  EXPECT_EQ(visible_keys(make_pieces(chunk, layout.slots, Side::q), mask, layout.slots),
            (std::vector<TokenRun>{{0, 13, 1}}));
}

/// Query tokens and key tokens that one rank computes with in one step.
struct Section {
  std::vector<int64_t> queries, keys;
  int64_t pairs = 0;

  friend bool operator==(const Section&, const Section&) = default;
};

std::string show_section(const Section& section) {
  return "q [" + show(section.queries) + "] x kv [" + show(section.keys) + "], " +
         std::to_string(section.pairs) + " pairs";
}

Section section_of(const Plan& plan, int32_t rank, int32_t step) {
  Section section;
  for (const ComputeItem& item : plan.forward.computes) {
    if (to_index(item.rank) != rank || to_index(item.step) != step) continue;
    const std::vector<int64_t> q = expand(plan.list(item.q_tokens));
    const std::vector<int64_t> k = expand(plan.list(item.kv_tokens));
    section.pairs += item.visible_pairs;
    for (const BandSlice& band : plan.slices_of(item)) {
      for (int64_t row = band.q0; row < band.q1; ++row)
        section.queries.push_back(q[static_cast<size_t>(row)]);
      for (int64_t row = band.k0; row < band.k1; ++row)
        section.keys.push_back(k[static_cast<size_t>(row)]);
    }
  }
  for (std::vector<int64_t>* ids : {&section.queries, &section.keys}) {
    std::sort(ids->begin(), ids->end());
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  }
  return section;
}

void expect_section(const Plan& plan, int32_t rank, int32_t step, const Section& expected) {
  const Section seen = section_of(plan, rank, step);
  EXPECT_EQ(seen, expected) << "rank " << rank << ", step " << step << ": expected "
                            << show_section(expected) << ", seen " << show_section(seen);
}

TEST(GoldenRing, SectionsOfEightTokensOnTwoRanks) {
  const Plan plan = plan_of(make_case({8}, 2));
  expect_section(plan, 0, 0, {{0, 1, 6, 7}, {0, 1, 6, 7}, 10});
  expect_section(plan, 0, 1, {{6, 7}, {2, 3, 4, 5}, 8});
  expect_section(plan, 1, 0, {{2, 3, 4, 5}, {2, 3, 4, 5}, 10});
  expect_section(plan, 1, 1, {{2, 3, 4, 5}, {0, 1}, 8});
}

TEST(GoldenRing, IsDiagonalThenLowerThenUpperOnEveryRank) {
  const int64_t ranks = 4, half = 3;
  const Plan plan = plan_of(make_case({2 * ranks * half}, 4));
  const Order order = te_order({2 * ranks * half}, 4);
  const auto first_half = [&](const std::vector<int64_t>& ids) {
    return std::vector<int64_t>(ids.begin(), ids.begin() + half);
  };
  const auto second_half = [&](const std::vector<int64_t>& ids) {
    return std::vector<int64_t>(ids.begin() + half, ids.end());
  };
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<int64_t>& own = order[static_cast<size_t>(rank)];
    for (int32_t step = 0; step < ranks; ++step) {
      const size_t source = static_cast<size_t>((rank - step + ranks) % ranks);
      const int64_t area = 2 * half * half;
      Section expected{own, own, area + half};
      if (step > 0 && step <= rank) expected = {own, first_half(order[source]), area};
      if (step > rank) expected = {second_half(own), order[source], area};
      expect_section(plan, rank, step, expected);
    }
  }
}

TEST(GoldenRing, WithoutAMaskWorksOnEverythingInEveryStep) {
  Scenario scenario = make_case({16}, 4);
  scenario.attention.mask_type = MaskType::no_mask;
  const Plan plan = plan_of(scenario);
  const Order order = te_order({16}, 4);
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t step = 0; step < 4; ++step) {
      expect_section(plan, rank, step,
                     {order[static_cast<size_t>(rank)],
                      order[static_cast<size_t>((rank - step + 4) % 4)], 16});
    }
  }
}

TEST(GoldenRing, OfAContiguousCausalSequenceSkipsTheRanksBehind) {
  const Plan plan = plan_of(make_case({16}, 4, LayoutKind::contiguous));
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t step = 0; step < 4; ++step) {
      const int64_t expected = step == 0 ? 10 : step <= rank ? 16 : 0;
      EXPECT_EQ(section_of(plan, rank, step).pairs, expected)
          << "rank " << rank << ", step " << step;
    }
  }
}

TEST(GoldenRing, TurnsRoundBackwardWhenTheSumsEndAtHome) {
  // Backward step i computes with the KV of rank r+1+i; with P hops it has the forward's direction.
  for (const DkvHops hops : {DkvHops::home, DkvHops::ring}) {
    Scenario scenario = make_case({16}, 4);
    scenario.numerics.dkv_hops = hops;
    const Plan plan = plan_of(scenario);
    for (const ComputeItem& item : plan.backward.computes) {
      const int32_t rank = to_index(item.rank), step = to_index(item.step);
      const int32_t source = hops == DkvHops::home ? (rank + 1 + step) % 4 : (rank - step + 4) % 4;
      EXPECT_EQ(to_index(item.kv_tokens), to_index(plan.kv_lists[RankId{source}]))
          << "rank " << rank << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
