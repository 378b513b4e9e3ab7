#include "sim/plan/layout_lpt.h"

#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The rule of the contract, trying one candidate at a time.
Held assign_slowly(const std::vector<int64_t>& areas, int32_t ranks) {
  const int64_t n = static_cast<int64_t>(areas.size());
  const int64_t capacity = (n + ranks - 1) / ranks;
  std::vector<bool> assigned(areas.size(), false);
  Held held(static_cast<size_t>(ranks));
  std::vector<int64_t> load(static_cast<size_t>(ranks), 0);
  for (int64_t left = n; left > 0; --left) {
    int64_t chunk = -1;
    for (int64_t id = 0; id < n; ++id) {
      if (!assigned[static_cast<size_t>(id)] &&
          (chunk < 0 || areas[static_cast<size_t>(id)] >= areas[static_cast<size_t>(chunk)]))
        chunk = id;
    }
    const int64_t empty =
        std::count_if(held.begin(), held.end(), [](const auto& chunks) { return chunks.empty(); });
    int32_t best = -1;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const auto& chunks = held[static_cast<size_t>(rank)];
      if (static_cast<int64_t>(chunks.size()) >= capacity) continue;
      if (left == empty && !chunks.empty()) continue;
      if (best < 0 || load[static_cast<size_t>(rank)] < load[static_cast<size_t>(best)])
        best = rank;
    }
    assigned[static_cast<size_t>(chunk)] = true;
    held[static_cast<size_t>(best)].push_back(chunk);
    load[static_cast<size_t>(best)] += areas[static_cast<size_t>(chunk)];
  }
  for (auto& chunks : held) std::sort(chunks.begin(), chunks.end());
  return held;
}

TEST(LongestFirst, AssignsAsTheContractsWordsSay) {
  uint64_t state = 11;
  const auto roll = [&](uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state >> 33) % below);
  };
  for (int round = 0; round < 2000; ++round) {
    const int32_t ranks = static_cast<int32_t>(1 + roll(6));
    std::vector<int64_t> areas(static_cast<size_t>(ranks + roll(12)));
    const uint64_t spread = round % 3 == 0 ? 2 : round % 3 == 1 ? 5 : 100;
    for (int64_t& area : areas) area = roll(spread);
    ASSERT_EQ(assign_longest_first(areas, ranks), assign_slowly(areas, ranks))
        << ranks << " ranks, areas " << show(areas);
  }
}

TEST(LongestFirst, GivesEqualAreasByHigherIdAndEqualLoadsByLowerRank) {
  EXPECT_EQ(assign_longest_first({4, 4, 4, 4}, 2), (Held{{1, 3}, {0, 2}}));
  EXPECT_EQ(assign_longest_first({1, 9, 1}, 3), (Held{{1}, {2}, {0}}));
}

TEST(LongestFirst, GivesNoRankMoreThanItsShareOfChunks) {
  EXPECT_EQ(assign_longest_first({100, 1, 1, 1, 1, 1}, 2), (Held{{0, 1, 2}, {3, 4, 5}}));
}

TEST(LongestFirst, LeavesNoRankEmpty) {
  for (int32_t ranks = 1; ranks <= 6; ++ranks) {
    for (size_t chunks = static_cast<size_t>(ranks); chunks < 14; ++chunks) {
      const Held held = assign_longest_first(std::vector<int64_t>(chunks, 0), ranks);
      for (const std::vector<int64_t>& mine : held)
        EXPECT_FALSE(mine.empty()) << ranks << " ranks, " << chunks << " chunks";
    }
  }
}

Scenario lpt_case(std::vector<int64_t> lengths, int32_t ranks, int64_t chunk) {
  Scenario scenario = make_case(std::move(lengths), ranks, LayoutKind::lpt);
  scenario.parallel.dispatch_chunk = chunk;
  return scenario;
}

TEST(LptLayout, PadsToChunksOnEveryRankAndOrdersChunksAscending) {
  const Layout layout = layout_of(lpt_case({17}, 2, 4));
  EXPECT_EQ(layout.slots.tokens, 24);
  // Areas of the chunks of 4: 10, 26, 42, 58, 17, 0. Rank 0 takes 58, 17 and 0.
  EXPECT_EQ(query_order(layout), (Order{{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
                                        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}));
}

TEST(LptLayout, CutsTheLastChunkShortWhenItMayNotPad) {
  Scenario scenario = lpt_case({17}, 2, 4);
  scenario.batch.pad_between_seqs = false;
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(layout.slots.tokens, 17);
  EXPECT_EQ(query_order(layout),
            (Order{{12, 13, 14, 15, 16}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}));
}

TEST(LptLayout, RefusesFewerChunksThanRanks) {
  Scenario scenario = lpt_case({17}, 4, 8);
  scenario.batch.pad_between_seqs = false;
  const Result<Layout> layout = make_layout(scenario);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.error().kind, ErrorKind::refused);
  EXPECT_NE(to_text(layout.error()).find("3 chunks of 8 tokens, 4 ranks"), std::string::npos)
      << to_text(layout.error());
}

TEST(LptLayout, CutsTheKeysOfCrossAttentionEvenly) {
  Scenario scenario = make_cross_case({16}, {22}, 4, LayoutKind::lpt);
  scenario.parallel.dispatch_chunk = 2;
  const Layout layout = layout_of(scenario);
  EXPECT_EQ(layout.slots.kv_tokens, 24);
  EXPECT_EQ(key_order(layout), (Order{{0, 1, 2, 3, 4, 5},
                                      {6, 7, 8, 9, 10, 11},
                                      {12, 13, 14, 15, 16, 17},
                                      {18, 19, 20, 21, 22, 23}}));
}

TEST(LptLayout, WeighsChunksByTheQueriesOfThePaddedBatch) {
  // Slots of 6 with 2 and 6 valid tokens: chunks of 3 hold 2, 0, 3 and 3 queries.
  Scenario scenario = lpt_case({2, 6}, 2, 3);
  scenario.batch.slots = {6, 6};
  scenario.batch.kv_slots = {6, 6};
  const Layout layout = layout_of(scenario);
  const MaskBands mask = compile_mask(scenario.attention, layout.slots.sequences);
  EXPECT_EQ(chunk_areas(mask, layout.slots, 3), (std::vector<int64_t>{3, 0, 6, 15}));
  EXPECT_EQ(query_order(layout), (Order{{3, 4, 5, 9, 10, 11}, {0, 1, 2, 6, 7, 8}}));
}

}  // namespace
}  // namespace cpscope::tests
