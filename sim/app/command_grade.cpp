#include "sim/app/commands.h"
#include "sim/app/findings_json.h"
#include "sim/app/progress_bar.h"
#include "sim/app/study.h"
#include "sim/documents/verdict_text.h"
#include "sim/plan/order_import.h"
#include "sim/run/foreign_grade.h"

#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cpscope {
namespace {

/// What the words of the command line mean; they were checked there.
ForeignChoices choices_of(const CommandOptions& options) {
  return {find_row_order(options.order), find_row_format(options.format),
          find_lse_layout(options.lse_layout)};
}

/// Replaces the scenario's layout by an imported order over the same slots.
std::optional<Error> use_order_file(const std::string& path, Scenario& scenario) {
  const Result<OrderDemand> demand = demand_of_order(scenario);
  if (!demand) return demand.error();
  Result<ImportedOrder> order = load_order(path, demand.value());
  if (!order) {
    Error error = order.error();
    for (Complaint& complaint : error.complaints) {
      if (complaint.where.empty()) complaint.where = path;
    }
    return error;
  }
  return use_order(std::move(order).value(), path, scenario);
}

Result<std::vector<NamedRecord>> read_records(const std::vector<std::string>& paths) {
  std::vector<NamedRecord> records;
  for (const std::string& path : paths) {
    Result<RunRecord> record = read_record(path, {.takes_other_types = true});
    if (!record) return record.error();
    records.push_back({path, std::move(record).value()});
  }
  if (auto error = sort_by_rank(records)) return *error;
  return records;
}

/// The command that does the same again.
std::string make_grade_replay(const CommandOptions& options) {
  std::string replay = "cpscope grade " + quote_word(options.scenario_path);
  for (const std::string& path : options.records) replay += " " + quote_word(path);
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) replay += fmt::format(" {} {}", name, quote_word(value));
  };
  add("--order", options.order);
  add("--order-file", options.order_path);
  add("--format", options.format);
  add("--lse-layout", options.lse_layout);
  if (options.ignore_padding) replay += " --ignore-padding";
  if (options.sample_rows > 0) replay += fmt::format(" --sample {}", options.sample_rows);
  for (const std::string& budget : options.budgets) replay += " --budget " + quote_word(budget);
  return replay;
}

/// What text, JSON and report tell of a record.
CaseFindings make_grade_findings(const CommandOptions& options, const LoadedScenario& loaded,
                                 const CheckedPlan& plan, const ForeignRecord& record,
                                 const ForeignGrade& graded) {
  CaseOutcome outcome;
  outcome.status = graded.grade.passed ? CaseStatus::pass : CaseStatus::fail;
  outcome.reason = describe_first_failure(graded.grade);
  outcome.plan = plan;
  outcome.grade = graded.grade;
  outcome.judged = graded.judged;
  outcome.executor = record.executor;
  CaseFindings findings = make_findings(options.scenario_path, loaded.text, std::move(outcome));
  findings.machine.clear();  // nobody knows where the record was made
  findings.replay = make_grade_replay(options);
  findings.notes = graded.hints;
  findings.notes.push_back(describe_inputs(graded));
  findings.notes.push_back(fmt::format("rows of the record are in {} order ({})",
                                       to_name(record.order), record.order_source));
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      findings.blind.push_back(fmt::format("{}: {}", what, fmt::join(names, ", ")));
  };
  list("the scenario asks for it and the record lacks it, so it was not judged", graded.missing);
  list("not asked for by the scenario, so not judged", graded.unasked);
  list("of a name that the contract does not know, so ignored", record.ignored);
  if (options.ignore_padding) findings.blind.emplace_back("padding rows were not judged");
  if (graded.grade.passed) return findings;
  findings.worst_rows = list_worst_rows(plan.plan(), graded.seen, graded.exact, graded.grade);
  findings.not_located =
      "a record of answers does not show which item wrote them, only which rows "
      "are wrong";
  return findings;
}

}  // namespace

int command_grade(const CommandOptions& options, Toolbox& toolbox) {
  if (const auto error = check_outlets(options)) return report(*error);
  Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  if (!options.order_path.empty()) {
    if (auto error = use_order_file(options.order_path, loaded.value().scenario))
      return report(*error);
  }
  const Result<CheckedPlan> checked = plan_scenario(loaded.value());
  if (!checked) return report(checked.error());
  if (const auto error = grade_obstacle(checked.value())) return report(*error);
  const Plan& plan = checked.value().plan();
  Result<std::vector<NamedRecord>> records = read_records(options.records);
  if (!records) return report(records.error());
  const Result<ForeignRecord> record =
      read_foreign(std::move(records).value(), plan, choices_of(options));
  if (!record) return report(record.error());
  const auto grade_with_bar = [&] {
    ProgressBar bar(true);
    return grade_foreign(toolbox, plan, record.value(),
                         {.ignores_padding = options.ignore_padding,
                          .sample_rows = options.sample_rows,
                          .keeps_exact = true,
                          .budgets = budgets_of(options),
                          .control = bar.phase("judge")});
  };
  Result<ForeignGrade> graded = grade_with_bar();
  if (!graded) {
    Error error = graded.error();
    for (Complaint& complaint : error.complaints) {
      if (error.kind == ErrorKind::bad_input) complaint.where = options.records.front();
    }
    return report(error);
  }
  const bool has_passed = graded.value().grade.passed;
  Findings all{.command = "grade", .date = today()};
  all.cases.push_back(make_grade_findings(options, loaded.value(), checked.value(), record.value(),
                                          graded.value()));
  if (options.json) {
    Json json = foreign_json(record.value(), graded.value(), plan);
    add_findings(all.cases.front(), json);
    std::cout << print_json(json) << '\n';
  } else {
    write_foreign_grade(record.value(), graded.value(), plan, std::cout);
  }
  CaseFindings& findings = all.cases.front();
  findings.seen = std::move(graded.value().seen);
  findings.exact = std::move(graded.value().exact);
  if (const auto error = write_outlets(all, options, toolbox)) return report(*error);
  return has_passed ? 0 : 1;
}

}  // namespace cpscope
