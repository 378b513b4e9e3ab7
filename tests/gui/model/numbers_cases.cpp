#include "tests/gui/model/numbers_cases.h"

#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/base/check.h"
#include "sim/scenario/scenario_file.h"

#include <limits>
#include <utility>

namespace cpscope::tests {

Toolbox make_numbers_toolbox() {
  Toolbox toolbox;
  toolbox.executors.push_back(reference::make_plan_walker());
  toolbox.oracle = reference::dense_oracle();
  return toolbox;
}

CaseOutcome run_walker(const Scenario& scenario, bool keeps_items) {
  Toolbox toolbox = make_numbers_toolbox();
  CaseOptions options;
  options.poison = true;
  options.keeps_items = keeps_items;
  options.keeps_exact = true;
  return run_case(toolbox, scenario, options);
}

gui::SharedPlan plan_shipped(const std::string& name) {
  const auto loaded = load_scenario(std::string(CPSCOPE_SCENARIOS) + "/" + name + ".toml");
  CPSCOPE_CHECK(loaded.ok(), "a shipped scenario does not load", name, "");
  Result<CheckedPlan> plan = plan_scenario(loaded.value().scenario);
  CPSCOPE_CHECK(plan.ok(), "a shipped scenario has no plan", name, "");
  return std::make_shared<gui::PlanIndex>(std::move(plan).value());
}

NumbersCase run_shipped(const std::string& name, bool keeps_items) {
  NumbersCase made{plan_shipped(name), {}};
  made.outcome = run_walker(made.plan->plan().scenario, keeps_items);
  return made;
}

void plant_faults(NumbersCase& made) {
  CaseOutcome& outcome = made.outcome;
  Tensor& out = outcome.output.answer.out;
  const int64_t tokens = out.shape[0], heads = out.shape[1], lanes = out.shape[2];
  out.values[((tokens * 5 / 8) * heads + heads - 1) * lanes + 3] += 0.75;
  out.values[((tokens / 4) * heads + heads / 2) * lanes] = std::numeric_limits<double>::quiet_NaN();
  const Plan& plan = made.plan->plan();
  const Result<Verdict> verdict =
      reference::judge(plan.scenario, outcome.inputs, count_hops(plan), {});
  outcome.grade = grade_answer(plan, outcome.inputs, outcome.output.answer, verdict.value(),
                               {.keeps_row_budgets = true});
}

}  // namespace cpscope::tests
