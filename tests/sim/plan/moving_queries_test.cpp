#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_names.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

// Schedules in which queries move and partial results return. Bytes are typed in from
// the formulas of the papers.

namespace cpscope::tests {
namespace {

Scenario make_moving_case(int64_t tokens, int32_t ranks, CommType comm, int32_t heads,
                          int32_t kv_heads, LayoutKind layout = LayoutKind::dual_chunk) {
  Scenario scenario = make_case({tokens}, ranks, layout, comm);
  scenario.attention.heads = heads;
  scenario.attention.kv_heads = kv_heads;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 128;
  return scenario;
}

int64_t total(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

void expect_each(const std::vector<int64_t>& bytes, int64_t expected, const char* what) {
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    EXPECT_EQ(bytes[rank], expected) << what << " of rank " << rank;
}

// Llama3-8B, 131072 tokens, 8 ranks, bf16: 7 hops of 16384 rows x 32 heads x 128 x 2 bytes, and 7
// results of 256 + 4 bytes a row and head.
TEST(MovingQueries, PassQSendsQueriesRoundTheRingAndResultsAtTheEnd) {
  const Plan plan = plan_of(make_moving_case(131072, 8, CommType::pass_q, 32, 8));
  expect_proved(plan);
  const PlanSummary summary = summarise(plan);
  EXPECT_EQ(summary.steps, 8);
  expect_each(summary.forward_bytes, 939'524'096 + 939'524'096, "forward");
  expect_each(summary.forward_small_bytes, 14'680'064, "lse");
  // q and d_out, then dq in bf16; lse and delta.
  expect_each(summary.backward_bytes, 2 * 939'524'096LL + 939'524'096LL, "backward");
  expect_each(summary.backward_small_bytes, 29'360'128, "lse and delta");
  EXPECT_EQ(summary.kv_bytes_moved, 0);
}

TEST(MovingQueries, TokenRingSendsThreeQuartersOfThatUnderACausalMask) {
  const Plan plan = plan_of(make_moving_case(131072, 8, CommType::token_ring, 32, 8));
  expect_proved(plan);
  const PlanSummary summary = summarise(plan);
  EXPECT_EQ(summary.steps, 8);
  // 704.643 MB of queries and 715.653 MB of results a rank on average.
  EXPECT_EQ(total(summary.forward_bytes) + total(summary.forward_small_bytes),
            8 * (704'643'072LL + 715'653'120LL));
  Scenario full = make_moving_case(131072, 8, CommType::token_ring, 32, 8);
  full.attention.mask_type = MaskType::no_mask;
  EXPECT_EQ(total(summarise(plan_of(full)).forward_bytes), 8 * 2 * 939'524'096LL);
}

TEST(MovingQueries, TokenRingIsBalancedInEveryStep) {
  const PlanSummary summary =
      summarise(plan_of(make_moving_case(4096, 8, CommType::token_ring, 1, 1)));
  EXPECT_NEAR(summary.critical_path_over_ideal, 1.0, 1e-3);
}

// MHA with 32 heads, 1M tokens on 64 ranks: MB that each rank sends, by a.
TEST(MovingQueries, AMeshSendsFewerBytesThanARing) {
  struct Row {
    int32_t kv_heads, mesh_q;
    int64_t bytes;
  };
  for (const Row& row : {Row{32, 1, 16'911'433'728}, Row{32, 8, 3'772'776'448},
                         Row{8, 4, 1'818'230'784}, Row{8, 8, 2'363'490'304}}) {
    Scenario scenario = make_moving_case(1 << 20, 64, CommType::mesh, 32, row.kv_heads);
    scenario.parallel.mesh_q = row.mesh_q;
    const Plan plan = plan_of(scenario);
    expect_proved(plan);
    const PlanSummary summary = summarise(plan);
    EXPECT_EQ(summary.steps, row.mesh_q + 64 / row.mesh_q - 1);
    for (size_t rank = 0; rank < 64; ++rank)
      EXPECT_EQ(summary.forward_bytes[rank] + summary.forward_small_bytes[rank], row.bytes)
          << "rank " << rank << ", mesh_q " << row.mesh_q;
  }
}

// Causal contiguous chunks: half as many steps as a ring; an even number of ranks leaves half of
// them without work in the last step.
TEST(MovingQueries, HelpersHalveTheStepsOfContiguousCausalChunks) {
  for (const int32_t ranks : {2, 3, 4, 7, 8, 16}) {
    const Plan plan = plan_of(
        make_moving_case(64 * ranks, ranks, CommType::helper_ring, 1, 1, LayoutKind::contiguous));
    expect_proved(plan);
    const PlanSummary summary = summarise(plan);
    ASSERT_EQ(summary.steps, ranks / 2 + 1);
    for (int32_t step = 1; step < summary.steps; ++step) {
      const auto& pairs = summary.pairs_by_step_rank[static_cast<size_t>(step)];
      const int64_t idle = std::count(pairs.begin(), pairs.end(), 0);
      EXPECT_EQ(idle, 2 * step == ranks ? ranks / 2 : 0) << ranks << " ranks, step " << step;
      EXPECT_EQ(*std::max_element(pairs.begin(), pairs.end()), 64 * 64);
    }
  }
}

TEST(MovingQueries, GatheredQueriesMeetTheKeysOfEveryRankInOneStep) {
  const Plan plan = plan_of(make_moving_case(131072, 8, CommType::gather_q, 32, 8));
  expect_proved(plan);
  const PlanSummary summary = summarise(plan);
  EXPECT_EQ(summary.steps, 1);
  expect_each(summary.forward_bytes, 939'524'096 + 939'524'096, "forward");
}

// Decoding with MLA's heads: 64 queries, 128 heads, one KV head, head_dim 576 and 512, 8 ranks,
// bf16.
TEST(MovingQueries, DecodersSendTheBytesThatAreKnownOfTheirTwoCombines) {
  Scenario scenario = make_cross_case({64}, {4096}, 8, LayoutKind::contiguous, CommType::gather_q);
  scenario.attention.heads = 128;
  scenario.attention.head_dim_qk = 576;
  scenario.attention.head_dim_v = 512;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  for (const Combine combine : {Combine::all_to_all, Combine::reduce_scatter}) {
    scenario.parallel.combine = combine;
    const Plan plan = plan_of(scenario);
    expect_proved(plan);
    const PlanSummary summary = summarise(plan);
    EXPECT_EQ(summary.steps, 1);
    // 8.258 MB of queries and 7.340 MB of results.
    expect_each(summary.forward_bytes, 8'257'536 + 7'340'032, "forward");
    // 0.229 MB of all lse, or the lse of the results: 7.369 MB with them.
    expect_each(summary.forward_small_bytes,
                combine == Combine::reduce_scatter ? 229'376 : 7'368'704 - 7'340'032, "lse");
  }
}

TEST(MovingQueries, ResultsAreScaledByTheLseOfAllRanksEachOnce) {
  Scenario scenario = make_moving_case(64, 4, CommType::gather_q, 2, 1);
  scenario.parallel.combine = Combine::reduce_scatter;
  const Plan healthy = plan_of(scenario);
  Plan plan = healthy;
  // Rank 0 takes the lse of rank 1 for that of rank 2 as well.
  BufferId first = kNoBuffer;
  for (MergeItem& item : plan.forward.merges) {
    if (item.rank != RankId{0} || item.partial == kNoBuffer ||
        plan.buffer(item.partial).kind != BufferKind::stats)
      continue;
    if (item.order == 1) first = item.partial;
  }
  ASSERT_NE(first, kNoBuffer);
  const auto arrives = std::find_if(
      plan.forward.transfers.begin(), plan.forward.transfers.end(), [](const TransferItem& item) {
        return item.payload == Payload::lse && item.dst == RankId{0} && item.src == RankId{2};
      });
  ASSERT_NE(arrives, plan.forward.transfers.end());
  for (const TransferItem& item : healthy.forward.transfers) {
    if (item.payload != Payload::lse || item.dst != RankId{2} || item.src != RankId{1}) continue;
    arrives->src = item.src;
    arrives->from = item.from;
  }
  const std::vector<CheckResult> checks = inspect_plan(plan);
  const auto partials = std::find_if(checks.begin(), checks.end(), [](const CheckResult& check) {
    return check.name == "partials";
  });
  ASSERT_NE(partials, checks.end());
  EXPECT_EQ(partials->detail,
            "forward, step 0, rank 0: results of query token 0, head 0 are scaled by another lse "
            "than that of all ranks' results and go to rank 0");
}

TEST(MovingQueries, AWiderWireCostsTwiceTheBytesOfTheResults) {
  Scenario scenario = make_moving_case(131072, 8, CommType::pass_q, 32, 8);
  scenario.parallel.partial_wire = WireFormat::fp32;
  scenario.numerics.dkv_wire = WireFormat::fp32;
  const Plan plan = plan_of(scenario);
  expect_proved(plan);
  const PlanSummary summary = summarise(plan);
  expect_each(summary.forward_bytes, 3 * 939'524'096LL, "forward");
  expect_each(summary.backward_bytes, 4 * 939'524'096LL, "backward");
}

// A ring needs two buffers for the queries of others and as many results as ranks until the end;
// TokenRing sends each result away in the next step.
TEST(MovingQueries, BuffersAreSharedByWhatIsNotNeededAtTheSameTime) {
  const auto count = [](CommType comm, BufferKind kind, BufferRole role) {
    const Plan plan = plan_of(make_moving_case(4096, 8, comm, 1, 1));
    return std::count_if(plan.buffers.begin(), plan.buffers.end(), [&](const BufferSpec& spec) {
      return spec.rank == RankId{3} && spec.kind == kind && spec.role == role;
    });
  };
  for (const CommType comm : {CommType::pass_q, CommType::token_ring}) {
    EXPECT_EQ(count(comm, BufferKind::q, BufferRole::ring_a), 2) << "of both passes";
    EXPECT_EQ(count(comm, BufferKind::q, BufferRole::ring_b), 2);
    EXPECT_EQ(count(comm, BufferKind::q, BufferRole::received), 0);
  }
  EXPECT_EQ(count(CommType::pass_q, BufferKind::out, BufferRole::partial), 7);
  EXPECT_EQ(count(CommType::token_ring, BufferKind::out, BufferRole::partial), 1);
}

/// Every way to spoil a plan in one item, and whether the proof notices.
template <class Spoil>
void expect_refused(const Plan& healthy, const char* what, const Spoil& spoil) {
  for (const Direction direction : kDirections) {
    if (healthy.pass(direction).stages.empty()) continue;
    const size_t count = [&] {
      Plan plan = healthy;
      return spoil(plan.pass(direction), size_t{0}, true);
    }();
    const size_t stride = std::max<size_t>(1, count / 25);
    for (size_t i = 0; i < count; i += stride) {
      Plan plan = healthy;
      spoil(plan.pass(direction), i, false);
      const std::vector<CheckResult> checks = inspect_plan(plan);
      EXPECT_TRUE(std::any_of(checks.begin(), checks.end(),
                              [](const CheckResult& check) { return !check.ok; }))
          << to_name(healthy.scenario.parallel.comm_type) << ": " << what << " " << i << " of the "
          << to_name(direction) << " is not noticed";
    }
  }
}

void drop(Pass& pass, StageKind kind, int64_t index) {
  for (Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin > index) --stage.begin;
    if (stage.end > index) --stage.end;
  }
  const auto i = static_cast<size_t>(index);
  const auto erase = [&](auto& items) {
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
  };
  if (kind == StageKind::transfer) erase(pass.transfers);
  if (kind == StageKind::merge) erase(pass.merges);
  if (kind == StageKind::compute) erase(pass.computes);
}

TEST(MovingQueries, APlanThatLosesOrMovesOneItemIsRefused) {
  std::vector<Scenario> scenarios;
  for (const auto& [comm, ring_backward] : {std::pair{CommType::pass_q, RingBackward::kv},
                                            {CommType::token_ring, RingBackward::kv},
                                            {CommType::helper_ring, RingBackward::kv},
                                            {CommType::mesh, RingBackward::kv},
                                            {CommType::p2p, RingBackward::q},
                                            {CommType::double_ring, RingBackward::kv},
                                            {CommType::double_ring, RingBackward::q},
                                            {CommType::gather_q, RingBackward::kv},
                                            {CommType::gather_q, RingBackward::kv}}) {
    scenarios.push_back(make_moving_case(64, 4, comm, 2, 1));
    scenarios.back().parallel.ring_backward = ring_backward;
  }
  scenarios.back().parallel.combine = Combine::reduce_scatter;
  for (const QOwner owner : {QOwner::heads, QOwner::heads_replicated}) {
    for (const Combine combine : kCombines) {
      scenarios.push_back(make_moving_case(64, 4, CommType::gather_q, 6, 1));
      scenarios.back().parallel.q_owner = owner;
      scenarios.back().parallel.combine = combine;
      scenarios.back().numerics.backward = false;
    }
  }
  for (const Scenario& scenario : scenarios) {
    const Plan healthy = plan_of(scenario);
    expect_proved(healthy);
    expect_refused(healthy, "lost transfer", [](Pass& pass, size_t i, bool counts) {
      if (!counts) drop(pass, StageKind::transfer, static_cast<int64_t>(i));
      return pass.transfers.size();
    });
    expect_refused(healthy, "lost merge", [](Pass& pass, size_t i, bool counts) {
      if (!counts) drop(pass, StageKind::merge, static_cast<int64_t>(i));
      return pass.merges.size();
    });
    expect_refused(healthy, "lost compute", [](Pass& pass, size_t i, bool counts) {
      if (!counts) drop(pass, StageKind::compute, static_cast<int64_t>(i));
      return pass.computes.size();
    });
    expect_refused(healthy, "transfer to the next rank", [](Pass& pass, size_t i, bool counts) {
      if (!counts) pass.transfers[i].dst = RankId{(to_index(pass.transfers[i].dst) + 1) % 4};
      return pass.transfers.size();
    });
    expect_refused(
        healthy, "transfer called another payload", [](Pass& pass, size_t i, bool counts) {
          if (!counts)
            pass.transfers[i].payload =
                pass.transfers[i].payload == Payload::partial ? Payload::out : Payload::partial;
          return pass.transfers.size();
        });
    expect_refused(healthy, "compute done twice", [](Pass& pass, size_t i, bool counts) {
      if (!counts) pass.computes[i] = pass.computes[(i + 1) % pass.computes.size()];
      return pass.computes.size();
    });
    expect_refused(healthy, "merge done in another order", [](Pass& pass, size_t i, bool counts) {
      // The order of gradients of keys only counts the hops of a ring.
      if (!counts && pass.computes.front().d_out == kNoBuffer) ++pass.merges[i].order;
      if (pass.computes.front().d_out != kNoBuffer) return size_t{0};
      return pass.merges.size();
    });
  }
}

TEST(MovingQueries, AnotherRankMayNotFinishWhatItHasComputed) {
  Plan plan = plan_of(make_moving_case(64, 4, CommType::mesh, 2, 1));
  const auto sent =
      std::find_if(plan.forward.transfers.begin(), plan.forward.transfers.end(),
                   [](const TransferItem& item) { return item.payload == Payload::partial; });
  ASSERT_NE(sent, plan.forward.transfers.end());
  // Finished before it is sent, in the same step.
  const StepId step = sent->step;
  const auto at = std::find_if(
      plan.forward.stages.begin(), plan.forward.stages.end(),
      [&](const Stage& stage) { return stage.kind == StageKind::transfer && stage.step == step; });
  plan.forward.finishes.insert(plan.forward.finishes.begin(), {step, sent->src, sent->from});
  plan.forward.stages.insert(at, {step, StageKind::finish, 0, 1});
  plan.forward.stages.back().begin = 1;
  plan.forward.stages.back().end += 1;
  std::string why;
  for (const CheckResult& check : inspect_plan(plan)) {
    if (!check.ok && why.empty()) why = check.detail;
  }
  EXPECT_NE(why.find("is finished before the sum is whole"), std::string::npos) << why;
}

}  // namespace
}  // namespace cpscope::tests
