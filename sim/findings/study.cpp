#include "sim/findings/study.h"

#include "sim/run/grade/first_item.h"
#include "sim/run/grade/probe_parts.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/item_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// The results of items of both runs are in memory at once.
constexpr int64_t kMostItemBytes = int64_t{256} << 20;
/// A second run and a clean walk are waited for so long: less than a minute.
constexpr double kMostFlops = 4e11;
/// Probes run the executor many times over.
constexpr double kMostProbedPairs = 2e6;

/// Why nobody looks for the first wrong item; empty when somebody does.
std::string study_obstacle(const CaseFindings& findings, const CaseOptions& options) {
  const Plan& plan = findings.plan->plan();
  if (options.sample_rows > 0) return "the run was judged on a sample of its rows";
  if (findings.executor == "nccl")
    return "a run that spans processes is not repeated; use executor cuda for the same scenario";
  const ItemResultsSize size = measure_item_results(plan);
  if (size.bytes > kMostItemBytes || size.arrays > kMaxItemArrays)
    return fmt::format("the results of all items take {} MiB, and {} MiB are kept",
                       size.bytes >> 20, kMostItemBytes >> 20);
  const double flops = estimate_flops(plan.scenario, summarise(plan));
  if (flops > kMostFlops)
    return fmt::format("a second run takes about {:.2g} FLOP, and {:.2g} are spent", flops,
                       kMostFlops);
  return "";
}

/// A clean walk of the plan from the same inputs, as a record with the judge's budgets.
Result<RunRecord> walk_clean(Toolbox& toolbox, const CheckedPlan& plan, const RunInputs& inputs,
                             const RunRecord& beside) {
  std::unique_ptr<Executor> watched;
  Executor* walker = nullptr;
  if (toolbox.watched_walker) {
    watched = toolbox.watched_walker({});
    walker = watched.get();
  } else if (!toolbox.executors.empty()) {
    walker = toolbox.executors.front().get();
  }
  if (walker == nullptr)
    return make_error(ErrorKind::unavailable, "this program has no walker to compare with");
  RunRecord record;
  record.plan_hash = beside.plan_hash;
  record.budgets = beside.budgets;
  RunOptions options;
  options.observer = [&](const ItemResult& result) {
    record.tensors.push_back(make_item_tensor(result, Dtype::fp64));
  };
  Result<RunOutput> output = walker->run(plan, inputs, options);
  if (!output) return output.error();
  Answer& answer = output.value().answer;
  for (Tensor* tensor : {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv})
    if (!tensor->values.empty()) record.tensors.push_back(std::move(*tensor));
  return record;
}

WrongPlace make_wrong_place(const FirstItem& first, const Plan& plan) {
  const ItemTensorName& name = first.name;
  WrongPlace place;
  place.site = {name.item, name.rank, name.step};
  place.array = name.array;
  place.is_key = name.array == "dk" || name.array == "dv";
  place.found_by =
      "compared with a clean run of the same plan in the same dtype: the first item, in plan "
      "order, that differs by more than the budgets of both allow";
  if (first.place) {
    place.token = first.place->token;
    place.head = first.place->head;
  }
  if (first.diff.shape_mismatch.empty()) {
    place.seen = first.diff.left;
    place.expected = first.diff.right;
  }
  place.tiles = tiles_of(plan, place.site, place.token, place.is_key);
  return place;
}

struct RowError {
  double l2 = 0.0;
  int64_t lane = 0;  // furthest off
};

RowError measure_row(const double* seen, const double* exact, int64_t lanes) {
  RowError error;
  double sum = 0, furthest = -1;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if (seen[lane] == exact[lane]) continue;
    const double apart = std::abs(seen[lane] - exact[lane]);
    const double known = std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity();
    sum += known * known;
    if (known <= furthest) continue;
    furthest = known;
    error.lane = lane;
  }
  error.l2 = std::sqrt(sum);
  return error;
}

void add_rows(const TensorGrade& grade, const Tensor& seen, const Tensor& exact,
              std::vector<WrongRow>& rows) {
  if (seen.shape != exact.shape || seen.shape.size() < 2) return;
  const int64_t heads = seen.shape[1], lanes = seen.shape.size() > 2 ? seen.shape[2] : 1;
  const int64_t count = seen.shape[0] * heads;
  if (static_cast<int64_t>(grade.row_budgets.size()) != count || lanes == 0) return;
  for (int64_t row = 0; row < count; ++row) {
    const double* left = seen.values.data() + row * lanes;
    const double* right = exact.values.data() + row * lanes;
    const RowError error = measure_row(left, right, lanes);
    const double budget = grade.row_budgets[static_cast<size_t>(row)];
    if (!(error.l2 > budget)) continue;
    const double share = budget > 0 ? error.l2 / budget : std::numeric_limits<double>::infinity();
    rows.push_back({grade.name, -1, row / heads, static_cast<int32_t>(row % heads),
                    right[error.lane], left[error.lane], share});
  }
}

bool is_of_keys(const std::string& tensor) { return tensor == "dk" || tensor == "dv"; }

}  // namespace

std::vector<WrongRow> list_worst_rows(const Plan& plan, const Answer& seen, const Answer& exact,
                                      const Grade& grade) {
  const std::array<std::pair<const Tensor*, const Tensor*>, 5> pairs = {{{&seen.out, &exact.out},
                                                                         {&seen.lse, &exact.lse},
                                                                         {&seen.dq, &exact.dq},
                                                                         {&seen.dk, &exact.dk},
                                                                         {&seen.dv, &exact.dv}}};
  constexpr std::array<const char*, 5> kNames = {"out", "lse", "dq", "dk", "dv"};
  std::vector<WrongRow> rows;
  for (size_t t = 0; t < pairs.size(); ++t) {
    for (const TensorGrade& tensor : grade.tensors) {
      if (tensor.name == kNames[t]) add_rows(tensor, *pairs[t].first, *pairs[t].second, rows);
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const WrongRow& a, const WrongRow& b) { return a.share > b.share; });
  if (rows.size() > kMostWorstRows) rows.resize(kMostWorstRows);
  for (WrongRow& row : rows)
    row.rank = owner_of(plan, is_of_keys(row.tensor) ? Side::kv : Side::q, row.token, row.head);
  return rows;
}

void study_failure(Toolbox& toolbox, const LoadedScenario& loaded, const CaseOptions& options,
                   CaseFindings& findings) {
  if (findings.status != CaseStatus::fail || !findings.plan || findings.grade.tensors.empty())
    return;
  findings.not_located = study_obstacle(findings, options);
  if (!findings.not_located.empty()) return;
  CaseOptions again = options;
  again.keeps_items = again.keeps_exact = true;
  again.measures_items = false;
  CaseOutcome outcome = run_case(toolbox, loaded, again);
  if (outcome.grade.tensors.empty() || outcome.grade.passed) {
    findings.not_located = outcome.grade.passed && !outcome.grade.tensors.empty()
                               ? "a second run of the same scenario passed: what the executor does "
                                 "is not the same every time"
                               : "a second run did not come to an end: " + outcome.reason;
    return;
  }
  const CheckedPlan& plan = *outcome.plan;
  findings.worst_rows =
      list_worst_rows(plan.plan(), outcome.output.answer, outcome.exact, outcome.grade);
  findings.grade = outcome.grade;
  const RunRecord seen = make_record(outcome, loaded.text);
  findings.seen = std::move(outcome.output.answer);
  findings.exact = std::move(outcome.exact);
  const Result<RunRecord> clean = walk_clean(toolbox, plan, outcome.inputs, seen);
  if (!clean) {
    findings.not_located = to_text(clean.error());
    return;
  }
  const DiffRule rule{.is_earned = true};
  const auto first =
      find_first_item(seen, clean.value(), diff_runs(seen, clean.value()), rule, &plan.plan());
  if (first) {
    findings.first = make_wrong_place(*first, plan.plan());
    return;
  }
  findings.not_located =
      holds_items(seen)
          ? "what every compute and finish item wrote is as near to the walker's as both budgets "
            "allow; the answer is wrong all the same"
          : "the executor does not show what its items wrote";
}

void add_probes(Toolbox& toolbox, const LoadedScenario& loaded, CaseFindings& findings) {
  const Scenario& scenario = loaded.scenario;
  const auto say = [&](std::string why) {
    findings.blind.push_back("the probes were not run: " + std::move(why));
  };
  if (!findings.plan) return;
  const Result<Executor*> executor = find_executor(toolbox, findings.executor);
  if (!executor) return say(to_text(executor.error()));
  if (findings.executor == "nccl") return say("a run that spans processes is not repeated");
  double pairs = 0;
  for (const SequenceSlot& slot : findings.plan->plan().layout.slots.sequences)
    pairs += static_cast<double>(slot.q_valid) * static_cast<double>(slot.kv_valid);
  if (pairs * scenario.attention.heads > kMostProbedPairs)
    return say("the batch is long; `cpscope probe` asks them alone");
  const PlanVariant plan_for = variants_of(loaded);
  const Result<CheckedPlan> plan = plan_for(probe_scenario(scenario));
  if (!plan) return say(to_text(plan.error()));
  if (const auto error = probe_obstacle(plan.value(), *executor.value()))
    return say(to_text(*error));
  Result<ProbeReport> report =
      run_probes(scenario, plan_for, *executor.value(), toolbox.oracle.witness, {});
  if (!report) return say(to_text(report.error()));
  findings.probe = std::move(report).value();
}

}  // namespace cpscope
