#include "sim/plan/local_keys.h"

#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

// Local lengths of decoders, and the ranks that append to their caches.

namespace cpscope::tests {
namespace {

/// Keys of the first `length` tokens on a rank, which are split round robin in blocks (vLLM's
/// interleave, TensorRT-LLM's tokens_per_block).
int64_t keys_on(int64_t length, int64_t block, int64_t ranks, int64_t rank) {
  const int64_t round = block * ranks;
  return length / round * block + std::clamp(length % round - rank * block, int64_t{0}, block);
}

/// Requests with some drafts each, whose caches begin on rank 0.
Scenario make_decoder(std::vector<int64_t> drafts, std::vector<int64_t> keys, int32_t ranks,
                      int64_t block) {
  Scenario scenario = make_cross_case(std::move(drafts), std::move(keys), ranks,
                                      LayoutKind::striped, CommType::gather_q);
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.parallel.stripe = block;
  for (int64_t& slot : scenario.batch.kv_slots)
    slot = (slot + block * ranks - 1) / (block * ranks) * (block * ranks);
  return scenario;
}

TEST(LocalKeys, AreThoseOfDealtBlocksUpToEachDraft) {
  for (const int32_t ranks : {1, 2, 3, 8}) {
    for (const int64_t block : {1, 4, 16}) {
      const Scenario scenario = make_decoder({1, 3, 2}, {130, 47, 5}, ranks, block);
      const Result<std::vector<LocalKeys>> counts = count_local_keys(scenario, layout_of(scenario));
      ASSERT_TRUE(counts);
      ASSERT_EQ(counts.value().size(), 6u);
      for (const LocalKeys& one : counts.value()) {
        const auto s = static_cast<size_t>(one.sequence);
        const int64_t seen =
            scenario.batch.kv_lengths[s] - scenario.batch.lengths[s] + one.query + 1;
        for (int32_t rank = 0; rank < ranks; ++rank)
          EXPECT_EQ(one.keys[static_cast<size_t>(rank)], keys_on(seen, block, ranks, rank))
              << ranks << " ranks, blocks of " << block << ", sequence " << s << ", query "
              << one.query;
      }
    }
  }
}

TEST(LocalKeys, FollowAnyMaskAndLayout) {
  Scenario scenario = make_case({40, 24}, 4);
  scenario.attention.window_left = 9;
  const Result<std::vector<LocalKeys>> counts = count_local_keys(scenario, layout_of(scenario));
  ASSERT_TRUE(counts);
  const Order order = key_order(layout_of(scenario));
  for (const LocalKeys& one : counts.value()) {
    const int64_t begin = one.sequence == 0 ? 0 : 40;
    for (size_t rank = 0; rank < order.size(); ++rank) {
      const auto visible = std::count_if(order[rank].begin(), order[rank].end(), [&](int64_t id) {
        const int64_t key = id - begin;
        return key >= std::max<int64_t>(0, one.query - 9) && key <= one.query;
      });
      EXPECT_EQ(one.keys[rank], visible) << one.sequence << ", " << one.query << ", " << rank;
    }
  }
}

TEST(LocalKeys, CountAKeyThatEveryRankHoldsOnItsOwnerAlone) {
  Scenario scenario = make_case({40, 24}, 4);
  scenario.parallel.comm_type = CommType::p2p;
  scenario.parallel.kv_replicated = 7;
  const Result<std::vector<LocalKeys>> counts = count_local_keys(scenario, layout_of(scenario));
  ASSERT_TRUE(counts);
  for (const LocalKeys& one : counts.value())
    EXPECT_EQ(std::accumulate(one.keys.begin(), one.keys.end(), int64_t{0}), one.query + 1)
        << one.sequence << ", " << one.query;
}

TEST(GrowingCache, AppendsTokenAfterTokenToTheRankOfItsBlock) {
  const Scenario scenario = make_decoder({1, 1}, {30, 7}, 3, 4);
  const Result<std::vector<AppendedKey>> appended = grow_cache(scenario, layout_of(scenario), 25);
  ASSERT_TRUE(appended);
  ASSERT_EQ(appended.value().size(), 50u);
  for (const AppendedKey& key : appended.value()) {
    const int64_t before = scenario.batch.kv_lengths[static_cast<size_t>(key.sequence)];
    EXPECT_EQ(key.position, before + key.step - 1);
    EXPECT_EQ(key.rank, key.position / 4 % 3);
    EXPECT_EQ(key.row, keys_on(key.position, 4, 3, key.rank));
    for (int32_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(key.keys[static_cast<size_t>(rank)], keys_on(key.position + 1, 4, 3, rank));
  }
}

TEST(GrowingCache, IsRejectedWhereKeysWouldMove) {
  Scenario scenario = make_decoder({1, 1}, {30, 7}, 3, 4);
  scenario.parallel.layout = LayoutKind::dual_chunk;
  const Result<std::vector<AppendedKey>> moved = grow_cache(scenario, layout_of(scenario), 1);
  ASSERT_FALSE(moved);
  EXPECT_NE(moved.error().complaints.front().what.find("layout dual_chunk"), std::string::npos);
  scenario = make_decoder({1, 1}, {30, 7}, 3, 4);
  scenario.batch.kv_slots = {30, 7};
  const Result<std::vector<AppendedKey>> within = grow_cache(scenario, layout_of(scenario), 1);
  ASSERT_FALSE(within);
  EXPECT_EQ(within.error().complaints.front().what,
            "keys of sequence 1 begin at token 30, within a round of 3 stripes of 4");
}

TEST(GrowingCache, OfSequencesThatAreSharedOrPaddedOtherwiseIsRejectedByTheKey) {
  const auto refusal = [](const Scenario& scenario) {
    const Result<std::vector<AppendedKey>> grown = grow_cache(scenario, layout_of(scenario), 1);
    return grown ? Complaint{} : grown.error().complaints.front();
  };
  Scenario left = make_decoder({1, 1}, {30, 7}, 3, 4);
  left.batch.pad_side = PadSide::left;
  EXPECT_EQ(refusal(left).what,
            "a cache that grows requires padding behind its keys: pad_side left");
  EXPECT_EQ(refusal(left).hint, "use pad_side = \"right\"");
  Scenario shared = make_case({30, 7}, 3, LayoutKind::striped);
  shared.parallel.group_rule = GroupRule::given;
  shared.parallel.cp_sizes = {2, 1};
  EXPECT_EQ(refusal(shared).what,
            "a cache that grows requires that all ranks share every sequence: cp_sizes");
}

TEST(GrowingCache, OfOneRankMayBeginAnywhere) {
  Scenario scenario = make_decoder({1, 1}, {30, 7}, 1, 4);
  scenario.batch.kv_slots = {30, 7};
  const Result<std::vector<AppendedKey>> appended = grow_cache(scenario, layout_of(scenario), 2);
  ASSERT_TRUE(appended);
  EXPECT_EQ(appended.value().back().row, 8);
  EXPECT_EQ(appended.value().back().keys, std::vector<int64_t>{9});
}

TEST(GrowingCache, IsAlignedByAHintThatPadsNoQuery) {
  Scenario scenario = make_decoder({1, 1}, {30, 7}, 3, 4);
  scenario.batch.kv_slots = {30, 7};
  const int64_t queries = layout_of(scenario).slots.tokens;
  const Result<std::vector<AppendedKey>> within = grow_cache(scenario, layout_of(scenario), 1);
  ASSERT_FALSE(within);
  EXPECT_EQ(within.error().complaints.front().hint,
            "use kv_slots = [36, 12], so that the keys of every sequence begin on rank 0");
  scenario.batch.kv_slots = {36, 12};
  EXPECT_TRUE(grow_cache(scenario, layout_of(scenario), 1));
  EXPECT_EQ(layout_of(scenario).slots.tokens, queries);
}

TEST(GrowingCache, OfAPromptIsAlignedByBothSlots) {
  Scenario scenario = make_case({30, 7}, 3, LayoutKind::striped);
  scenario.parallel.stripe = 4;
  const Result<std::vector<AppendedKey>> within = grow_cache(scenario, layout_of(scenario), 1);
  ASSERT_FALSE(within);
  EXPECT_EQ(within.error().complaints.front().hint,
            "use slot_multiple = 12, or slots that are multiples of it, so that the keys of every "
            "sequence begin on rank 0");
  scenario.batch.slot_multiple = 12;
  EXPECT_TRUE(grow_cache(scenario, layout_of(scenario), 1));
}

// 2^17 stripes a rank: minutes, if any step of plan or proof looked for each among all.
TEST(StripedCache, OfAMillionRunsIsProved) {
  const Scenario scenario =
      make_decoder(std::vector<int64_t>(64, 1), std::vector<int64_t>(64, 32768), 8, 2);
  const Plan plan = plan_of(scenario);
  for (const RankId rank : plan.home.ids())
    ASSERT_EQ(plan.list(plan.kv_lists[rank]).size(), size_t{1} << 17);
  expect_proved(plan);
}

/// The first check of a plan that fails.
std::string first_fault(const Plan& plan) {
  for (const CheckResult& check : inspect_plan(plan))
    if (!check.ok) return check.detail;
  return "";
}

// Few long runs and many short ones are summed in different ways.
TEST(StripedCache, IsNotProvedIfAKeyHasTwoOwnersOrNone) {
  for (const int64_t block : {2, 512}) {
    const Scenario scenario = make_decoder({1, 1}, {2048, 2048}, 4, block);
    const Plan healthy = plan_of(scenario);
    EXPECT_EQ(first_fault(healthy), "");
    const auto run_of = [&](Plan& plan, int32_t rank) -> TokenRun& {
      return plan.runs[static_cast<size_t>(plan.run_lists[plan.kv_lists[RankId{rank}]].first)];
    };
    Plan plan = healthy;  // rank 1 takes the stripe of rank 0
    run_of(plan, 1) = {0, block, 1};
    EXPECT_EQ(first_fault(plan), "key token 0 is not owned by exactly one rank") << block;
    plan = healthy;  // rank 3 loses one key
    --run_of(plan, 3).end;
    --plan.run_lists[plan.kv_lists[RankId{3}]].rows;
    EXPECT_EQ(first_fault(plan),
              fmt::format("key token {} is not owned by exactly one rank", 4 * block - 1));
    plan = healthy;  // rank 2 owns keys behind the last one
    run_of(plan, 2) = {4096, 4096 + block, 1};
    EXPECT_EQ(first_fault(plan),
              fmt::format("key token {} is not owned by exactly one rank", 4096 + block - 1));
  }
}

TEST(LocalKeys, OfMoreQueriesThanAnyoneReadsAreRejected) {
  const Scenario scenario = make_case({4'194'305}, 1);
  const Result<std::vector<LocalKeys>> counts = count_local_keys(scenario, layout_of(scenario));
  ASSERT_FALSE(counts);
  EXPECT_NE(counts.error().complaints.front().what.find("4194305 queries on 1 ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
