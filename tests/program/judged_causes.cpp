#include "tests/program/judged_causes.h"

#include "sim/run/grade/case.h"
#include "sim/run/grade/cause_search.h"
#include "sim/run/run_inputs.h"
#include "tests/program/walker_toolbox.h"

#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope::tests {
namespace {

/// Rows that are over their budget, of one tensor.
int64_t count_wrong_rows(const TensorGrade& tensor, const Tensor& seen, const Tensor& exact) {
  const size_t lanes = exact.shape.size() > 2 ? static_cast<size_t>(exact.shape[2]) : 1;
  int64_t wrong = 0;
  for (size_t row = 0; row < tensor.row_budgets.size(); ++row) {
    double sum = 0;
    for (size_t i = row * lanes; i < (row + 1) * lanes; ++i)
      if (seen.values[i] != exact.values[i]) sum += std::pow(seen.values[i] - exact.values[i], 2);
    wrong += std::sqrt(sum) <= static_cast<double>(tensor.row_budgets[row]) ? 0 : 1;
  }
  return wrong;
}

}  // namespace

std::string JudgedCauses::first_cause() const {
  return grade.causes.empty() ? "none" : grade.causes.front().name;
}

std::string JudgedCauses::describe() const {
  std::vector<std::string> said;
  for (const Cause& cause : grade.causes) said.push_back(cpscope::describe(cause));
  said.insert(said.end(), grade.common.begin(), grade.common.end());
  return fmt::format("{}", fmt::join(said, "\n"));
}

bool JudgedCauses::changes_rows(double share) const {
  return static_cast<double>(wrong_rows) >= share * static_cast<double>(rows);
}

JudgedCauses judge_planted(const PlantedMistake& mistake, const std::string& text) {
  const Toolbox toolbox = make_walker_toolbox();
  const Result<LoadedScenario> loaded = parse_scenario(text, mistake.name + ".toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error()) << text;
  const Result<CheckedPlan> checked = plan_scenario(loaded.value().scenario);
  EXPECT_TRUE(checked.ok()) << to_text(checked.error()) << text;
  const Plan& plan = checked.value().plan();
  const RunInputs inputs = make_run_inputs(plan, mistake.poison);
  const Answer seen = mistake.plant(plan, inputs);
  const Verdict verdict = toolbox.oracle.judge(plan.scenario, inputs, count_hops(plan), {}).value();
  JudgedCauses judged;
  judged.grade = grade_answer(plan, inputs, seen, verdict,
                              {.keeps_row_budgets = true, .leaves_out_absent = true});
  const auto error =
      find_causes(toolbox, plan, inputs, {.seen = seen, .exact = verdict.exact}, judged.grade);
  EXPECT_FALSE(error) << to_text(*error);
  for (const auto member : {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv}) {
    const TensorGrade* tensor = judged.grade.find((seen.*member).name);
    if (tensor == nullptr || tensor->passed) continue;
    const int64_t wrong = count_wrong_rows(*tensor, seen.*member, verdict.exact.*member);
    if (judged.rows > 0 && wrong * judged.rows <= judged.wrong_rows * tensor->rows) continue;
    judged.wrong_rows = wrong;
    judged.rows = tensor->rows;
  }
  return judged;
}

void expect_named(const NamedCause& expected, const std::string& text) {
  const Fault& fault = fault_called(expected.fault);
  const PlantedMistake mistake{
      .name = expected.fault,
      .cause = expected.cause,
      .plant = [&](const Plan& plan,
                   const RunInputs& inputs) { return run_planted(fault, plan, inputs); },
      .poison = fault.poison};
  const JudgedCauses judged = judge_planted(mistake, text);
  EXPECT_FALSE(judged.grade.passed) << expected.fault << " is not caught\n" << text;
  EXPECT_EQ(judged.first_cause(), expected.cause) << expected.fault << '\n'
                                                  << judged.describe() << '\n'
                                                  << text;
}

}  // namespace cpscope::tests
