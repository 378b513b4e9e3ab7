#pragma once

#include "sim/plan/plan_check.h"
#include "sim/run/executor.h"
#include "sim/run/grade.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::tests {

/// A scenario that went through everything: plan, proof, inputs, walker, oracle, grade.
struct GradedRun {
  CheckedPlan plan;
  RunInputs inputs;
  Answer answer;
  Verdict verdict;
  Grade grade;

  const Scenario& scenario() const { return plan.plan().scenario; }
};

/// What run_graded may change about a run.
struct RunSettings {
  bool poison = true;
  int threads = 0;
  int32_t repeats = 1;  // of each pass
};

/// The proved plan of a scenario; nothing when a rule refuses it. A plan that fails its proof
/// aborts: that is no refusal.
std::optional<CheckedPlan> plan_unless_refused(const Scenario& scenario);

/// The walker's answer.
Answer walk(const CheckedPlan& plan, const RunInputs& inputs, const RunSettings& settings = {});

/// The oracle's verdict for as many hops as the plan makes.
Verdict judge_plan(const CheckedPlan& plan, const RunInputs& inputs);

/// Nothing when the scenario is refused.
std::optional<GradedRun> run_graded(const Scenario& scenario, const RunSettings& settings = {});

/// The same on another executor: its answer, or why it has none.
struct ExecutedRun {
  CheckedPlan plan;
  RunInputs inputs;
  Result<RunOutput> output;
  Grade grade;  // when there is an answer
};
std::optional<ExecutedRun> run_graded_on(Executor& executor, const Scenario& scenario,
                                         const RunSettings& settings = {});

/// The same for a scenario that nothing forbids.
GradedRun run_possible(const Scenario& scenario, const RunSettings& settings = {});

/// The scenario, and each tensor that failed: rank, step, token, head, both values, the budget.
std::string describe(const GradedRun& run);
std::string describe(const Scenario& scenario, const Grade& grade);

/// Where two answers are furthest apart, and how far: |a - b|2 over |b|2 (over 1 where |b|2 is
/// less), infinite where one is NaN or only one is infinite.
struct Difference {
  double relative = 0.0;  // of the worst tensor
  std::string tensor;
  int64_t token = 0;
  int32_t head = 0;
  double seen = 0.0;
  double expected = 0.0;
};
Difference compare(const Answer& seen, const Answer& expected);
std::string describe(const Difference& difference);

/// The same bits everywhere, NaN included.
bool is_bitwise_equal(const Answer& a, const Answer& b);

/// |seen - expected|2 / |expected|2 of one tensor.
double relative_error(const Tensor& seen, const Tensor& expected);

/// All rows of one tensor by (sequence, position) instead of packed padded id, padding left out:
/// the same numbers in every layout.
Tensor without_padding(const Tensor& tensor, const BatchSlots& slots, bool is_query);
Answer without_padding(const Answer& answer, const BatchSlots& slots);

}  // namespace cpscope::tests
