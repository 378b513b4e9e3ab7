#include "gui/app/run_views.h"

#include "gui/app/document/exact_steps.h"
#include "gui/app/prediction.h"
#include "gui/app/run_difference.h"
#include "sim/clock/foreign_trace.h"
#include "sim/faults/fault.h"
#include "sim/faults/faulty_executor.h"
#include "sim/run/grade/first_item.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/grade/sample.h"
#include "sim/run/grade/share_search.h"
#include "sim/run/record/item_tensors.h"
#include "sim/run/record/record_match.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_names.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

/// Above this amount of work (about half a minute) the judge checks a sample of the rows.
constexpr double kMostJudgedFlops = 4e11;
constexpr int64_t kSampledRows = 512;
/// Shares of the progress bar at which the judge begins and at which exact steps begin.
constexpr double kRunShare = 0.4, kJudgeShare = 0.7;

std::array<const Tensor*, kErrorTensors.size()> tensors_of(const Answer& answer) {
  return {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv};
}

const TensorGrade* find_grade(const Grade& grade, std::string_view name) {
  for (const TensorGrade& tensor : grade.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

/// Errors of all tensors that both sides have. `judged` is empty when all rows were judged.
std::vector<ErrorField> measure_answer(const Answer& seen, const Answer& exact, const Grade& grade,
                                       const JudgedRows& judged) {
  std::vector<ErrorField> errors;
  for (size_t t = 0; t < kErrorTensors.size(); ++t) {
    const Tensor &left = *tensors_of(seen)[t], &right = *tensors_of(exact)[t];
    const std::string name(kErrorTensors[t]);
    const TensorGrade* graded = find_grade(grade, name);
    if (left.values.empty() || right.values.empty() || graded == nullptr) continue;
    if (judged.query_tokens.empty() && judged.key_tokens.empty()) {
      if (left.shape == right.shape) errors.push_back(measure_errors(left, right, name, graded));
      continue;
    }
    const std::vector<int64_t>& tokens = t < 3 ? judged.query_tokens : judged.key_tokens;
    errors.push_back(measure_sampled_errors(left, right, tokens, name, graded));
  }
  return errors;
}

std::string describe_verdict(const Grade& grade) {
  if (grade.passed) return "Passes: every row of every tensor is within its budget.";
  return "Fails: " + describe_first_failure(grade);
}

std::string dtype_of(const Scenario& scenario) {
  return std::string(dtype_name(scenario.numerics));
}

Error bad_record(const std::string& path, std::string what, std::string hint = "") {
  return make_error(ErrorKind::bad_input, std::move(what), std::move(hint), path);
}

/// Copies a tensor of the record and checks its shape against the plan; `into` stays empty when the
/// record does not have the tensor.
std::optional<Error> take_tensor(const RunRecord& record, const std::string& name,
                                 const std::vector<int64_t>& shape, const std::string& path,
                                 Tensor& into) {
  const Tensor* tensor = record.find(name);
  if (tensor == nullptr) return std::nullopt;
  if (tensor->shape != shape)
    return bad_record(path,
                      fmt::format("Tensor {} of this record has another shape than its "
                                  "scenario gives it",
                                  name),
                      "record the run again");
  into = *tensor;
  return std::nullopt;
}

/// The inputs and answer of a record, in the shapes of its plan.
struct RecordedRun {
  RunInputs inputs;
  Answer answer;
};

std::optional<Error> take_by_head(const RunRecord& record, const std::string& name, int64_t heads,
                                  const std::string& path, std::vector<double>& into) {
  Tensor tensor;
  if (auto error = take_tensor(record, name, {heads}, path, tensor)) return error;
  if (!tensor.values.empty()) into = std::move(tensor.values);
  return std::nullopt;
}

Result<RecordedRun> take_run(const RunRecord& record, const Plan& plan, const std::string& path) {
  const Attention& attention = plan.scenario.attention;
  const BatchSlots& slots = plan.layout.slots;
  const std::vector<int64_t> q{slots.tokens, attention.heads, attention.head_dim_qk};
  const std::vector<int64_t> out{slots.tokens, attention.heads, attention.head_dim_v};
  const std::vector<int64_t> k{slots.kv_tokens, attention.kv_heads, attention.key_dim()};
  const std::vector<int64_t> v{slots.kv_tokens, attention.kv_heads, attention.head_dim_v};
  // Inputs are generated from the seed; those in the record replace them.
  RecordedRun run{make_run_inputs(plan, false), {}};
  struct Wanted {
    const char* name;
    std::vector<int64_t> shape;
    Tensor* into;
  };
  Answer& answer = run.answer;
  std::vector<Wanted> wanted = {{"q", q, &run.inputs.q},
                                {"k", k, &run.inputs.k},
                                {"v", v, &run.inputs.v},
                                {"out", out, &answer.out},
                                {"lse", {q[0], q[1]}, &answer.lse}};
  if (plan.scenario.numerics.backward) {
    wanted.insert(wanted.end(), {{"d_out", out, &run.inputs.d_out},
                                 {"dq", q, &answer.dq},
                                 {"dk", k, &answer.dk},
                                 {"dv", v, &answer.dv}});
  }
  for (const Wanted& tensor : wanted) {
    const bool is_of_v = tensor.into == &run.inputs.v || tensor.into == &answer.dv;
    if (is_of_v && attention.latent_dim > 0) continue;
    if (auto error = take_tensor(record, tensor.name, tensor.shape, path, *tensor.into))
      return *std::move(error);
    if (tensor.into->values.empty())
      return bad_record(path, fmt::format("This record has no tensor {}", tensor.name),
                        "record the run again");
  }
  const int64_t heads = attention.heads;
  if (auto error = take_by_head(record, "max_logit", heads, path, answer.max_logit)) return *error;
  if (auto error = take_by_head(record, "d_sink", heads, path, answer.d_sink)) return *error;
  if (!run.inputs.sink.empty()) {
    if (auto error = take_by_head(record, "sink", heads, path, run.inputs.sink)) return *error;
  }
  return run;
}

RunControl control_of(TaskControl& control, double begin, double end) {
  return {[&control, begin, end](int64_t done, int64_t total) {
            const double share =
                total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
            control.reach(begin + (end - begin) * share);
          },
          [&control] { return control.is_stopped.load(); }};
}

/// A recorded run with its judgement, made as for a run of this program.
struct JudgedRun {
  Grade grade;
  Answer exact;
  JudgedRows rows;
};

Result<JudgedRun> judge_run(const RecordedRun& run, const PlanIndex& index, const Toolbox& toolbox,
                            const RunControl& watched) {
  const Plan& plan = index.plan();
  JudgedRun judged;
  if (estimate_flops(plan.scenario, index.summary()) <= kMostJudgedFlops) {
    Result<Verdict> verdict =
        toolbox.oracle.judge(plan.scenario, run.inputs, count_hops(plan), watched);
    if (!verdict) return verdict.error();
    judged.grade =
        grade_answer(plan, run.inputs, run.answer, verdict.value(), {.keeps_row_budgets = true});
    judged.exact = std::move(verdict.value().exact);
    if (auto error = search_shares(
            toolbox, plan, run.inputs, run.answer,
            {.exact = judged.exact, .given = judged.exact, .control = watched}, judged.grade))
      return *error;
    return judged;
  }
  Result<SampledGrade> sampled = grade_sample(toolbox, plan, run.inputs, run.answer,
                                              {.rows = kSampledRows, .control = watched});
  if (!sampled) return sampled.error();
  return JudgedRun{std::move(sampled.value().grade), std::move(sampled.value().exact),
                   std::move(sampled.value().rows)};
}

}  // namespace

RunView make_run_view(CaseOutcome& outcome) {
  RunView view;
  view.name = outcome.executor;
  view.against = "the oracle";
  if (!outcome.plan) return view;
  view.name += fmt::format(" ({})", dtype_of(outcome.plan->plan().scenario));
  view.events = outcome.output.events;
  if (outcome.grade.tensors.empty()) return view;
  view.errors = measure_answer(outcome.output.answer, outcome.exact, outcome.grade, outcome.judged);
  view.verdict = describe_verdict(outcome.grade);
  view.passed = outcome.grade.passed;
  view.record = std::make_shared<RunRecord>(
      make_record(outcome, print_scenario(outcome.plan->plan().scenario)));
  return view;
}

Result<SharedRun> compare_runs(const RunView& a, const RunView& b, const PlanIndex& plan) {
  if (!a.record || !b.record)
    return make_error(ErrorKind::unavailable, "One of the two runs kept no answer to compare",
                      "run it again");
  for (const RunView* run : {&a, &b}) {
    if (auto error = check_record(*run->record, plan.plan(), run->name)) return *error;
  }
  const std::vector<TensorDiff> diffs = diff_runs(*a.record, *b.record);
  auto view = std::make_shared<RunView>();
  view->name = a.name;
  view->against = b.name;
  view->events = a.events;
  view->is_simulated = a.is_simulated;
  view->record = a.record;
  const bool is_same = add_differences(*a.record, *b.record, diffs, *view);
  view->verdict = is_same ? "The two runs agree within the earned tolerances of both."
                          : "The two runs are further apart than their budgets explain.";
  const DiffRule rule{.is_earned = true};
  if (auto first = find_first_item(*a.record, *b.record, diffs, rule, &plan.plan())) {
    // Steps count from 1 on screen.
    first->name.step = StepId{to_index(first->name.step) + 1};
    view->first_divergence = describe_first_item(*first, rule);
  }
  Result<StepErrors> steps = compare_steps(*a.record, *b.record, plan, b.name);
  if (steps)
    view->steps = std::make_shared<StepErrors>(std::move(steps).value());
  else
    view->without_steps = to_sentence(steps.error());
  return SharedRun(std::move(view));
}

Result<SharedRun> load_run(const std::string& path, const PlanIndex& plan, const Toolbox& toolbox,
                           TaskControl& control) {
  Result<RunRecord> record = read_record(path);
  if (!record) return record.error();
  if (auto error = check_record(record.value(), plan.plan(), path)) return *std::move(error);
  if (auto error = check_events(record.value(), plan.plan(), path)) return *std::move(error);
  Result<RecordedRun> run = take_run(record.value(), plan.plan(), path);
  if (!run) return run.error();
  const Result<JudgedRun> judged =
      judge_run(run.value(), plan, toolbox, control_of(control, 0, kJudgeShare));
  if (!judged) return judged.error();
  auto view = std::make_shared<RunView>();
  view->name = fmt::format("{}: {} ({})", std::filesystem::path(path).filename().string(),
                           record.value().executor, dtype_of(plan.plan().scenario));
  view->against = "the oracle";
  view->events = record.value().events;
  view->is_simulated = record.value().clock == "simulated";
  view->errors = measure_answer(run.value().answer, judged.value().exact, judged.value().grade,
                                judged.value().rows);
  view->verdict = describe_verdict(judged.value().grade);
  view->passed = judged.value().grade.passed;
  view->record = std::make_shared<RunRecord>(std::move(record).value());
  if (auto error =
          add_steps(*view, run.value().inputs, plan, toolbox, control_of(control, kJudgeShare, 1)))
    return *std::move(error);
  control.reach(1.0);
  return SharedRun(std::move(view));
}

std::optional<Error> add_steps(RunView& view, const RunInputs& inputs, const PlanIndex& plan,
                               const Toolbox& toolbox, const RunControl& control) {
  if (!view.record || !holds_items(*view.record)) {
    if (view.without_steps.empty())
      view.without_steps =
          "This run holds no results of its steps. Record it again with `cpscope run --items`.";
    return std::nullopt;
  }
  if (estimate_flops(plan.plan().scenario, plan.summary()) > kMostJudgedFlops) {
    view.without_steps =
        "Steps are not compared with exact results: computing those would take minutes. Use fewer "
        "tokens, heads "
        "or ranks, or open a second run of the same plan and compare with that.";
    return std::nullopt;
  }
  Result<StepErrors> steps = compare_with_exact_steps(*view.record, inputs, plan, toolbox, control);
  if (!steps && control.is_cancelled && control.is_cancelled()) return steps.error();
  if (steps)
    view.steps = std::make_shared<StepErrors>(std::move(steps).value());
  else
    view.without_steps = to_sentence(steps.error());
  return std::nullopt;
}

namespace {

/// The CPU's executor with a fault of the gallery planted in it; nothing if it has no such name.
std::optional<Toolbox> make_faulty_toolbox(const Toolbox& toolbox, const std::string& executor) {
  if (!executor.starts_with(kFaultExecutor) || !toolbox.watched_walker) return std::nullopt;
  for (const Fault& fault : fault_catalogue()) {
    if (executor.substr(kFaultExecutor.size()) != fault.name) continue;
    Toolbox faulty;
    faulty.executors.push_back(std::make_unique<FaultyExecutor>(&fault, toolbox.watched_walker));
    faulty.oracle = toolbox.oracle;
    return faulty;
  }
  return std::nullopt;
}

Result<SharedRun> run_and_judge(Toolbox& toolbox, const std::string& executor,
                                const SharedPlan& plan, TaskControl& control) {
  const Scenario& scenario = plan->plan().scenario;
  CaseOptions options{.executor = executor, .poison = true};
  options.measures_items = true;
  options.keeps_exact = true;
  const std::optional<Error> refusal = refuse_items(*plan);
  options.keeps_items = !refusal;
  if (estimate_flops(scenario, plan->summary()) > kMostJudgedFlops)
    options.sample_rows = kSampledRows;
  options.is_cancelled = [&control] { return control.is_stopped.load(); };
  options.progress = [&control](std::string_view phase, int64_t done, int64_t total) {
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    control.reach(phase == "run" ? kRunShare * share
                                 : kRunShare + (kJudgeShare - kRunShare) * share);
  };
  CaseOutcome outcome = run_case(toolbox, plan->checked(), options);
  if (outcome.error) return *outcome.error;
  auto view = std::make_shared<RunView>(make_run_view(outcome));
  if (refusal) view->without_steps = to_sentence(*refusal);
  if (auto error =
          add_steps(*view, outcome.inputs, *plan, toolbox, control_of(control, kJudgeShare, 1)))
    return *std::move(error);
  control.reach(1.0);
  return SharedRun(std::move(view));
}

}  // namespace

Runner make_runner(Toolbox& toolbox) {
  return [&toolbox](const std::string& executor, const SharedPlan& plan,
                    TaskControl& control) -> Result<SharedRun> {
    std::optional<Toolbox> faulty = make_faulty_toolbox(toolbox, executor);
    if (!faulty) return run_and_judge(toolbox, executor, plan, control);
    Result<SharedRun> run = run_and_judge(*faulty, "", plan, control);
    if (!run) return run;
    auto named = std::make_shared<RunView>(*run.value());
    named->name = fmt::format("{} ({})", kFaultRun, dtype_of(plan->plan().scenario));
    return SharedRun(std::move(named));
  };
}

RecordReader make_record_reader(const Toolbox& toolbox) {
  return [&toolbox](const std::string& path, const SharedPlan& plan,
                    TaskControl& control) -> Result<SharedRun> {
    if (is_trace_name(path)) return load_traces({path}, std::nullopt, plan->plan());
    return load_run(path, *plan, toolbox, control);
  };
}

}  // namespace cpscope::gui
