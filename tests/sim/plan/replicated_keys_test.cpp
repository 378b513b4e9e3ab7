#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

// Keys that every rank holds. Bytes are counted by hand.

namespace cpscope::tests {
namespace {

/// 400 tokens on 2 ranks: rank 0 owns [0, 100) and [300, 400), of which the first 40 are on both.
Scenario make_shared_case(CommType comm) {
  Scenario scenario = make_case({400}, 2, LayoutKind::dual_chunk, comm);
  scenario.attention.heads = 2;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 16;
  scenario.parallel.kv_replicated = 40;
  scenario.parallel.a2a_size = 1;
  scenario.numerics.dkv_wire = WireFormat::fp32;
  return scenario;
}

using Bytes = std::vector<int64_t>;

// 64 bytes of K and V a row, 128 of dK and dV in fp32. Rank 0 sends 160 of its 200 keys, and rank 1
// its share of the 40 keys that rank 0 owns.
TEST(ReplicatedKeys, DoNotTravelAndTheirGradientsComeHomeOnce) {
  const Plan ring = plan_of(make_shared_case(CommType::p2p));
  expect_proved(ring);
  EXPECT_EQ(summarise(ring).forward_bytes, (Bytes{160 * 64, 200 * 64}));
  EXPECT_EQ(summarise(ring).backward_bytes,
            (Bytes{200 * 64 + 200 * 128, 160 * 64 + 160 * 128 + 40 * 128}));
  const Plan gathered = plan_of(make_shared_case(CommType::all_gather));
  expect_proved(gathered);
  EXPECT_EQ(summarise(gathered).forward_bytes, (Bytes{160 * 64, 200 * 64}));
  EXPECT_EQ(summarise(gathered).backward_bytes,
            (Bytes{160 * 64 + 200 * 128, 200 * 64 + 160 * 128 + 40 * 128}));
  // One query head a rank: 32 bytes of q and of out a row.
  const Plan heads = plan_of(make_shared_case(CommType::a2a));
  expect_proved(heads);
  EXPECT_EQ(summarise(heads).forward_bytes,
            (Bytes{2 * 200 * 32 + 160 * 64, 2 * 200 * 32 + 200 * 64}));
  EXPECT_EQ(summarise(heads).backward_bytes,
            (Bytes{2 * 200 * 32 + 200 * 128, 2 * 200 * 32 + 160 * 128 + 40 * 128}));
}

TEST(ReplicatedKeys, AreNotNecessaryOnTheWire) {
  Scenario scenario = make_shared_case(CommType::p2p);
  scenario.attention.mask_type = MaskType::no_mask;
  EXPECT_EQ(summarise(plan_of(scenario)).kv_bytes_necessary, (160 + 200) * 64);
  scenario.parallel.kv_replicated = 0;
  EXPECT_EQ(summarise(plan_of(scenario)).kv_bytes_necessary, (200 + 200) * 64);
}

TEST(ReplicatedKeys, AreProvedForEveryTypeThatHasThem) {
  for (const CommType comm :
       {CommType::p2p, CommType::a2a, CommType::a2a_p2p, CommType::all_gather}) {
    for (const LayoutKind layout :
         {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::striped, LayoutKind::lpt}) {
      for (const int64_t count : {int64_t{1}, int64_t{17}, kMaxTokens}) {
        Scenario scenario = make_case({61, 5, 0, 90}, 4, layout, comm);
        scenario.attention.heads = 6;
        scenario.attention.kv_heads = 3;
        scenario.parallel.dispatch_chunk = 8;
        scenario.parallel.kv_replicated = count;
        scenario.parallel.heads_per_stage = 1;
        expect_proved(plan_of(scenario));
      }
    }
  }
}

TEST(ReplicatedKeys, AreRefusedWhereNoPlannerKnowsThem) {
  for (const CommType comm : {CommType::group_cast, CommType::pass_q, CommType::token_ring,
                              CommType::helper_ring, CommType::mesh, CommType::gather_q}) {
    const Result<Plan> plan = make_plan(make_shared_case(comm));
    ASSERT_FALSE(plan.ok()) << to_name(comm);
    EXPECT_EQ(plan.error().complaints.front().what,
              std::string(to_name(comm)) +
                  " requires kv_replicated = 0: keys that every rank holds are planned for p2p, "
                  "a2a, a2a+p2p and all_gather only");
  }
}

std::string first_complaint(const Plan& plan) {
  for (const CheckResult& check : inspect_plan(plan)) {
    if (!check.ok) return check.name + ": " + check.detail;
  }
  return "";
}

TEST(ReplicatedKeys, CountedByTwoRanksAreNoticed) {
  Plan plan = plan_of(make_shared_case(CommType::p2p));
  // Rank 1 meets the first 40 keys once more, in place of those of rank 0.
  const auto replica = [&](const ComputeItem& item) {
    return item.kv == plan.home[item.rank].replica;
  };
  const auto with = std::find_if(
      plan.forward.computes.begin(), plan.forward.computes.end(),
      [&](const ComputeItem& item) { return item.rank == RankId{1} && replica(item); });
  ASSERT_NE(with, plan.forward.computes.end());
  for (ComputeItem& item : plan.forward.computes) {
    if (item.rank != RankId{1} || replica(item) || item.step != StepId{1}) continue;
    const BufferId out = item.out;
    const StepId step = item.step;
    item = *with;
    item.out = out;
    item.step = step;
  }
  EXPECT_EQ(first_complaint(plan).substr(0, 9), "coverage:") << first_complaint(plan);
}

TEST(ReplicatedKeys, ThatAreOfOneRankOnlyAreNoticed) {
  Plan plan = plan_of(make_shared_case(CommType::p2p));
  plan.scenario.parallel.kv_replicated = 39;
  EXPECT_EQ(first_complaint(plan),
            "buffers: rank 0 holds key token 39, which is not on every rank");
}

TEST(ReplicatedKeys, WhoseShareIsLostAreNoticed) {
  for (const CommType comm :
       {CommType::p2p, CommType::a2a, CommType::a2a_p2p, CommType::all_gather}) {
    const Plan healthy = plan_of(make_shared_case(comm));
    for (size_t t = 0; t < healthy.backward.transfers.size(); ++t) {
      const TransferItem& item = healthy.backward.transfers[t];
      if (item.landing != Landing::add) continue;
      Plan plan = healthy;
      erase_item(plan.backward, StageKind::transfer, t);
      EXPECT_NE(first_complaint(plan), "") << to_name(comm) << ", transfer " << t;
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
