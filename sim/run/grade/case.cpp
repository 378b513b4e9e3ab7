#include "sim/run/grade/case.h"

#include "sim/base/machine_memory.h"
#include "sim/base/version.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/cause_search.h"
#include "sim/run/grade/sample.h"
#include "sim/run/grade/share_search.h"
#include "sim/run/record/item_tensors.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/key_place.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <fmt/format.h>
#include <sys/utsname.h>

namespace cpscope {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The type in which answers are stored.
Dtype answer_dtype(const Scenario& scenario) {
  return scenario.numerics.dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
}

CaseOutcome stop(CaseOutcome outcome, const Error& error) {
  outcome.reason = to_text(error);
  outcome.error = error;
  outcome.exit_code = exit_code(error.kind);
  switch (error.kind) {
    case ErrorKind::refused:
      outcome.status = CaseStatus::refused;
      break;
    case ErrorKind::unavailable:
      outcome.status = CaseStatus::skipped;
      break;
    case ErrorKind::failed:
      outcome.status = CaseStatus::fail;
      break;
    case ErrorKind::bad_input:
      outcome.status = CaseStatus::error;
      break;
  }
  return outcome;
}

/// Why the case is not executed on this machine although it was planned and proved; nothing when it
/// can be.
std::optional<Error> obstacle(const CaseOutcome& outcome, const Scenario& scenario,
                              const Executor& executor, const CaseOptions& options) {
  const BatchSlots& slots = outcome.plan->plan().layout.slots;
  // The inputs, the answer and the oracle's two answers have similar sizes.
  const int64_t sides = options.sample_rows > 0 ? 3 : 5;
  const ItemResultsSize items =
      options.keeps_items ? measure_item_results(outcome.plan->plan()) : ItemResultsSize{};
  if (items.arrays > kMaxItemArrays) {
    return make_error(ErrorKind::unavailable,
                      fmt::format("planned and proved, not executed: a record holds the results of "
                                  "items as far as they are {} arrays, not {}",
                                  kMaxItemArrays, items.arrays),
                      "record without --items, or use fewer ranks");
  }
  const int64_t needed = executor.memory_bytes(*outcome.plan) +
                         sides * run_inputs_bytes(scenario, slots) + items.bytes +
                         (options.sample_rows > 0 ? 0 : head_gradients_bytes(scenario, slots));
  if (needed > machine_memory_bytes() / 10 * 9) {
    return make_error(ErrorKind::unavailable,
                      fmt::format("planned and proved, not executed: the run needs {:.1f} GiB, "
                                  "this machine has {:.1f} GiB",
                                  gibibytes(needed), gibibytes(machine_memory_bytes())),
                      "use fewer tokens or heads");
  }
  const double flops = estimate_flops(scenario, outcome.summary);
  if (options.max_flops > 0 && flops > options.max_flops) {
    return make_error(
        ErrorKind::unavailable,
        fmt::format(
            "planned and proved, not executed: about {:.3g} FLOP, more than the limit of {:.3g}",
            flops, options.max_flops),
        "use `cpscope run`, or verify with --max-flops 0");
  }
  return std::nullopt;
}

/// Progress and cancellation of one phase of a case.
RunControl control_phase(const CaseOptions& options, std::string_view phase) {
  constexpr int64_t kParts = 10'000;  // that the work is counted in
  RunControl control{.is_cancelled = options.is_cancelled};
  if (options.progress) {
    control.share = [&options, phase](double share) {
      options.progress(phase, static_cast<int64_t>(share * kParts), kParts);
    };
  }
  return control;
}

/// Grades the output against the whole oracle, or against a sample of its rows.
std::optional<Error> judge_case(Toolbox& toolbox, const Scenario& scenario,
                                const CaseOptions& options, CaseOutcome& outcome) {
  const Plan& plan = outcome.plan->plan();
  const RunControl control = control_phase(options, "judge");
  if (options.sample_rows == 0) {
    Result<Verdict> verdict =
        toolbox.oracle.judge(scenario, outcome.inputs, count_hops(plan), control);
    if (!verdict) return verdict.error();
    outcome.grade = grade_answer(plan, outcome.inputs, outcome.output.answer, verdict.value(),
                                 {.keeps_row_budgets = true, .budgets = options.budgets});
    const Answer& exact = verdict.value().exact;
    if (auto error =
            search_shares(toolbox, plan, outcome.inputs, outcome.output.answer,
                          {.exact = exact, .given = exact, .control = control}, outcome.grade))
      return error;
    if (auto error = find_causes(toolbox, plan, outcome.inputs,
                                 {.seen = outcome.output.answer,
                                  .exact = exact,
                                  .budgets = options.budgets,
                                  .control = control},
                                 outcome.grade))
      return error;
    if (!options.keeps_exact)
      for (TensorGrade& tensor : outcome.grade.tensors) tensor.row_budgets.clear();
    if (options.keeps_exact) outcome.exact = std::move(verdict.value().exact);
    return std::nullopt;
  }
  Result<SampledGrade> sampled =
      grade_sample(toolbox, plan, outcome.inputs, outcome.output.answer,
                   {.rows = options.sample_rows, .budgets = options.budgets, .control = control});
  if (!sampled) return sampled.error();
  outcome.grade = std::move(sampled.value().grade);
  if (auto error = find_causes(toolbox, plan, outcome.inputs,
                               {.seen = outcome.output.answer,
                                .exact = sampled.value().exact,
                                .rows = &sampled.value().rows,
                                .control = control},
                               outcome.grade))
    return error;
  outcome.judged = std::move(sampled.value().rows);
  if (options.keeps_exact) outcome.exact = std::move(sampled.value().exact);
  return std::nullopt;
}

}  // namespace

std::string_view to_name(CaseStatus value) {
  constexpr std::string_view kNames[] = {"pass", "fail", "refused", "skipped", "error"};
  return kNames[static_cast<size_t>(value)];
}

double estimate_flops(const Scenario& scenario, const PlanSummary& summary) {
  return 3.0 * flops_of_run(scenario, summary);  // executor, exact oracle and plain oracle
}

Result<CheckedPlan> plan_scenario(const Scenario& scenario) {
  Result<Plan> plan = make_plan(scenario);
  if (!plan) return plan.error();
  return check_plan(std::move(plan).value());
}

Result<CheckedPlan> plan_scenario(const LoadedScenario& loaded) {
  if (loaded.plan) return *loaded.plan;
  Result<CheckedPlan> plan = plan_scenario(loaded.scenario);
  if (!plan) return locate_keys(plan.error(), loaded.text, loaded.path);
  return plan;
}

Result<CheckedPlan> vary_plan(const Plan& plan, const Scenario& scenario) {
  Plan variant = plan;
  variant.scenario = scenario;
  variant.scenario.parallel.comm_type = CommType::custom;
  if (!scenario.numerics.backward) {
    variant.backward = {};
    for (HomeBuffers& home : variant.home) home = {home.q, home.kv, home.out};
  }
  const bool is_wide = scenario.numerics.dkv_wire == WireFormat::fp32;
  for (Pass* pass : {&variant.forward, &variant.backward}) {
    for (TransferItem& item : pass->transfers) {
      if (item.payload == Payload::partial)
        item.wire_fp32 = scenario.parallel.partial_wire == WireFormat::fp32;
      const bool is_gradient = item.payload == Payload::dkv || item.payload == Payload::dq;
      if (is_gradient && is_wide) item.wire_fp32 = true;
      item.bytes = wire_bytes(variant, item);
    }
  }
  variant.hash = hash_plan(variant);
  return check_plan(std::move(variant));
}

PlanVariant variants_of(const LoadedScenario& loaded) {
  if (!loaded.plan) return [](const Scenario& scenario) { return plan_scenario(scenario); };
  return
      [plan = loaded.plan](const Scenario& scenario) { return vary_plan(plan->plan(), scenario); };
}

Result<Executor*> find_executor(Toolbox& toolbox, const std::string& name) {
  for (const auto& executor : toolbox.executors) {
    if (!name.empty() && executor->name() != name) continue;
    if (const std::optional<Error> absence = executor->absence())
      return make_error(ErrorKind::unavailable, fmt::format("executor {} is not here: {}",
                                                            executor->name(), to_text(*absence)));
    return executor.get();
  }
  for (const auto& [missing, why] : toolbox.missing_executors) {
    if (missing == name)
      return make_error(ErrorKind::unavailable,
                        fmt::format("executor {} is not here: {}", name, why));
  }
  constexpr std::string_view kPlugin = "plugin:";
  if (name.starts_with(kPlugin) && toolbox.open_plugin) {
    // The plugin is opened once: later cases find it among the executors.
    Result<std::unique_ptr<Executor>> plugin = toolbox.open_plugin(name.substr(kPlugin.size()));
    if (!plugin) return plugin.error();
    toolbox.executors.push_back(std::move(plugin).value());
    return toolbox.executors.back().get();
  }
  return make_error(ErrorKind::bad_input, fmt::format("unknown executor: {}", name),
                    "cpu, cuda, cuda-portable, nccl or plugin:PATH");
}

std::optional<Error> probe_obstacle(const CheckedPlan& plan, const Executor& executor) {
  const Plan& inner = plan.plan();
  const int64_t needed =
      executor.memory_bytes(plan) + 3 * run_inputs_bytes(inner.scenario, inner.layout.slots);
  if (needed > machine_memory_bytes() / 10 * 9) {
    return make_error(ErrorKind::unavailable,
                      fmt::format("the probe needs {:.1f} GiB, this machine has {:.1f} GiB",
                                  gibibytes(needed), gibibytes(machine_memory_bytes())),
                      "use fewer tokens or heads");
  }
  constexpr double kMostPairs = 1e12;
  double pairs = 0;
  for (const SequenceSlot& slot : inner.layout.slots.sequences)
    pairs += static_cast<double>(slot.q_valid) * static_cast<double>(slot.kv_valid);
  if (pairs <= kMostPairs) return std::nullopt;
  return make_error(
      ErrorKind::unavailable,
      fmt::format("the probe would evaluate {:.2g} pairs of the oracle's mask, limit {:.2g}", pairs,
                  kMostPairs),
      "use shorter sequences");
}

std::optional<Error> grade_obstacle(const CheckedPlan& plan) {
  const Plan& inner = plan.plan();
  // The record as read and as rows, the inputs, the answer, and the oracle's two answers.
  const BatchSlots& slots = inner.layout.slots;
  const int64_t needed =
      8 * run_inputs_bytes(inner.scenario, slots) + head_gradients_bytes(inner.scenario, slots);
  if (needed <= machine_memory_bytes() / 10 * 9) return std::nullopt;
  return make_error(ErrorKind::unavailable,
                    fmt::format("grading needs {:.1f} GiB, this machine has {:.1f} GiB",
                                gibibytes(needed), gibibytes(machine_memory_bytes())),
                    "use fewer tokens or heads");
}

namespace {

template <class MakePlan>
CaseOutcome run_planned(Toolbox& toolbox, const CaseOptions& options, MakePlan make_checked) {
  CaseOutcome outcome;
  const Result<Executor*> executor = find_executor(toolbox, options.executor);
  if (!executor) return stop(std::move(outcome), executor.error());
  outcome.executor = executor.value()->name();

  auto start = std::chrono::steady_clock::now();
  Result<CheckedPlan> plan = make_checked();
  if (!plan) return stop(std::move(outcome), plan.error());
  outcome.plan = std::move(plan).value();
  const Scenario& scenario = outcome.plan->plan().scenario;
  outcome.summary = summarise(outcome.plan->plan());
  outcome.plan_seconds = seconds_since(start);
  if (const auto error = obstacle(outcome, scenario, *executor.value(), options))
    return stop(std::move(outcome), *error);

  if (options.estimated) {
    WorkEstimate estimate = estimate_run(scenario, outcome.summary, outcome.executor);
    estimate += estimate_judge(scenario, outcome.summary, options.sample_rows);
    options.estimated(estimate);
  }
  outcome.inputs = make_run_inputs(outcome.plan->plan(), options.poison);
  start = std::chrono::steady_clock::now();
  RunOptions run_options{.poison = options.poison,
                         .measures_items = options.measures_items,
                         .control = control_phase(options, "run")};
  if (options.keeps_items) {
    run_options.observer = [&](const ItemResult& result) {
      outcome.items.push_back(make_item_tensor(result, answer_dtype(scenario)));
    };
  }
  Result<RunOutput> output = executor.value()->run(*outcome.plan, outcome.inputs, run_options);
  if (!output) return stop(std::move(outcome), output.error());
  outcome.output = std::move(output).value();
  outcome.run_seconds = seconds_since(start);
  if (!outcome.output.is_whole) {
    outcome.status = CaseStatus::pass;
    outcome.exit_code = 0;
    outcome.reason = "process 0 has the answer and judges it";
    return outcome;
  }

  start = std::chrono::steady_clock::now();
  if (const auto error = judge_case(toolbox, scenario, options, outcome)) {
    return stop(std::move(outcome), *error);
  }
  outcome.judge_seconds = seconds_since(start);
  outcome.status = outcome.grade.passed ? CaseStatus::pass : CaseStatus::fail;
  outcome.exit_code = outcome.grade.passed ? 0 : 1;
  outcome.reason = describe_first_failure(outcome.grade);
  return outcome;
}

}  // namespace

CaseOutcome run_case(Toolbox& toolbox, const Scenario& scenario, const CaseOptions& options) {
  return run_planned(toolbox, options, [&] { return plan_scenario(scenario); });
}

CaseOutcome run_case(Toolbox& toolbox, const CheckedPlan& plan, const CaseOptions& options) {
  return run_planned(toolbox, options, [&] { return Result<CheckedPlan>(plan); });
}

CaseOutcome run_case(Toolbox& toolbox, const LoadedScenario& loaded, const CaseOptions& options) {
  CaseOutcome outcome = loaded.plan ? run_case(toolbox, *loaded.plan, options)
                                    : run_case(toolbox, loaded.scenario, options);
  // An error during the run is not an error of the file.
  const bool is_of_file = !loaded.plan && outcome.error &&
                          outcome.error->kind != ErrorKind::failed &&
                          outcome.error->kind != ErrorKind::unavailable;
  if (is_of_file) {
    outcome.error = locate_keys(*outcome.error, loaded.text, loaded.path);
    outcome.reason = to_text(*outcome.error);
  }
  return outcome;
}

RunRecord make_record(CaseOutcome& outcome, const std::string& scenario_text) {
  const Plan& plan = outcome.plan->plan();
  RunRecord record;
  record.scenario_text = scenario_text;
  record.plan_hash = to_hex(plan.hash);
  record.executor = outcome.executor;
  utsname system{};
  if (uname(&system) == 0) record.machine = fmt::format("{} {}", system.sysname, system.machine);
  record.version = program_version();
  const Dtype stored = answer_dtype(plan.scenario);
  const auto add = [&](Tensor tensor, Dtype dtype) {
    if (tensor.name.empty()) return;
    tensor.dtype = dtype;
    record.tensors.push_back(std::move(tensor));
  };
  const auto by_head = [](const char* name, const std::vector<double>& values) {
    return values.empty()
               ? Tensor{}
               : Tensor{name, {static_cast<int64_t>(values.size())}, Dtype::fp64, values};
  };
  const Answer& answer = outcome.output.answer;
  for (const Tensor* tensor :
       {&outcome.inputs.q, &outcome.inputs.k, &outcome.inputs.v, &outcome.inputs.d_out}) {
    add(*tensor, plan.scenario.numerics.dtype);
  }
  for (const Tensor* tensor : {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv})
    add(*tensor, stored);
  add(by_head("max_logit", answer.max_logit), stored);
  add(by_head("sink", outcome.inputs.sink), stored);
  add(by_head("d_sink", answer.d_sink), stored);
  add(outcome.inputs.bias, plan.scenario.numerics.dtype);
  add(answer.dbias, stored);
  for (const Tensor* weights : {&outcome.inputs.w_k, &outcome.inputs.w_v})
    add(*weights, plan.scenario.numerics.dtype);
  std::move(outcome.items.begin(), outcome.items.end(), std::back_inserter(record.tensors));
  outcome.items.clear();
  for (const TensorGrade& tensor : outcome.grade.tensors)
    record.budgets.push_back({tensor.name, tensor.budget, tensor.budget_l2});
  record.events = outcome.output.events;
  if (!record.events.empty()) record.clock = "measured";
  return record;
}

}  // namespace cpscope
