#include "sim/plan/layout.h"

#include "sim/plan/check/plan_check.h"
#include "sim/scenario/random_scenario.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr LayoutKind kLayouts[] = {
    LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
    LayoutKind::striped,    LayoutKind::lpt,        LayoutKind::lpt_local};

/// The ids of all ranks are 0 .. tokens-1, each once.
void expect_partition(const Order& order, int64_t tokens, const std::string& where) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t>& ids : order) all.insert(all.end(), ids.begin(), ids.end());
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(static_cast<size_t>(tokens));
  std::iota(expected.begin(), expected.end(), int64_t{0});
  EXPECT_EQ(all, expected) << where;
}

void expect_refusal(const Scenario& scenario, const std::string& words) {
  const Result<Layout> layout = make_layout(scenario);
  ASSERT_FALSE(layout.ok()) << show(scenario);
  EXPECT_EQ(layout.error().kind, ErrorKind::refused) << show(scenario);
  EXPECT_NE(to_text(layout.error()).find(words), std::string::npos)
      << "'" << words << "' is not in '" << to_text(layout.error()) << "'\n"
      << show(scenario);
}

TEST(Layout, OwnsEveryTokenOnceWhateverTheScenario) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    for (const LayoutKind kind : kLayouts) {
      Scenario scenario = random_scenario(seed);
      scenario.parallel.layout = kind;
      scenario.batch.pad_between_seqs = true;
      const Result<Layout> layout = make_layout(scenario);
      const std::string where = "seed " + std::to_string(seed) + "\n" + show(scenario);
      ASSERT_TRUE(layout.ok() || layout.error().kind == ErrorKind::refused) << where;
      if (!layout.ok()) continue;
      EXPECT_EQ(layout.value().q_runs.size(), static_cast<size_t>(scenario.parallel.cp_size));
      expect_partition(query_order(layout.value()), layout.value().slots.tokens, where);
      expect_partition(key_order(layout.value()), layout.value().slots.kv_tokens, where);
    }
  }
}

TEST(Layout, OwnsKeysAsQueriesUnderSelfAttention) {
  for (const LayoutKind kind : kLayouts) {
    const Layout layout = layout_of(make_case({13, 0, 30, 1}, 3, kind));
    EXPECT_EQ(query_order(layout), key_order(layout)) << to_name(kind);
    EXPECT_TRUE(layout.same_kv) << to_name(kind);
  }
}

TEST(Layout, RoundsEverySlotOfDualChunkToTwiceTheRanks) {
  const Layout layout = layout_of(make_case({1, 8, 9, 0}, 4));
  std::vector<int64_t> slots, begins;
  for (const SequenceSlot& slot : layout.slots.sequences) {
    slots.push_back(slot.q_slot);
    begins.push_back(slot.q_begin);
  }
  EXPECT_EQ(slots, (std::vector<int64_t>{8, 8, 16, 0}));
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 8, 16, 32}));
  EXPECT_EQ(layout.slots.tokens, 32);
}

TEST(Layout, RoundsGivenSlotsOfDualChunkToo) {
  Scenario scenario = make_case({3, 5}, 2);
  scenario.batch.slots = {5, 8};
  scenario.batch.kv_slots = {5, 8};
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(layout.slots.sequences[0].q_slot, 8);
  EXPECT_EQ(layout.slots.sequences[1].q_begin, 8);
  EXPECT_EQ(layout.slots.tokens, 16);
}

TEST(Layout, KeepsGivenSlotsElsewhereAndAddsATail) {
  Scenario scenario = make_case({3, 5}, 3, LayoutKind::contiguous);
  scenario.batch.slots = {5, 8};
  scenario.batch.kv_slots = {5, 8};
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(layout.slots.sequences[0].q_slot, 5);
  EXPECT_EQ(layout.slots.sequences[0].q_valid, 3);
  EXPECT_EQ(layout.slots.sequences[1].q_begin, 5);
  EXPECT_EQ(layout.slots.sequences[1].q_slot, 8);
  EXPECT_EQ(layout.slots.tokens, 15);
  EXPECT_EQ(query_order(layout), (Order{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}, {10, 11, 12, 13, 14}}));
}

TEST(Layout, AddsTheTailThatItsKindNeeds) {
  const auto tokens = [](LayoutKind kind) {
    Scenario scenario = make_case({10, 7}, 4, kind);  // 17 tokens
    scenario.parallel.stripe = 3;
    scenario.parallel.dispatch_chunk = 2;
    return layout_of(scenario).slots.tokens;
  };
  EXPECT_EQ(tokens(LayoutKind::contiguous), 20);
  EXPECT_EQ(tokens(LayoutKind::dual_chunk_packed), 24);
  EXPECT_EQ(tokens(LayoutKind::striped), 24);
  EXPECT_EQ(tokens(LayoutKind::lpt), 24);
}

TEST(Layout, RoundsKeysByTheSameRuleOnTheirOwnLengths) {
  const Layout dual = layout_of(make_cross_case({5, 2}, {9, 17}, 2));
  EXPECT_EQ(dual.slots.sequences[1].kv_begin, 12);
  EXPECT_EQ(dual.slots.sequences[1].kv_slot, 20);
  EXPECT_EQ(dual.slots.kv_tokens, 32);
  EXPECT_EQ(dual.slots.tokens, 12);
  EXPECT_FALSE(dual.same_kv);
  const Layout packed = layout_of(make_cross_case({5}, {9}, 2, LayoutKind::dual_chunk_packed));
  EXPECT_EQ(packed.slots.tokens, 8);
  EXPECT_EQ(packed.slots.kv_tokens, 12);
  EXPECT_EQ(key_order(packed), (Order{{0, 1, 2, 9, 10, 11}, {3, 4, 5, 6, 7, 8}}));
}

TEST(Layout, NamesTheMultipleWhenItMayNotPad) {
  const auto strict = [](std::vector<int64_t> lengths, LayoutKind kind) {
    Scenario scenario = make_case(std::move(lengths), 4, kind);
    scenario.parallel.stripe = 3;
    scenario.batch.pad_between_seqs = false;
    return scenario;
  };
  expect_refusal(strict({16, 12}, LayoutKind::dual_chunk), "not divisible by 8");
  expect_refusal(strict({16, 12}, LayoutKind::dual_chunk), "sequence 1");
  expect_refusal(strict({16, 13}, LayoutKind::contiguous), "not divisible by 4");
  expect_refusal(strict({16, 12}, LayoutKind::dual_chunk_packed), "not divisible by 8");
  expect_refusal(strict({16, 12}, LayoutKind::striped), "not divisible by 12");
  Scenario cross = make_cross_case({8}, {13}, 4, LayoutKind::contiguous);
  cross.batch.pad_between_seqs = false;
  expect_refusal(cross, "kv buffer is not divisible by 4");
}

TEST(Layout, TakesWhatFitsWithoutPadding) {
  for (const LayoutKind kind : kLayouts) {
    Scenario scenario = make_case({24, 48}, 4, kind);
    scenario.parallel.stripe = 3;
    scenario.parallel.dispatch_chunk = 6;
    scenario.batch.pad_between_seqs = false;
    const Layout layout = layout_of(scenario);
    EXPECT_EQ(layout.slots.tokens, 72) << to_name(kind);
    expect_partition(query_order(layout), 72, std::string(to_name(kind)));
  }
}

TEST(Layout, StripesOfAnyWidthGoRoundTheRanks) {
  for (const int64_t stripe : {1, 2, 3}) {
    Scenario scenario = make_case({29}, 4, LayoutKind::striped);
    scenario.parallel.stripe = stripe;
    const Layout layout = layout_of(scenario);
    EXPECT_EQ(layout.slots.tokens, stripe == 1 ? 32 : stripe == 2 ? 32 : 36);
    const Order order = query_order(layout);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      EXPECT_TRUE(std::is_sorted(order[rank].begin(), order[rank].end()));
      for (const int64_t token : order[rank])
        EXPECT_EQ(static_cast<size_t>(token / stripe % 4), rank)
            << "stripe " << stripe << ", token " << token;
    }
  }
}

TEST(Layout, GivesADualChunkRankItsTwoChunksSequenceBySequence) {
  const int64_t ranks = 3;
  const Layout layout = layout_of(make_case({11, 6, 0, 19}, 3));
  const Order order = query_order(layout);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> expected;
    for (const SequenceSlot& slot : layout.slots.sequences) {
      const int64_t chunk = slot.q_slot / (2 * ranks);
      for (const int64_t part : {rank, 2 * ranks - 1 - rank}) {
        for (int64_t i = 0; i < chunk; ++i) expected.push_back(slot.q_begin + part * chunk + i);
      }
    }
    EXPECT_EQ(order[static_cast<size_t>(rank)], expected) << "rank " << rank;
  }
}

TEST(Layout, HoldsSequencesWithoutTokens) {
  for (const LayoutKind kind : kLayouts) {
    Scenario scenario = make_case({0, 24, 0, 0, 24, 0}, 2, kind);
    scenario.parallel.dispatch_chunk = 4;
    const Layout layout = layout_of(scenario);
    expect_partition(query_order(layout), 48, std::string(to_name(kind)));
    EXPECT_EQ(layout.slots.sequences[4].q_begin, 24) << to_name(kind);
    EXPECT_EQ(layout.slots.sequences[5].q_slot, 0) << to_name(kind);
  }
}

TEST(Layout, ImportsAnyPartition) {
  Scenario scenario = make_case({5, 3}, 2, LayoutKind::indices);
  scenario.parallel.imported.ranks = {{7, 0, 2, 4}, {6, 5, 3, 1}};
  scenario.parallel.imported.kv_ranks = {{0, 1}, {2, 3, 4, 5, 6, 7}};
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(query_order(layout), scenario.parallel.imported.ranks);
  EXPECT_EQ(key_order(layout), scenario.parallel.imported.kv_ranks);
  EXPECT_FALSE(layout.same_kv);
}

TEST(Layout, RefusesAnImportedOrderOfAnotherLength) {
  Scenario scenario = make_case({5, 3}, 2, LayoutKind::indices);
  scenario.parallel.imported.ranks = {{0, 1, 2, 3}, {4, 5, 6}};
  scenario.parallel.imported.kv_ranks = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  expect_refusal(scenario, "lists 7 ids, the packed padded batch has 8");
}

TEST(Layout, RefusesMoreTokensThanTheFieldCounts) {
  expect_refusal(make_case({kMaxTokens - 3}, 65536), "exceeds 2147483647 tokens");
  expect_refusal(make_case({kMaxTokens}, 2, LayoutKind::contiguous), "exceeds 2147483647 tokens");
}

TEST(Reorder, IsABijectionAndItsInverse) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Result<Layout> layout = make_layout(random_scenario(seed));
    if (!layout.ok()) continue;
    const ReorderIndex index = reorder_to_sequence(layout.value().q_runs.values());
    const std::vector<int64_t> to_sequence = expand(index.rank_to_sequence);
    const std::vector<int64_t> to_ranks = expand(index.sequence_to_rank);
    std::vector<int64_t> ranked;
    for (const std::vector<int64_t>& ids : query_order(layout.value()))
      ranked.insert(ranked.end(), ids.begin(), ids.end());
    ASSERT_EQ(to_sequence.size(), ranked.size()) << "seed " << seed;
    ASSERT_EQ(to_ranks.size(), ranked.size()) << "seed " << seed;
    const std::vector<int64_t> sequence = expand(index.sequence_tokens);
    EXPECT_TRUE(std::is_sorted(sequence.begin(), sequence.end())) << "seed " << seed;
    for (size_t i = 0; i < ranked.size(); ++i) {
      EXPECT_EQ(sequence[i], ranked[static_cast<size_t>(to_sequence[i])]) << "seed " << seed;
      EXPECT_EQ(ranked[i], sequence[static_cast<size_t>(to_ranks[i])]) << "seed " << seed;
      EXPECT_EQ(to_ranks[static_cast<size_t>(to_sequence[i])], static_cast<int64_t>(i));
    }
  }
}

TEST(Layout, CountsThePaddingOfEveryRank) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Scenario scenario = random_scenario(seed);
    scenario.parallel.layout = kLayouts[seed % std::size(kLayouts)];
    scenario.batch.pad_between_seqs = true;
    const Result<Layout> made = make_layout(scenario);
    if (!made) continue;
    const Layout& layout = made.value();
    for (const Side side : {Side::q, Side::kv}) {
      std::vector<bool> is_valid(static_cast<size_t>(layout.slots.tokens_of(side)), false);
      for (const SequenceSlot& slot : layout.slots.sequences)
        for (int64_t id = slot.side(side).valid_begin(); id < slot.side(side).valid_end(); ++id)
          is_valid[static_cast<size_t>(id)] = true;
      for (const RankId rank : layout.runs(side).ids()) {
        int64_t padding = 0;
        for (const int64_t id : expand(layout.runs(side)[rank]))
          padding += is_valid[static_cast<size_t>(id)] ? 0 : 1;
        EXPECT_EQ(count_padding(layout, side, rank), padding)
            << "seed " << seed << ", rank " << to_index(rank) << "\n"
            << show(scenario);
      }
    }
  }
}

TEST(Reorder, TakesImportedOrdersThatRunBackwards) {
  Scenario scenario = make_case({5, 3}, 2, LayoutKind::indices);
  scenario.parallel.imported.ranks = {{7, 0, 2, 4}, {6, 5, 3, 1}};
  scenario.parallel.imported.kv_ranks = scenario.parallel.imported.ranks;
  const ReorderIndex index = reorder_to_sequence(layout_of(scenario).q_runs.values());
  EXPECT_EQ(expand(index.rank_to_sequence), (std::vector<int64_t>{1, 7, 2, 6, 3, 5, 4, 0}));
  EXPECT_EQ(expand(index.sequence_to_rank), (std::vector<int64_t>{7, 0, 2, 4, 6, 5, 3, 1}));
}

TEST(Layout, CutsEveryRowOfABshdBatchAlone) {
  const auto runs_of_rank_0 = [](LayoutKind kind, QkvFormat format) {
    Scenario scenario = make_case({8, 8}, 2, kind);
    scenario.batch.qkv_format = format;
    return expand(layout_of(scenario).q_runs[RankId{0}]);
  };
  using Ids = std::vector<int64_t>;
  for (const QkvFormat format : {QkvFormat::bshd, QkvFormat::sbhd}) {
    EXPECT_EQ(runs_of_rank_0(LayoutKind::contiguous, format), (Ids{0, 1, 2, 3, 8, 9, 10, 11}));
    EXPECT_EQ(runs_of_rank_0(LayoutKind::dual_chunk_packed, format),
              (Ids{0, 1, 6, 7, 8, 9, 14, 15}));
    EXPECT_EQ(runs_of_rank_0(LayoutKind::striped, format), (Ids{0, 2, 4, 6, 8, 10, 12, 14}));
  }
  EXPECT_EQ(runs_of_rank_0(LayoutKind::contiguous, QkvFormat::thd), (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  // Each row is padded to what its cut needs.
  Scenario odd = make_case({5, 5}, 2, LayoutKind::contiguous);
  odd.batch.qkv_format = QkvFormat::bshd;
  EXPECT_EQ(layout_of(odd).slots.tokens, 12);
  odd.parallel.layout = LayoutKind::striped;
  odd.parallel.stripe = 2;
  EXPECT_EQ(layout_of(odd).slots.tokens, 16);
}

TEST(Layout, RoundsSlotsToTheMultipleOfTheBatchToo) {
  // From a public report: 15401 tokens, logits of 15616 rows.
  Scenario scenario = make_case({1820, 6247, 7334}, 4, LayoutKind::dual_chunk);
  scenario.batch.slot_multiple = 128;
  EXPECT_EQ(layout_of(scenario).slots.tokens, 15616);
  scenario.batch.slot_multiple = 12;  // with 2P = 8: 24
  EXPECT_EQ(layout_of(scenario).slots.sequences[0].q_slot, 1824);
}

/// The valid ids of every sequence, as [begin, end).
std::vector<std::pair<int64_t, int64_t>> valid_ranges(const Layout& layout, Side side) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const SequenceSlot& slot : layout.slots.sequences)
    ranges.emplace_back(slot.side(side).valid_begin(), slot.side(side).valid_end());
  return ranges;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

TEST(PadSide, PutsTheWholePaddingOfASlotBeforeItsTokens) {
  // 2P = 4: slots of 8 and 4, and an empty one that stays empty.
  Scenario scenario = make_case({5, 3, 0}, 2, LayoutKind::dual_chunk);
  EXPECT_EQ(valid_ranges(layout_of(scenario), Side::q), (Ranges{{0, 5}, {8, 11}, {12, 12}}));
  scenario.batch.pad_side = PadSide::left;
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(valid_ranges(layout, Side::q), (Ranges{{3, 8}, {9, 12}, {12, 12}}));
  EXPECT_EQ(layout.slots.sequences[0].q_begin, 0);
  // Rank 0 owns chunks 0 and 3 of both slots as ever, rank 1 those between.
  EXPECT_EQ(query_order(layout), (Order{{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}}));
  EXPECT_EQ(count_padding(layout, Side::q, RankId{0}), 3);
  EXPECT_EQ(count_padding(layout, Side::q, RankId{1}), 1);
}

TEST(PadSide, PutsGivenAndRoundedPaddingBeforeTheTokensOfQueriesAndKeys) {
  Scenario scenario = make_case({3, 2}, 2, LayoutKind::dual_chunk);
  scenario.batch.kv_lengths = {1, 7};
  scenario.batch.slots = {5, 2};  // rounded to 8 and 4
  scenario.batch.kv_slots = {4, 8};
  scenario.batch.self_attention = false;
  scenario.batch.pad_side = PadSide::left;
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(valid_ranges(layout, Side::q), (Ranges{{5, 8}, {10, 12}}));
  EXPECT_EQ(valid_ranges(layout, Side::kv), (Ranges{{3, 4}, {5, 12}}));
}

TEST(PadSide, LeavesTheTailOfALayoutBehindTheLastSlot) {
  for (const LayoutKind kind : {LayoutKind::contiguous, LayoutKind::dual_chunk_packed,
                                LayoutKind::striped, LayoutKind::lpt, LayoutKind::lpt_local}) {
    Scenario scenario = make_case({4, 3}, 2, kind);
    scenario.batch.slots = {6, 3};
    scenario.batch.kv_slots = scenario.batch.slots;
    scenario.parallel.dispatch_chunk = 2;
    scenario.batch.pad_side = PadSide::left;
    const Layout layout = layout_of(scenario);
    EXPECT_GT(layout.slots.tokens, 9) << to_name(kind);
    EXPECT_EQ(valid_ranges(layout, Side::q), (Ranges{{2, 6}, {6, 9}})) << to_name(kind);
  }
}

TEST(PadSide, PutsThePaddingOfEveryBshdRowBeforeItsTokens) {
  // Rows of 5 are padded to 6 for two ranks: one more id before the tokens.
  Scenario scenario = make_case({3, 5}, 2, LayoutKind::contiguous);
  scenario.batch.qkv_format = QkvFormat::bshd;
  scenario.batch.slots = {5, 5};
  scenario.batch.kv_slots = scenario.batch.slots;
  scenario.batch.pad_side = PadSide::left;
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(valid_ranges(layout, Side::q), (Ranges{{3, 6}, {7, 12}}));
  EXPECT_EQ(query_order(layout), (Order{{0, 1, 2, 6, 7, 8}, {3, 4, 5, 9, 10, 11}}));
}

TEST(PadSide, CountsTheWorkOfLptChunksWhereTheTokensAre) {
  // One sequence of 4 tokens at the end of a slot of 8, in chunks of 2: causal areas 0, 0, 3, 7.
  // The longest two go to different ranks, and the empty ones fill both.
  Scenario scenario = make_case({4}, 2, LayoutKind::lpt);
  scenario.batch.slots = scenario.batch.kv_slots = {8};
  scenario.parallel.dispatch_chunk = 2;
  scenario.batch.pad_side = PadSide::left;
  EXPECT_EQ(query_order(layout_of(scenario)), (Order{{0, 1, 6, 7}, {2, 3, 4, 5}}));
  // At the front the areas are 3, 7, 0, 0.
  scenario.batch.pad_side = PadSide::right;
  EXPECT_EQ(query_order(layout_of(scenario)), (Order{{2, 3, 4, 5}, {0, 1, 6, 7}}));
}

TEST(PadSide, OfThePlanIsThatOfTheScenario) {
  Plan plan = plan_of(make_case({5, 3}, 2, LayoutKind::dual_chunk));
  ASSERT_TRUE(check_plan(plan).ok());
  // A plan that is right for the other side.
  plan.scenario.batch.pad_side = PadSide::left;
  const Result<CheckedPlan> checked = check_plan(plan);
  ASSERT_FALSE(checked.ok());
  EXPECT_NE(to_text(checked.error()).find("padding before its tokens, 3 and 3 are due"),
            std::string::npos)
      << to_text(checked.error());
}

}  // namespace
}  // namespace cpscope::tests
