#include "sim/app/commands.h"
#include "sim/app/progress_bar.h"
#include "sim/app/verdict_text.h"
#include "sim/plan/order_import.h"
#include "sim/run/foreign_grade.h"

#include <iostream>

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

}  // namespace

int command_grade(const CommandOptions& options, Toolbox& toolbox) {
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
                          .control = bar.phase("judge")});
  };
  const Result<ForeignGrade> graded = grade_with_bar();
  if (!graded) {
    Error error = graded.error();
    for (Complaint& complaint : error.complaints) {
      if (error.kind == ErrorKind::bad_input) complaint.where = options.records.front();
    }
    return report(error);
  }
  if (options.json) {
    std::cout << foreign_json(record.value(), graded.value(), plan).dump() << '\n';
  } else {
    write_foreign_grade(record.value(), graded.value(), plan, std::cout);
  }
  return graded.value().grade.passed ? 0 : 1;
}

}  // namespace cpscope
