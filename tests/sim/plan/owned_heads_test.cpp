// gather_q on ranks that own heads of all queries. Bytes are typed in from the formulas of vLLM's
// decode context parallelism.
#include "sim/plan/check/plan_check.h"
#include "sim/plan/document/plan_document.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_names.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario decoder(QOwner owner, Combine combine, int32_t ranks, int32_t heads,
                 std::vector<int64_t> lengths, std::vector<int64_t> kv_lengths) {
  Scenario scenario = make_cross_case(std::move(lengths), std::move(kv_lengths), ranks,
                                      LayoutKind::striped, CommType::gather_q);
  scenario.attention.heads = heads;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.parallel.q_owner = owner;
  scenario.parallel.combine = combine;
  scenario.numerics.backward = false;
  return scenario;
}

// 64 requests, 128 heads of 576 and 512 elements, 8 ranks. Queries 7 x 64 x 16 x 576 x 2 bytes;
// results 64 x 112 x 512 x 2; lse of the results 64 x 112 x 4, or of all heads to 7 ranks.
TEST(OwnedHeads, SendTheBytesThatAreKnownOfDecoders) {
  for (const QOwner owner : {QOwner::heads, QOwner::heads_replicated}) {
    for (const Combine combine : kCombines) {
      Scenario scenario = decoder(owner, combine, 8, 128, std::vector<int64_t>(64, 1),
                                  std::vector<int64_t>(64, 97));
      scenario.attention.head_dim_qk = 576;
      scenario.attention.head_dim_v = 512;
      const Plan plan = plan_of(scenario);
      expect_proved(plan);
      const PlanSummary summary = summarise(plan);
      const int64_t queries = owner == QOwner::heads ? 8'257'536 : 0,
                    lse = combine == Combine::reduce_scatter ? 229'376 : 28'672;
      EXPECT_EQ(summary.forward_bytes, std::vector<int64_t>(8, queries + 7'340'032));
      EXPECT_EQ(summary.forward_small_bytes, std::vector<int64_t>(8, lse));
      EXPECT_EQ(plan.layout.slots.tokens, 64) << "queries that no rank cuts need no padding";
    }
  }
}

/// Ranks get as many heads as a2a gives them; one owns a single query and no rank's keys are whole.
TEST(OwnedHeads, AreProvedForUnevenHeadsRanksWithoutKeysAndPadding) {
  for (const Combine combine : kCombines) {
    for (const int32_t ranks : {1, 2, 4, 8}) {
      Scenario scenario = decoder(QOwner::heads, combine, ranks, 9, {3, 1}, {5, 2});
      scenario.attention.kv_heads = 3;
      scenario.parallel.stripe = 3;
      scenario.batch.slot_multiple = 4;
      const Plan plan = plan_of(scenario);
      expect_proved(plan);
      EXPECT_EQ(plan.layout.slots.tokens, 8);
      int32_t next = 0;
      for (const HeadRange heads : plan.layout.q_heads) {
        EXPECT_EQ(heads.begin, next);
        next = heads.end;
      }
      EXPECT_EQ(next, 9);
    }
  }
}

/// Keys in an order of their own, of which the third rank has none.
Scenario imported_decoder(QOwner owner, Combine combine) {
  Scenario scenario = decoder(owner, combine, 4, 9, {2, 1}, {7, 4});
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.indices_file = "order.json";
  scenario.parallel.imported.ranks = {{2}, {}, {1, 0}, {}};  // the queries are on all ranks
  scenario.parallel.imported.kv_ranks = {{10, 0, 1, 5}, {4, 9, 2}, {}, {3, 8, 7, 6}};
  return scenario;
}

TEST(OwnedHeads, AreProvedForAnImportedOrderOfKeys) {
  for (const QOwner owner : {QOwner::heads, QOwner::heads_replicated}) {
    for (const Combine combine : kCombines) {
      const Plan plan = plan_of(imported_decoder(owner, combine));
      expect_proved(plan);
      EXPECT_EQ(key_order(plan.layout), (Order{{10, 0, 1, 5}, {4, 9, 2}, {}, {3, 8, 7, 6}}));
      EXPECT_EQ(query_order(plan.layout), (Order{{0, 1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}}));
      EXPECT_FALSE(plan.layout.same_kv);
    }
  }
}

// The same keys as in stripes: the same bytes and the same pairs of each rank.
TEST(OwnedHeads, PlanAnImportedOrderOfStripesAsStripes) {
  Scenario scenario = decoder(QOwner::heads, Combine::all_to_all, 4, 8, {2}, {42});
  const Plan striped = plan_of(scenario);
  for (const auto& runs : striped.layout.kv_runs) {
    scenario.parallel.imported.ranks.emplace_back();
    scenario.parallel.imported.kv_ranks.push_back(expand(runs));
  }
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.indices_file = "order.json";
  scenario.batch.kv_slots = {striped.layout.slots.kv_tokens};
  scenario.parallel.imported.ranks[3] = {1, 0};
  const Plan imported = plan_of(scenario);
  expect_proved(imported);
  EXPECT_EQ(summarise(imported).forward_bytes, summarise(striped).forward_bytes);
  EXPECT_EQ(summarise(imported).pairs_by_rank, summarise(striped).pairs_by_rank);
}

TEST(OwnedHeads, OfAnImportedOrderAreReadBackFromAPlanDocument) {
  const Plan plan = plan_of(imported_decoder(QOwner::heads, Combine::tree));
  std::ostringstream text;
  write_plan_document(plan, text);
  const Result<PlanDocument> read = read_plan_document(text.str(), "plan.json");
  ASSERT_TRUE(read.ok()) << to_text(read.error());
  const Plan& again = read.value().plan;
  expect_proved(again);
  EXPECT_EQ(again.layout.kv_runs, plan.layout.kv_runs);
  EXPECT_EQ(again.layout.q_heads, plan.layout.q_heads);
  EXPECT_EQ(again.hash, plan.hash);
}

TEST(OwnedHeads, MergeInATreeOfAsManyRoundsAsTheRanksHaveHalves) {
  const Plan plan = plan_of(decoder(QOwner::heads, Combine::tree, 8, 16, {2}, {40}));
  std::vector<int64_t> sent;  // by each stage of transfers, from rank 0: heads
  for (const Stage& stage : plan.forward.stages) {
    if (stage.kind != StageKind::transfer) continue;
    int64_t heads = 0;
    for (int64_t i = stage.begin; i < stage.end; ++i) {
      const TransferItem& item = plan.forward.transfers[static_cast<size_t>(i)];
      if (item.src == RankId{0} && item.dst != RankId{0}) heads += item.heads.size();
    }
    sent.push_back(heads);
  }
  EXPECT_EQ(sent, (std::vector<int64_t>{7 * 2, 8, 4, 2}));
}

/// The words with which a scenario is refused.
std::string refusal(const Scenario& scenario) {
  const Result<Plan> plan = make_plan(scenario);
  if (plan) return "";
  EXPECT_EQ(plan.error().kind, ErrorKind::refused);
  return plan.error().complaints.front().what;
}

TEST(OwnedHeads, AreRefusedByNameWhereNoPlanHasThem) {
  const Scenario possible = decoder(QOwner::heads, Combine::all_to_all, 4, 8, {2}, {40});
  EXPECT_EQ(refusal(possible), "");
  Scenario scenario = possible;
  scenario.numerics.backward = true;
  EXPECT_EQ(refusal(scenario),
            "q_owner = \"heads\" requires backward = false: it is a decoder's schedule");
  scenario = possible;
  scenario.attention.heads = 3;
  EXPECT_EQ(refusal(scenario),
            "q_owner = \"heads\" requires heads >= cp_size: heads = 3, cp_size = 4");
  scenario = possible;
  scenario.parallel.layout = LayoutKind::lpt;
  EXPECT_EQ(
      refusal(scenario),
      "q_owner = \"heads\" requires a layout of keys alone: lpt gives rows of queries to ranks");
  scenario = possible;
  scenario.parallel.combine = Combine::tree;
  scenario.parallel.cp_size = 6;
  EXPECT_EQ(refusal(scenario), "combine = \"tree\" requires a power of two of ranks: cp_size = 6");
  scenario = possible;
  scenario.parallel.combine = Combine::tree;
  scenario.parallel.q_owner = QOwner::rows;
  EXPECT_EQ(
      refusal(scenario),
      "combine = \"tree\" requires ranks that own heads: pairs of ranks exchange halves of them");
  // Other types do not read the key.
  scenario = possible;
  scenario.parallel.comm_type = CommType::p2p;
  EXPECT_EQ(refusal(scenario), "");
}

TEST(OwnedHeads, AreNotProvedIfAHeadHasTwoOwnersOrARankLacksQueries) {
  const Plan healthy = plan_of(decoder(QOwner::heads, Combine::all_to_all, 4, 8, {2}, {40}));
  const auto verdict = [](const Plan& plan) {
    for (const CheckResult& check : inspect_plan(plan))
      if (!check.ok) return check.detail;
    return std::string();
  };
  EXPECT_EQ(verdict(healthy), "");
  Plan plan = healthy;
  plan.buffers[plan.home[RankId{1}].out].heads.begin = 1;
  EXPECT_EQ(verdict(plan), "head 2 is not owned by exactly one rank");
  plan = healthy;
  plan.buffers[plan.home[RankId{3}].q].heads.begin = 7;
  EXPECT_EQ(verdict(plan), "rank 3 lacks heads of its queries");
  plan = healthy;
  plan.q_lists[RankId{2}] = plan.run_lists.push_back({0, 0, 0});
  EXPECT_EQ(verdict(plan), "rank 2 does not have all queries");
}

}  // namespace
}  // namespace cpscope::tests
