#include "sim/run/grade/case.h"
#include "sim/run/grade/cause_search.h"
#include "sim/run/run_inputs.h"
#include "tests/program/judged_causes.h"
#include "tests/program/walker_toolbox.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

class Causes : public testing::TestWithParam<PlantedMistake> {};

TEST_P(Causes, AreNamedInBothTypes) {
  int failed = 0;
  for (const char* dtype : {"bf16", "fp32"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::string text = random_scenario_of(GetParam(), dtype, seed);
      const JudgedCauses judged = judge_planted(GetParam(), text);
      if (judged.grade.passed) continue;  // the mistake changes nothing here
      ++failed;
      EXPECT_EQ(judged.first_cause(), GetParam().cause) << judged.describe() << '\n' << text;
    }
  }
  EXPECT_GT(failed, 0) << "the mistake changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Planted, Causes, testing::ValuesIn(planted_mistakes()), name_of_mistake);

TEST(Causes, OfRightAnswersAreNotLookedFor) {
  const PlantedMistake right{
      .name = "Right", .cause = "none", .plant = [](const Plan& plan, const RunInputs& inputs) {
        return compute_wrongly(plan, inputs, {});
      }};
  PlantedMistake turned = right;
  turned.attention = "attn_mask_type = \"causal_bottom_right\"\nrope_theta = 100.0\n";
  turned.batch = "lengths = [13, 9]\nkv_lengths = [29, 40]";
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      const std::string text = random_scenario_of(seed % 2 == 0 ? turned : right, dtype, seed);
      const JudgedCauses judged = judge_planted(right, text);
      EXPECT_TRUE(judged.grade.passed) << describe_first_failure(judged.grade) << text;
      EXPECT_EQ(judged.describe(), "") << text;
    }
  }
}

TEST(Causes, AreNoMistakesThatChangeNothing) {
  // With budgets of nothing, what the roundings of a right run make of its rows is an error.
  const Toolbox toolbox = make_walker_toolbox();
  for (const char* type : {"p2p", "a2a"}) {
    const Scenario scenario =
        parse_scenario(fmt::format("schema = 1\n[attention]\nheads = 4\nhead_dim = 8\n[batch]\n"
                                   "lengths = [61, 30]\n[parallel]\ncp_size = 4\n"
                                   "cp_comm_type = \"{}\"\n[numerics]\ndtype = \"fp16\"\n",
                                   type),
                       "right.toml")
            .value()
            .scenario;
    const CheckedPlan checked = plan_scenario(scenario).value();
    const Plan& plan = checked.plan();
    const RunInputs inputs = make_run_inputs(plan, false);
    const Answer seen = toolbox.watched_walker({})->run(checked, inputs, {}).value().answer;
    Verdict verdict = toolbox.oracle.judge(scenario, inputs, count_hops(plan), {}).value();
    verdict.plain = verdict.exact;
    for (auto* terms :
         {&verdict.terms.out, &verdict.terms.dq, &verdict.terms.dk, &verdict.terms.dv})
      std::fill(terms->begin(), terms->end(), 0.0);
    Grade grade = grade_answer(plan, inputs, seen, verdict, {.keeps_row_budgets = true});
    ASSERT_FALSE(grade.passed) << type;
    for (TensorGrade& tensor : grade.tensors)
      for (float& budget : tensor.row_budgets) budget /= 64;
    EXPECT_FALSE(find_causes(toolbox, plan, inputs, {.seen = seen, .exact = verdict.exact}, grade));
    for (const Cause& cause : grade.causes) ADD_FAILURE() << type << ": " << describe(cause);
  }
}

}  // namespace
}  // namespace cpscope::tests
