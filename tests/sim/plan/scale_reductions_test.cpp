// Agreements of the ranks on scales: which tensors, when, and their bytes.

#include "sim/plan/scale_reductions.h"

#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario scenario_with(Fp8Recipe recipe, int32_t ranks) {
  Scenario scenario;
  scenario.attention.heads = scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 8;
  scenario.batch.lengths = scenario.batch.kv_lengths = {64};
  scenario.batch.slots = scenario.batch.kv_slots = {64};
  scenario.parallel.cp_size = ranks;
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.fp8 = Fp8{.recipe = recipe};
  return scenario;
}

std::string describe_pass(const Scenario& scenario, Direction direction) {
  std::string text;
  for (const ScaleReduction& one : scale_reductions(scenario, direction))
    text += describe(one, scenario) + "\n";
  return text;
}

TEST(ScaleReductions, OfTheCurrentRecipeComeBeforeThePass) {
  const Scenario scenario = scenario_with(Fp8Recipe::current, 4);
  EXPECT_EQ(describe_pass(scenario, Direction::forward),
            "forward, before step 0: the largest of q, k, v over 4 ranks, 12 bytes a rank\n");
  EXPECT_EQ(describe_pass(scenario, Direction::backward),
            "backward, before step 0: the largest of d_out over 4 ranks, 12 bytes a rank\n");
}

TEST(ScaleReductions, OfTheDelayedRecipeComeAfterThePassForAllThatIsCast) {
  const Scenario scenario = scenario_with(Fp8Recipe::delayed, 2);
  EXPECT_EQ(describe_pass(scenario, Direction::forward),
            "forward, after the last step: the largest of q, k, v over 2 ranks, 4 bytes a rank\n"
            "forward, after the last step: the largest of P over 2 ranks, 4 bytes a rank\n"
            "forward, after the last step: the largest of out over 2 ranks, 4 bytes a rank\n");
  EXPECT_EQ(describe_pass(scenario, Direction::backward),
            "backward, after the last step: the largest of d_out over 2 ranks, 4 bytes a rank\n"
            "backward, after the last step: the largest of dS over 2 ranks, 4 bytes a rank\n"
            "backward, after the last step: the largest of dq, dk, dv over 2 ranks, 4 bytes a "
            "rank\n");
}

TEST(ScaleReductions, AreInTheSmallBytesOfAPlanAndNowhereElse) {
  for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::delayed, Fp8Recipe::mxfp8}) {
    for (const int32_t ranks : {1, 4}) {
      const Scenario scenario = scenario_with(recipe, ranks);
      const PlanSummary summary = summarise(make_plan(scenario).value());
      const bool has_any = recipe != Fp8Recipe::mxfp8 && ranks > 1;
      EXPECT_EQ(scale_reductions(scenario, Direction::forward).empty(), !has_any);
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        int64_t bytes = 0;
        for (const ScaleReduction& one : scale_reductions(scenario, direction)) bytes += one.bytes;
        const bool is_forward = direction == Direction::forward;
        EXPECT_EQ((is_forward ? summary.forward_small_bytes : summary.backward_small_bytes)[0],
                  bytes)
            << "a ring sends nothing else that is small";
      }
    }
  }
  Scenario forward = scenario_with(Fp8Recipe::current, 4);
  forward.numerics.backward = false;
  EXPECT_TRUE(scale_reductions(forward, Direction::backward).empty());
  forward.numerics.fp8.reset();
  EXPECT_TRUE(scale_reductions(forward, Direction::forward).empty());
}

}  // namespace
}  // namespace cpscope::tests
