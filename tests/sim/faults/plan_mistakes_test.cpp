// The mistakes of plans and inputs that the search for causes carries out, in random plans.

#include "sim/faults/plan_mistakes.h"

#include "reference/faulty_walker.h"
#include "sim/run/grade/case.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"

#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PlanMistakes, OfRandomPlansRunToTheirEnd) {
  std::map<std::string, int> planted;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Scenario scenario = random_scenario(seed, {.any_dtype = seed % 2 == 0,
                                                     .is_wide = seed % 5 == 0,
                                                     .moves_queries = seed % 3 == 0,
                                                     .has_rare = seed % 4 == 0});
    const Result<CheckedPlan> checked = plan_scenario(scenario);
    if (!checked) continue;
    const RunInputs inputs = make_run_inputs(checked.value().plan(), false);
    visit_plan_mistakes(checked.value().plan(), [&](PlanMistake mistake) {
      ++planted[mistake.cause];
      EXPECT_EQ(mistake.cause == "other_layout", !mistake.layout.empty()) << mistake.text;
      // Cells of a bias are found by pairs of one sequence.
      if (scenario.attention.bias != BiasShape::none && mistake.plan) {
        EXPECT_EQ(mistake.plan->slices, checked.value().plan().slices) << mistake.text;
      }
      RunInputs given = inputs;
      if (mistake.inputs) mistake.inputs(given);
      const auto run = reference::make_watched_walker({})->run(
          admit_faulty_plan(mistake.plan.value_or(checked.value().plan()), mistake.text), given,
          {});
      EXPECT_TRUE(run.ok()) << "seed " << seed << ": " << mistake.text;
      return true;
    });
  }
  for (const char* cause : {"ranks_exchanged", "stale_keys_in_backward", "buffer_overwritten",
                            "other_layout", "lengths_rounded_down", "window_reversed"})
    EXPECT_GT(planted[cause], 0) << cause;
}

TEST(PlanMistakes, EndWhenNoMoreAreTaken) {
  const std::string packed = "[batch]\nlengths = [64, 64]\n[parallel]\n";
  const std::string decoder =
      "attn_mask_type = \"causal_bottom_right\"\n[batch]\nlengths = [2]\nkv_lengths = [64]\n"
      "[parallel]\nlayout = \"contiguous\"\nq_owner = \"heads\"\ncombine = \"tree\"\n";
  const std::string forward = "[numerics]\nbackward = false\n";
  for (const std::string& text :
       {packed + "cp_size = 4\ncp_comm_type = \"all_gather\"\n",
        packed + "cp_size = 4\ncp_comm_type = \"pass_q\"\n",
        packed + "cp_size = 4\nring_backward = \"q\"\n",
        packed + "cp_size = 6\ncp_comm_type = \"double_ring\"\nring_window = 2\n",
        decoder + "cp_size = 4\ncp_comm_type = \"gather_q\"\n" + forward}) {
    const Scenario scenario =
        parse_scenario("schema = 1\n[attention]\nheads = 4\nhead_dim = 8\n" + text, "places.toml")
            .value()
            .scenario;
    const CheckedPlan checked = plan_scenario(scenario).value();
    int all = 0;
    visit_plan_mistakes(checked.plan(), [&](const PlanMistake&) { return ++all > 0; });
    for (int most = 1; most <= all; ++most) {
      int taken = 0;
      visit_plan_mistakes(checked.plan(), [&](const PlanMistake&) { return ++taken < most; });
      EXPECT_EQ(taken, most) << text;
    }
    EXPECT_GE(all, 5) << "one in each of several places: " << text;
  }
}

TEST(PlanMistakes, OfLengthsAreLeftOutWhereMasksAreStoredByDocument) {
  const auto causes_under = [](const std::string& mask) {
    const Scenario scenario =
        parse_scenario("schema = 1\n[attention]\nheads = 2\nhead_dim = 8\n" + mask +
                           "[batch]\nlengths = [32, 16, 80]\n[parallel]\ncp_size = 4\nlayout = "
                           "\"contiguous\"\n",
                       "documents.toml")
            .value()
            .scenario;
    std::set<std::string> causes;
    visit_plan_mistakes(plan_scenario(scenario).value().plan(), [&](const PlanMistake& mistake) {
      causes.insert(mistake.cause);
      return true;
    });
    return causes;
  };
  EXPECT_TRUE(causes_under("").contains("boundary_shifted"));
  EXPECT_FALSE(causes_under("bias = \"bhss\"\n").contains("boundary_shifted"));
  EXPECT_FALSE(causes_under("attn_mask_type = \"slices\"\nslices = [[0, 32, 0, 32, \"full\"], "
                            "[48, 128, 48, 128, \"causal\"]]\n")
                   .contains("boundary_shifted"));
}

TEST(PlanMistakes, WithRowsThatABufferLacksAreNotCarriedOut) {
  const Scenario scenario =
      parse_scenario(
          "schema = 1\n[attention]\nheads = 2\nhead_dim = 8\n[batch]\nlengths = [64]\n"
          "[parallel]\ncp_size = 4\n",
          "ring.toml")
          .value()
          .scenario;
  const Plan healthy = plan_scenario(scenario).value().plan();
  EXPECT_TRUE(stays_in_buffers(healthy, healthy));
  const auto is_rejected = [&](auto edit) {
    Plan plan = healthy;
    edit(plan);
    return !stays_in_buffers(healthy, plan);
  };
  EXPECT_TRUE(is_rejected([](Plan& plan) { plan.slices.front().k1 = 17; }));
  EXPECT_TRUE(is_rejected([](Plan& plan) { plan.slices.front().k0 = -1; }));
  EXPECT_TRUE(is_rejected([](Plan& plan) { plan.slices.front().q1 = 17; }));
  EXPECT_TRUE(is_rejected([](Plan& plan) { plan.layout.slots.kv_tokens += 8; }));
  EXPECT_TRUE(
      is_rejected([](Plan& plan) { plan.forward.computes.front().kv = plan.home[RankId{1}].kv; }));
  EXPECT_TRUE(
      is_rejected([](Plan& plan) { plan.forward.transfers.front().to = plan.home[RankId{0}].kv; }));
}

}  // namespace
}  // namespace cpscope::tests
