#include "sim/clock/clock.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

// Heads that the ranks do not divide, and stages of heads. Bytes are counted by hand.

namespace cpscope::tests {
namespace {

Scenario make_head_case(int64_t tokens, int32_t ranks, CommType comm, int32_t heads,
                        int32_t kv_heads, int32_t heads_per_stage = 0) {
  Scenario scenario = make_case({tokens}, ranks, LayoutKind::dual_chunk, comm);
  scenario.attention.heads = heads;
  scenario.attention.kv_heads = kv_heads;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 16;
  scenario.parallel.heads_per_stage = heads_per_stage;
  scenario.numerics.dkv_wire = WireFormat::fp32;
  return scenario;
}

/// [rank] The query heads that its forward computes have, step by step.
std::vector<std::vector<HeadRange>> heads_by_rank(const Plan& plan) {
  std::vector<std::vector<HeadRange>> heads(static_cast<size_t>(plan.layout.cp_size));
  for (const ComputeItem& item : plan.forward.computes)
    heads[static_cast<size_t>(to_index(item.rank))].push_back(item.heads);
  return heads;
}

// 200 rows a rank, 32 bytes of a row and head, 128 of dK and dV in fp32. Shares of 1, 2 and 2 query
// heads of the one KV head.
TEST(HeadShares, OfFiveHeadsOnThreeRanksSendWhatIsCountedByHand) {
  const Plan plan = plan_of(make_head_case(600, 3, CommType::a2a, 5, 1));
  expect_proved(plan);
  const auto heads = heads_by_rank(plan);
  EXPECT_EQ(heads[0], std::vector{(HeadRange{0, 1})});
  EXPECT_EQ(heads[1], std::vector{(HeadRange{1, 3})});
  EXPECT_EQ(heads[2], std::vector{(HeadRange{3, 5})});
  const PlanSummary summary = summarise(plan);
  // Rank 0: q 4 heads, KV to 2 ranks, out of 400 rows and 1 head.
  EXPECT_EQ(summary.forward_bytes,
            (std::vector<int64_t>{25'600 + 25'600 + 12'800, 19'200 + 25'600 + 25'600,
                                  19'200 + 25'600 + 25'600}));
  EXPECT_EQ(summary.backward_bytes,
            (std::vector<int64_t>{25'600 + 12'800 + 51'200, 19'200 + 25'600 + 51'200,
                                  19'200 + 25'600 + 51'200}));
  EXPECT_DOUBLE_EQ(summary.rank_max_over_mean, 1.2);
}

// Heads [0, 2) [2, 4) [4, 7) [7, 9) [9, 12), four to a KV head: rank 3 reads two of them, and each
// is read by two ranks.
TEST(HeadShares, OfTwelveHeadsOnFiveRanksSendWhatIsCountedByHand) {
  const Plan plan = plan_of(make_head_case(1000, 5, CommType::a2a, 12, 3));
  expect_proved(plan);
  const PlanSummary summary = summarise(plan);
  EXPECT_EQ(summary.forward_bytes,
            (std::vector<int64_t>{64'000 + 64'000 + 51'200, 64'000 + 64'000 + 51'200,
                                  57'600 + 64'000 + 76'800, 64'000 + 51'200 + 51'200,
                                  57'600 + 64'000 + 76'800}));
  EXPECT_EQ(summary.backward_bytes,
            (std::vector<int64_t>{64'000 + 51'200 + 102'400, 64'000 + 51'200 + 102'400,
                                  57'600 + 76'800 + 102'400, 64'000 + 51'200 + 204'800,
                                  57'600 + 76'800 + 102'400}));
  std::map<int32_t, std::vector<HeadRange>> kv_to;  // [rank] KV heads that rank 0 sends it
  for (const TransferItem& item : plan.forward.transfers) {
    if (item.payload == Payload::kv && item.src == RankId{0})
      kv_to[to_index(item.dst)].push_back(item.heads);
  }
  EXPECT_EQ(kv_to.at(3), std::vector{(HeadRange{1, 3})});
  EXPECT_EQ(kv_to.at(4), std::vector{(HeadRange{2, 3})});
}

// Groups of three ranks in a ring of two: the exchange of OfFiveHeadsOnThreeRanks, and one hop of
// 600 rows of K and V.
TEST(HeadShares, OfAGroupTravelRoundTheRing) {
  Scenario scenario = make_head_case(1200, 6, CommType::a2a_p2p, 5, 1);
  scenario.parallel.a2a_size = 3;
  const Plan plan = plan_of(scenario);
  expect_proved(plan);
  const int64_t hop = 600 * 64;
  EXPECT_EQ(summarise(plan).forward_bytes,
            (std::vector<int64_t>{64'000 + hop, 70'400 + hop, 70'400 + hop, 64'000 + hop,
                                  70'400 + hop, 70'400 + hop}));
}

TEST(HeadShares, AreRefusedOnlyIfARankWouldHaveNone) {
  const auto refusal = [](const Scenario& scenario) {
    const Result<Plan> plan = make_plan(scenario);
    return plan.ok() ? std::string() : plan.error().complaints.front().what;
  };
  EXPECT_EQ(refusal(make_head_case(600, 3, CommType::a2a, 3, 1)), "");
  EXPECT_EQ(refusal(make_head_case(600, 3, CommType::a2a, 2, 1)),
            "a2a requires heads >= cp_size: heads = 2, cp_size = 3");
  Scenario groups = make_head_case(600, 9, CommType::a2a_p2p, 2, 1);
  groups.parallel.a2a_size = 3;
  EXPECT_EQ(refusal(groups), "a2a+p2p requires heads >= a2a_size: heads = 2, a2a_size = 3");
}

TEST(HeadShares, AreProvedForEveryNumberOfHeadsRanksAndStages) {
  int64_t proved = 0;
  for (int32_t heads = 1; heads <= 9; ++heads) {
    for (int32_t kv_heads = 1; kv_heads <= heads; ++kv_heads) {
      if (heads % kv_heads != 0) continue;
      for (int32_t ranks = 1; ranks <= heads; ++ranks) {
        for (int32_t stage = 0; stage <= 4; ++stage) {
          expect_proved(plan_of(make_head_case(20, ranks, CommType::a2a, heads, kv_heads, stage)));
          if (ranks <= 3)
            expect_proved(
                plan_of(make_head_case(20, ranks, CommType::all_gather, heads, kv_heads, stage)));
          ++proved;
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_EQ(proved, 5 * 130);
}

// UPipe: 8 query heads of 2 KV heads on 2 ranks, one query head a rank in each stage. A rank keeps
// its KV head for four stages.
TEST(HeadStages, KeepAKvHeadUntilAllItsQueryHeadsHaveReadIt) {
  const Plan plan = plan_of(make_head_case(400, 2, CommType::a2a, 8, 2, 1));
  expect_proved(plan);
  EXPECT_EQ(summarise(plan).steps, 4);
  const auto heads = heads_by_rank(plan);
  for (int32_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(heads[0][static_cast<size_t>(stage)], (HeadRange{stage, stage + 1}));
    EXPECT_EQ(heads[1][static_cast<size_t>(stage)], (HeadRange{4 + stage, 5 + stage}));
  }
  for (const TransferItem& item : plan.forward.transfers) {
    if (item.payload != Payload::kv) continue;
    EXPECT_EQ(to_index(item.step), 0);
  }
  for (const TransferItem& item : plan.backward.transfers) {
    if (item.payload != Payload::dkv) continue;
    EXPECT_EQ(to_index(item.step), 3);
  }
}

TEST(HeadStages, SendTheBytesOfOneExchange) {
  for (const CommType comm : {CommType::a2a, CommType::all_gather}) {
    const PlanSummary once = summarise(plan_of(make_head_case(1000, 5, comm, 12, 3)));
    for (const int32_t size : {1, 2, 3, 5}) {
      const PlanSummary staged = summarise(plan_of(make_head_case(1000, 5, comm, 12, 3, size)));
      EXPECT_EQ(staged.forward_bytes, once.forward_bytes) << size;
      EXPECT_EQ(staged.backward_bytes, once.backward_bytes) << size;
      // Three query heads of the fullest rank, or three KV heads.
      EXPECT_EQ(staged.steps, (3 + size - 1) / size) << size;
    }
  }
}

// 512 rows a rank, 8 heads of head_dim 16: home buffers of 131072 bytes of q, 262144 of KV, 278528
// of out and lse. The exchange holds q and KV in both orders, of 4 heads or of 1.
TEST(HeadStages, NeedLessMemory) {
  const auto most = [](CommType comm, int32_t size) {
    Scenario scenario = make_head_case(1024, 2, comm, 8, 8, size);
    scenario.numerics.backward = false;
    return high_water_bytes(plan_of(scenario), false).front();
  };
  const int64_t home = 131'072 + 262'144 + 278'528;
  EXPECT_EQ(most(CommType::a2a, 0), home + 2 * (131'072 + 262'144));
  EXPECT_EQ(most(CommType::a2a, 1), home + 2 * (131'072 + 262'144) / 4);
  EXPECT_LT(most(CommType::all_gather, 2), most(CommType::all_gather, 0));
}

TEST(HeadStages, OfKvHeadsAreGatheredOneAfterAnother) {
  const Plan plan = plan_of(make_head_case(400, 2, CommType::all_gather, 6, 3, 2));
  expect_proved(plan);
  const auto heads = heads_by_rank(plan);
  EXPECT_EQ(heads[1], (std::vector<HeadRange>{{0, 4}, {4, 6}}));
  for (const TransferItem& item : plan.forward.transfers) {
    if (item.payload != Payload::kv) continue;
    EXPECT_EQ(item.heads, (to_index(item.step) == 0 ? HeadRange{0, 2} : HeadRange{2, 3}));
  }
}

}  // namespace
}  // namespace cpscope::tests
