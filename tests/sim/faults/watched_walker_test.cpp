// The watched walker without a mistake equals the walker; its trace records what was done.

#include "reference/faulty_walker.h"
#include "sim/faults/parting.h"
#include "sim/plan/plan_summary.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario case_of(CommType comm, Dtype dtype) {
  Scenario scenario = walker_case({37, 16, 21}, 4);
  scenario.parallel.comm_type = comm;
  scenario.numerics.dtype = dtype;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 10000;
  return scenario;
}

Answer walk_watched(const CheckedPlan& plan, const RunInputs& inputs, WalkTrace* trace) {
  return reference::make_watched_walker({.trace = trace})->run(plan, inputs, {}).value().answer;
}

TEST(WatchedWalker, GivesTheWalkersBitsWhenNothingIsWrong) {
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::fp64, Dtype::bf16}) {
      const Scenario scenario = case_of(comm, dtype);
      const CheckedPlan plan = *plan_unless_refused(scenario);
      const RunInputs inputs = make_run_inputs(plan.plan(), false);
      WalkTrace trace;
      EXPECT_TRUE(is_bitwise_equal(walk_watched(plan, inputs, &trace),
                                   walk(plan, inputs, {.poison = false})))
          << print_scenario(scenario);
    }
  }
}

TEST(WatchedWalker, CountsTheBytesAndPairsThatTheProvedPlanSays) {
  for (const CommType comm : kCommTypes) {
    const Scenario scenario = case_of(comm, Dtype::bf16);
    const CheckedPlan plan = *plan_unless_refused(scenario);
    const RunInputs inputs = make_run_inputs(plan.plan(), false);
    WalkTrace trace;
    walk_watched(plan, inputs, &trace);
    const PlanSummary summary = summarise(plan.plan());
    std::vector<int64_t> bytes(4, 0), pairs(4, 0);
    for (const ItemWork& work : trace.work) {
      if (work.item.direction == Direction::backward) continue;
      bytes[to_index(work.rank)] += work.bytes;
      pairs[to_index(work.rank)] += work.pairs;
    }
    EXPECT_EQ(bytes, summary.forward_bytes) << to_name(comm);
    EXPECT_EQ(pairs, summary.pairs_by_rank) << to_name(comm);
  }
}

TEST(Parting, IsNothingBetweenTwoRunsOfOnePlan) {
  const Scenario scenario = case_of(CommType::p2p, Dtype::fp64);
  const CheckedPlan plan = *plan_unless_refused(scenario);
  const RunInputs inputs = make_run_inputs(plan.plan(), false);
  WalkTrace a, b;
  walk_watched(plan, inputs, &a);
  walk_watched(plan, inputs, &b);
  EXPECT_FALSE(find_parting(plan.plan(), a, plan.plan(), b).has_value());
  EXPECT_EQ(count_parted_results(plan.plan(), a, plan.plan(), b), 0);
}

TEST(Parting, NamesTheRowOfTheInputThatWasChanged) {
  const Scenario scenario = case_of(CommType::p2p, Dtype::fp64);
  const CheckedPlan plan = *plan_unless_refused(scenario);
  RunInputs inputs = make_run_inputs(plan.plan(), false);
  WalkTrace a, b;
  walk_watched(plan, inputs, &a);
  // Slots of 40, 16 and 24 tokens on 4 ranks: token 45 is the sixth of sequence 1, chunk 2, rank 2.
  inputs.v.values[45 * 2 * 8 + 3] += 0.5;
  walk_watched(plan, inputs, &b);
  const auto parting = find_parting(plan.plan(), a, plan.plan(), b);
  ASSERT_TRUE(parting.has_value());
  EXPECT_TRUE(parting->site.is_load);
  EXPECT_EQ(to_index(parting->site.rank), 2);
  EXPECT_EQ(parting->token, 45);
  EXPECT_EQ(parting->row_end - parting->row_begin, 1);
}

}  // namespace
}  // namespace cpscope::tests
