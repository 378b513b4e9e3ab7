#include "sim/run/case.h"
#include "sim/scenario/random_scenario.h"
#include "tests/program/walker_toolbox.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

CaseOptions sampling(int64_t rows, bool poison = false) {
  CaseOptions options;
  options.poison = poison;
  options.sample_rows = rows;
  return options;
}

Scenario windowed_scenario(Dtype dtype) {
  Scenario scenario;
  scenario.attention.heads = 2;
  scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 8;
  scenario.attention.window_left = 31;
  scenario.attention.window_right = 0;
  scenario.batch.lengths = {3000, 1, 2000};
  scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots =
      scenario.batch.lengths;
  scenario.parallel.cp_size = 8;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.parallel.comm_type = CommType::group_cast;
  scenario.numerics.dtype = dtype;
  return scenario;
}

TEST(SampledRun, JudgesOnlyTheRowsThatItNames) {
  Toolbox toolbox = make_walker_toolbox();
  const CaseOutcome outcome = run_case(toolbox, windowed_scenario(Dtype::fp64), sampling(40, true));
  EXPECT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  EXPECT_GE(outcome.judged.query_tokens.size(), 30u);
  EXPECT_EQ(outcome.judged.key_tokens, (std::vector<int64_t>{2999, 3000, 5000}));
  EXPECT_EQ(outcome.grade.tensors.size(), 5u);
}

TEST(SampledRun, KeepsTheBudgetOfEveryDtype) {
  Toolbox toolbox = make_walker_toolbox();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp64}) {
    const CaseOutcome outcome = run_case(toolbox, windowed_scenario(dtype), sampling(40, true));
    EXPECT_EQ(outcome.status, CaseStatus::pass) << to_name(dtype) << ": " << outcome.reason;
  }
}

TEST(SampledRun, FailsWhenOneJudgedRowIsWrong) {
  Toolbox toolbox = make_walker_toolbox();
  CaseOutcome outcome = run_case(toolbox, windowed_scenario(Dtype::fp32), sampling(40));
  ASSERT_EQ(outcome.status, CaseStatus::pass);
  const Plan& plan = outcome.plan->plan();
  const Result<Answer> exact = toolbox.sampled_judge(
      plan.scenario, outcome.inputs, outcome.judged.query_tokens, outcome.judged.key_tokens, {});
  ASSERT_TRUE(exact.ok());
  const int64_t token = outcome.judged.query_tokens[7];
  outcome.output.answer.out.values[token * 2 * 8] += 0.5;
  const Grade grade = grade_rows(plan, outcome.output.answer, exact.value(), outcome.judged);
  EXPECT_FALSE(grade.passed);
  EXPECT_FALSE(grade.tensors[0].passed);
  EXPECT_EQ(grade.tensors[0].worst.token, token);
}

TEST(SampledRun, LeavesKeysOutThatTooManyQueriesSee) {
  Toolbox toolbox = make_walker_toolbox();
  Scenario scenario = windowed_scenario(Dtype::fp64);
  scenario.attention.window_left = scenario.attention.window_right = -1;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.batch.lengths = {4400};
  scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots =
      scenario.batch.lengths;
  const CaseOutcome outcome = run_case(toolbox, scenario, sampling(20));
  EXPECT_EQ(outcome.status, CaseStatus::pass) << outcome.reason;
  EXPECT_TRUE(outcome.judged.key_tokens.empty());
  EXPECT_EQ(outcome.grade.tensors.size(), 3u);
}

}  // namespace
}  // namespace cpscope::tests
