#include "gui/app/document/exact_steps.h"

#include "gui/model/axis.h"
#include "gui/model/describe.h"
#include "sim/run/grade/case.h"
#include "sim/run/grade/first_item.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

FirstParting describe_parting(const FirstItem& first, const PlanIndex& plan,
                              const std::string& beside) {
  const ItemTensorName& name = first.name;
  FirstParting parting;
  parting.step = number_of_step(plan, name.item.direction, name.step);
  const auto* array = std::find(kErrorTensors.begin(), kErrorTensors.end(), name.array);
  parting.tensor = static_cast<int32_t>(array - kErrorTensors.begin());
  parting.item = name.item;
  parting.text = fmt::format(
      "First item that differs from {} by more than both budgets allow: {} of rank {} in step {}, "
      "{}",
      beside, name_target(name.item, &plan), to_index(name.rank), to_index(name.step) + 1,
      name.array);
  if (!first.diff.shape_mismatch.empty()) {
    parting.text += ": " + first.diff.shape_mismatch;
    return parting;
  }
  if (first.place) {
    parting.token = first.place->token;
    parting.head = first.place->head;
  }
  if (parting.token >= 0)
    parting.text += fmt::format(" of token {}, head {}", print_count(parting.token), parting.head);
  parting.text += fmt::format(": {:.6g} and {:.6g}", first.diff.left, first.diff.right);
  return parting;
}

/// Runs the plan on the walker with the inputs of a run and returns the result as a record.
Result<RunRecord> walk(const CheckedPlan& plan, const RunInputs& inputs, const std::string& hash,
                       const Toolbox& toolbox, const RunControl& control) {
  const auto walker = std::find_if(toolbox.executors.begin(), toolbox.executors.end(),
                                   [](const auto& executor) { return executor->name() == "cpu"; });
  if (walker == toolbox.executors.end())
    return make_error(ErrorKind::unavailable,
                      "This build has no CPU executor, which computes the exact steps");
  RunRecord record;
  record.plan_hash = hash;
  RunOptions options{.control = control};
  options.observer = [&](const ItemResult& result) {
    record.tensors.push_back(make_item_tensor(result, Dtype::fp64));
  };
  Result<RunOutput> output = (*walker)->run(plan, inputs, options);
  if (!output) return output.error();
  Answer& answer = output.value().answer;
  for (Tensor* tensor : {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv})
    if (!tensor->values.empty()) record.tensors.push_back(std::move(*tensor));
  return record;
}

RunControl share_of(const RunControl& control, int64_t begin, int64_t of) {
  RunControl part{.is_cancelled = control.is_cancelled};
  if (control.progress) {
    part.progress = [&control, begin, of](int64_t done, int64_t total) {
      control.progress(begin * total + done, of * total);
    };
  }
  return part;
}

/// The first item whose distance to `expected` is more than the earned tolerances of both sides.
std::optional<FirstParting> find_first(const RunRecord& seen, const RunRecord& expected,
                                       const PlanIndex& plan, const std::string& beside) {
  const DiffRule rule{.is_earned = true};
  const auto first = find_first_item(seen, expected, diff_runs(seen, expected), rule, &plan.plan());
  if (!first) return std::nullopt;
  return describe_parting(*first, plan, beside);
}

}  // namespace

std::string to_sentence(const Error& error) {
  const Complaint& first = error.complaints.front();
  std::string text = first.what + ".";
  if (first.hint.empty()) return text;
  std::string hint = first.hint;
  if (hint[0] >= 'a' && hint[0] <= 'z') hint[0] = static_cast<char>(hint[0] - 'a' + 'A');
  return text + " " + hint + ".";
}

std::optional<Error> refuse_items(const PlanIndex& plan) {
  const ItemResultsSize size = measure_item_results(plan.plan());
  if (size.bytes <= kMostItemBytes && size.arrays <= kMaxItemArrays) return std::nullopt;
  return make_error(
      ErrorKind::unavailable,
      fmt::format("No steps: the results of all items take {}, and the window keeps up to {}",
                  print_bytes(size.bytes), print_bytes(kMostItemBytes)),
      "use fewer tokens, heads or ranks, or `cpscope run --items` and `cpscope diff`");
}

Result<StepErrors> compare_steps(const RunRecord& seen, const RunRecord& expected,
                                 const PlanIndex& plan, const std::string& against) {
  Result<StepErrors> steps = measure_steps(seen, expected, plan, against);
  if (!steps) return steps;
  steps.value().judged_beside = against;
  steps.value().first = find_first(seen, expected, plan, against);
  return steps;
}

Result<StepErrors> compare_with_exact_steps(const RunRecord& record, const RunInputs& inputs,
                                            const PlanIndex& plan, const Toolbox& toolbox,
                                            const RunControl& control) {
  if (auto error = refuse_items(plan)) return *std::move(error);
  Scenario unrounded = plan.plan().scenario;
  unrounded.numerics.dtype = Dtype::fp64;
  unrounded.numerics.fp8.reset();
  const Result<CheckedPlan> exact_plan = vary_plan(plan.plan(), unrounded);
  if (!exact_plan) return exact_plan.error();
  Result<RunRecord> exact =
      walk(exact_plan.value(), inputs, record.plan_hash, toolbox, share_of(control, 0, 2));
  if (!exact) return exact.error();
  Result<StepErrors> steps =
      measure_steps(record, exact.value(), plan, "the exact partial results");
  if (!steps) return steps;
  exact = RunRecord{};
  Result<RunRecord> walked =
      walk(plan.checked(), inputs, record.plan_hash, toolbox, share_of(control, 1, 2));
  if (!walked) return walked.error();
  // The budgets come from the judge and hold for any run of this scenario.
  walked.value().budgets = record.budgets;
  steps.value().judged_beside = "the walker in the same dtype";
  steps.value().first = find_first(record, walked.value(), plan, steps.value().judged_beside);
  return steps;
}

}  // namespace cpscope::gui
