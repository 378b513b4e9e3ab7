#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

// Rings of windows, and rings in which queries travel in the backward. Bytes are typed in from the
// formulas of the papers.

namespace cpscope::tests {
namespace {

/// Llama3-8B: 131072 tokens on 8 ranks, 32 query heads, 8 KV heads of 128, bf16.
Scenario make_ring_case(CommType comm, RingBackward backward, int32_t window = 4) {
  Scenario scenario = make_case({131072}, 8, LayoutKind::dual_chunk, comm);
  scenario.attention.heads = 32;
  scenario.attention.kv_heads = 8;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 128;
  scenario.parallel.ring_window = window;
  scenario.parallel.ring_backward = backward;
  return scenario;
}

Plan prove(const Scenario& scenario) {
  Plan plan = plan_of(scenario);
  for (const CheckResult& check : inspect_plan(plan))
    EXPECT_TRUE(check.ok) << check.name << ": " << check.detail << "\n" << show(scenario);
  return plan;
}

void expect_all(const std::vector<int64_t>& bytes, int64_t expected, const char* what) {
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    EXPECT_EQ(bytes[rank], expected) << what << " of rank " << rank;
}

// 7 hops of q, d_out and two statistics of 16384 rows x 32 heads, and 8 hops of dq: 2982.15 MB.
TEST(RingOfQueries, SendsTheBytesOfBurstAttention) {
  const PlanSummary summary = summarise(prove(make_ring_case(CommType::p2p, RingBackward::q)));
  expect_all(summary.forward_bytes, 469'762'048, "forward");
  expect_all(summary.backward_small_bytes, 29'360'128, "lse and delta");
  for (const int64_t bytes : summary.backward_bytes)
    EXPECT_EQ(bytes + 29'360'128, 2'982'150'144) << "backward";
}

TEST(RingOfQueries, KeepsKeysAndTheirGradientsOnTheirRanks) {
  const Plan plan = prove(make_ring_case(CommType::p2p, RingBackward::q));
  for (const TransferItem& item : plan.backward.transfers)
    EXPECT_TRUE(item.payload != Payload::kv && item.payload != Payload::dkv);
  EXPECT_EQ(plan.backward.num_steps, 8);
}

// 7 hops of 16384 rows x 8 heads x 256 x 2 bytes, as any ring. In the backward the keys again, 8
// hops of dK and dV in fp32 inside the windows and 2 in bf16 between them.
TEST(DoubleRing, SendsAHopMoreAWindowForGradients) {
  const PlanSummary summary =
      summarise(prove(make_ring_case(CommType::double_ring, RingBackward::kv)));
  EXPECT_EQ(summary.steps, 8);
  expect_all(summary.forward_bytes, 469'762'048, "forward");
  expect_all(summary.backward_bytes, 469'762'048 + 1'073'741'824 + 134'217'728, "backward");
}

// dq: 8 hops of 16384 rows x 32 heads x 128 in fp32, 2 in bf16.
TEST(DoubleRing, SendsQueriesRoundTheSameWayIfAsked) {
  const PlanSummary summary =
      summarise(prove(make_ring_case(CommType::double_ring, RingBackward::q)));
  const int64_t there = 7 * 268'435'456LL;
  expect_all(summary.backward_bytes, there + 2'147'483'648LL + 268'435'456, "backward");
  expect_all(summary.backward_small_bytes, 29'360'128, "lse and delta");
}

TEST(DoubleRing, CrossesWindowsAsOftenAsThereAreOthers) {
  for (const int32_t window : {1, 2, 4, 8}) {
    const Plan plan = prove(make_ring_case(CommType::double_ring, RingBackward::kv, window));
    const int32_t windows = 8 / window;
    for (const Direction direction : kDirections) {
      int64_t kv = 0, dkv = 0;
      for (const TransferItem& item : plan.pass(direction).transfers) {
        const bool crosses = to_index(item.src) / window != to_index(item.dst) / window;
        EXPECT_EQ(crosses, item.link == LinkClass::outer_ring);
        EXPECT_EQ(item.wire_fp32, item.payload == Payload::dkv && !crosses);
        if (to_index(item.src) != 3 || !crosses) continue;
        ++(item.payload == Payload::kv ? kv : dkv);
      }
      EXPECT_EQ(kv, windows - 1) << "window " << window;
      EXPECT_EQ(dkv, direction == Direction::backward && windows > 1 ? windows : 0);
    }
  }
}

// In outer step j and inner step s, rank g * w + l holds the keys of rank
// (g - j) * w + (l - s), both modulo their sizes.
TEST(DoubleRing, MeetsTheRanksOfOneWindowAfterAnother) {
  constexpr int32_t kWindows = 3, kWindow = 4;
  Scenario scenario = make_case({12 * 8}, 12, LayoutKind::contiguous, CommType::double_ring);
  scenario.parallel.ring_window = kWindow;
  scenario.attention.mask_type = MaskType::no_mask;
  const Plan plan = prove(scenario);
  for (const Direction direction : kDirections) {
    for (const ComputeItem& item : plan.pass(direction).computes) {
      const int32_t rank = to_index(item.rank), j = to_index(item.step) / kWindow,
                    s = to_index(item.step) % kWindow;
      const int32_t source = (rank / kWindow - j + kWindows) % kWindows * kWindow +
                             (rank % kWindow - s + kWindow) % kWindow;
      EXPECT_EQ(item.kv_tokens, plan.kv_lists[RankId{source}])
          << "rank " << rank << ", outer step " << j << ", inner step " << s;
    }
  }
}

// The hop to the next window is posted before the first compute of a window and needed by the first
// of the next one, so that a whole window of computes is beside it.
TEST(DoubleRing, PostsTheHopToTheNextWindowBeforeTheInnerRing) {
  const Plan plan = prove(make_ring_case(CommType::double_ring, RingBackward::kv));
  for (const Direction direction : kDirections) {
    std::vector<int32_t> steps;
    for (const Stage& stage : plan.pass(direction).stages) {
      if (stage.kind != StageKind::transfer) continue;
      const TransferItem& item = plan.pass(direction).transfers[static_cast<size_t>(stage.begin)];
      if (item.payload == Payload::kv && item.link == LinkClass::outer_ring)
        steps.push_back(to_index(stage.step));
    }
    EXPECT_EQ(steps, std::vector<int32_t>{0}) << to_name(direction);
  }
}

TEST(DoubleRing, OfOneWindowOrOfWindowsOfOneRankIsARing) {
  for (const int32_t window : {1, 8}) {
    const PlanSummary summary =
        summarise(plan_of(make_ring_case(CommType::double_ring, RingBackward::kv, window)));
    Scenario ring = make_ring_case(CommType::p2p, RingBackward::kv);
    ring.numerics.dkv_hops = DkvHops::ring;
    ring.numerics.dkv_wire = window == 8 ? WireFormat::fp32 : WireFormat::dtype;
    const PlanSummary simple = summarise(plan_of(ring));
    EXPECT_EQ(summary.backward_bytes, simple.backward_bytes) << "window " << window;
    EXPECT_EQ(summary.pairs_by_step_rank, simple.pairs_by_step_rank);
  }
}

TEST(DoubleRing, RefusesAWindowThatDoesNotDivideTheRanks) {
  const Result<Plan> plan = make_plan(make_ring_case(CommType::double_ring, RingBackward::kv, 3));
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(to_text(plan.error())
                .find("double_ring requires cp_size % ring_window == 0: 8 ranks, "
                      "ring_window 3"),
            std::string::npos)
      << to_text(plan.error());
}

}  // namespace
}  // namespace cpscope::tests
