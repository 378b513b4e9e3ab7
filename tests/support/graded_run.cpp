#include "tests/support/graded_run.h"

#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/base/check.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope::tests {
namespace {

Tensor by_head(const char* name, const std::vector<double>& values) {
  return {name, {1, static_cast<int64_t>(values.size())}, Dtype::fp64, values};
}

/// All tensors of an answer; absent ones are empty.
std::vector<Tensor> tensors_of(const Answer& answer) {
  std::vector<Tensor> tensors{answer.out, answer.lse, answer.dq, answer.dk, answer.dv};
  tensors.push_back(by_head("max_logit", answer.max_logit));
  tensors.push_back(by_head("d_sink", answer.d_sink));
  return tensors;
}

double error_between(double seen, double expected) {
  if (seen == expected) return 0.0;
  const double difference = std::abs(seen - expected);
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

Difference compare(const Tensor& seen, const Tensor& expected) {
  Difference worst;
  worst.tensor = expected.name;
  if (seen.shape != expected.shape) {
    worst.relative = std::numeric_limits<double>::infinity();
    return worst;
  }
  double error = 0, norm = 0, furthest = -1;
  const int64_t heads = expected.shape.size() > 1 ? std::max<int64_t>(1, expected.shape[1]) : 1;
  const int64_t lanes = expected.shape.size() > 2 ? std::max<int64_t>(1, expected.shape[2]) : 1;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double apart = error_between(seen.values[i], expected.values[i]);
    error += apart * apart;
    if (std::isfinite(expected.values[i])) norm += expected.values[i] * expected.values[i];
    if (apart <= furthest) continue;
    furthest = apart;
    const int64_t row = static_cast<int64_t>(i) / lanes;
    worst.token = row / heads;
    worst.head = static_cast<int32_t>(row % heads);
    worst.seen = seen.values[i];
    worst.expected = expected.values[i];
  }
  worst.relative = error == 0 ? 0.0 : std::sqrt(error) / std::max(1.0, std::sqrt(norm));
  return worst;
}

bool has_same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

}  // namespace

std::optional<CheckedPlan> plan_unless_refused(const Scenario& scenario) {
  Result<Plan> plan = make_plan(scenario);
  if (!plan) {
    CPSCOPE_CHECK(plan.error().kind == ErrorKind::refused, to_text(plan.error()),
                  print_scenario(scenario), "");
    return std::nullopt;
  }
  Result<CheckedPlan> checked = check_plan(std::move(plan).value());
  CPSCOPE_CHECK(checked.ok(), to_text(checked.error()), print_scenario(scenario), "");
  return std::move(checked).value();
}

Answer walk(const CheckedPlan& plan, const RunInputs& inputs, const RunSettings& settings) {
  RunOptions options;
  options.poison = settings.poison;
  options.threads = settings.threads;
  options.repeats = settings.repeats;
  return reference::make_plan_walker()->run(plan, inputs, options).value().answer;
}

Verdict judge_plan(const CheckedPlan& plan, const RunInputs& inputs) {
  return reference::judge(plan.plan().scenario, inputs, count_hops(plan.plan()), {}).value();
}

std::optional<GradedRun> run_graded(const Scenario& scenario, const RunSettings& settings) {
  std::optional<CheckedPlan> plan = plan_unless_refused(scenario);
  if (!plan) return std::nullopt;
  RunInputs inputs = make_run_inputs(plan->plan(), settings.poison);
  Answer answer = walk(*plan, inputs, settings);
  Verdict verdict = judge_plan(*plan, inputs);
  Grade grade = grade_answer(plan->plan(), inputs, answer, verdict);
  return GradedRun{std::move(*plan), std::move(inputs), std::move(answer), std::move(verdict),
                   std::move(grade)};
}

std::optional<ExecutedRun> run_graded_on(Executor& executor, const Scenario& scenario,
                                         const RunSettings& settings) {
  std::optional<CheckedPlan> plan = plan_unless_refused(scenario);
  if (!plan) return std::nullopt;
  RunInputs inputs = make_run_inputs(plan->plan(), settings.poison);
  RunOptions options;
  options.poison = settings.poison;
  options.threads = settings.threads;
  options.repeats = settings.repeats;
  Result<RunOutput> output = executor.run(*plan, inputs, options);
  Grade grade;
  if (output)
    grade = grade_answer(plan->plan(), inputs, output.value().answer, judge_plan(*plan, inputs));
  return ExecutedRun{std::move(*plan), std::move(inputs), std::move(output), std::move(grade)};
}

GradedRun run_possible(const Scenario& scenario, const RunSettings& settings) {
  std::optional<GradedRun> run = run_graded(scenario, settings);
  CPSCOPE_CHECK(run.has_value(), "a rule refuses the scenario", print_scenario(scenario), "");
  return std::move(*run);
}

std::string describe(const Scenario& scenario, const Grade& grade) {
  std::string text;
  for (const TensorGrade& tensor : grade.tensors) {
    if (tensor.passed) continue;
    text += fmt::format(
        "{}: rel_l2 {:.3g}, budget {:.3g}, worst row {:.3g}, {} NaN; worst at rank {}, token {}, "
        "head {}: expected {}, seen {}\n",
        tensor.name, tensor.rel_l2, tensor.budget, tensor.worst_row_rel_l2, tensor.nan,
        tensor.worst.rank, tensor.worst.token, tensor.worst.head, tensor.worst.expected,
        tensor.worst.seen);
  }
  return text + print_scenario(scenario);
}

std::string describe(const GradedRun& run) { return describe(run.scenario(), run.grade); }

Difference compare(const Answer& seen, const Answer& expected) {
  Difference worst;
  const std::vector<Tensor> a = tensors_of(seen), b = tensors_of(expected);
  for (size_t t = 0; t < b.size(); ++t) {
    const Difference difference = compare(a[t], b[t]);
    if (t == 0 || !(difference.relative <= worst.relative)) worst = difference;
  }
  return worst;
}

std::string describe(const Difference& difference) {
  return fmt::format("{}: {:.3g} apart; token {}, head {}: expected {}, seen {}\n",
                     difference.tensor, difference.relative, difference.token, difference.head,
                     difference.expected, difference.seen);
}

bool is_bitwise_equal(const Answer& a, const Answer& b) {
  const std::vector<Tensor> first = tensors_of(a), second = tensors_of(b);
  for (size_t t = 0; t < first.size(); ++t) {
    if (first[t].shape != second[t].shape || !has_same_bits(first[t].values, second[t].values))
      return false;
  }
  return true;
}

double relative_error(const Tensor& seen, const Tensor& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double apart = error_between(seen.values[i], expected.values[i]);
    error += apart * apart;
    if (std::isfinite(expected.values[i])) norm += expected.values[i] * expected.values[i];
  }
  return std::sqrt(error / norm);
}

Tensor without_padding(const Tensor& tensor, const BatchSlots& slots, Side side) {
  Tensor valid{tensor.name, tensor.shape, tensor.dtype, {}};
  if (tensor.values.empty()) return valid;
  const int64_t width = tensor.size() / std::max<int64_t>(1, tensor.shape[0]);
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    valid.values.insert(valid.values.end(), tensor.values.begin() + slot.valid_begin() * width,
                        tensor.values.begin() + slot.valid_end() * width);
  }
  valid.shape[0] = static_cast<int64_t>(valid.values.size()) / std::max<int64_t>(1, width);
  return valid;
}

Answer without_padding(const Answer& answer, const BatchSlots& slots) {
  Answer valid = answer;
  valid.out = without_padding(answer.out, slots, Side::q);
  valid.lse = without_padding(answer.lse, slots, Side::q);
  valid.dq = without_padding(answer.dq, slots, Side::q);
  valid.dk = without_padding(answer.dk, slots, Side::kv);
  valid.dv = without_padding(answer.dv, slots, Side::kv);
  return valid;
}

}  // namespace cpscope::tests
