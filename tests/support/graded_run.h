#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/run/executor.h"
#include "sim/run/grade/grade.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::tests {

/// A scenario after all stages: plan, proof, inputs, walker, oracle, grade.
struct GradedRun {
  CheckedPlan plan;
  RunInputs inputs;
  Answer answer;
  Verdict verdict;
  Grade grade;

  const Scenario& scenario() const { return plan.plan().scenario; }
};

/// The settings of a run that run_graded can change.
struct RunSettings {
  bool poison = true;
  int threads = 0;
  int32_t repeats = 1;  // repetitions of each pass
};

/// The proved plan of a scenario; nothing when a rule rejects the scenario. A plan that fails its
/// proof aborts the test: that is not a rejection.
std::optional<CheckedPlan> plan_unless_refused(const Scenario& scenario);

/// Returns the walker's answer.
Answer walk(const CheckedPlan& plan, const RunInputs& inputs, const RunSettings& settings = {});

/// Returns the oracle's verdict for the number of hops in the plan.
Verdict judge_plan(const CheckedPlan& plan, const RunInputs& inputs);

/// Runs and grades a scenario; nothing when it is rejected.
std::optional<GradedRun> run_graded(const Scenario& scenario, const RunSettings& settings = {});

/// The same run on another executor: its answer, or why it has none.
struct ExecutedRun {
  CheckedPlan plan;
  RunInputs inputs;
  Result<RunOutput> output;
  Grade grade;  // set when there is an answer
};
std::optional<ExecutedRun> run_graded_on(Executor& executor, const Scenario& scenario,
                                         const RunSettings& settings = {});

/// Like run_graded, for a scenario that must not be rejected.
GradedRun run_possible(const Scenario& scenario, const RunSettings& settings = {});

/// Describes the scenario, and each tensor that failed: rank, step, token, head, both values, the
/// budget.
std::string describe(const GradedRun& run);
std::string describe(const Scenario& scenario, const Grade& grade);

/// The position of the largest difference of two answers, and its size: |a - b|2 divided by |b|2
/// (by 1 if |b|2 is less); infinite if one is NaN or only one is infinite.
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

/// True if all bits are equal, including NaN.
bool is_bitwise_equal(const Answer& a, const Answer& b);

/// Returns |seen - expected|2 / |expected|2 of one tensor.
double relative_error(const Tensor& seen, const Tensor& expected);

/// All rows of one tensor by (sequence, position) instead of packed padded id, without padding: the
/// same numbers in every layout.
Tensor without_padding(const Tensor& tensor, const BatchSlots& slots, Side side);
Answer without_padding(const Answer& answer, const BatchSlots& slots);

}  // namespace cpscope::tests
