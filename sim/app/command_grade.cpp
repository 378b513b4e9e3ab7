#include "sim/app/commands.h"
#include "sim/app/grade_text.h"
#include "sim/app/json_text.h"
#include "sim/app/progress_bar.h"
#include "sim/run/foreign_grade.h"
#include "sim/scenario/order_file.h"

#include <algorithm>
#include <iostream>

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
  const Result<Layout> layout = make_layout(scenario);
  if (!layout) return layout.error();
  const BatchSlots& slots = layout.value().slots;
  const OrderDemand demand{scenario.parallel.cp_size, slots.tokens, slots.kv_tokens,
                           scenario.batch.self_attention};
  Result<ImportedOrder> order = load_order(path, demand);
  if (!order) {
    Error error = order.error();
    for (Complaint& complaint : error.complaints) {
      if (complaint.where.empty()) complaint.where = path;
    }
    return error;
  }
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    scenario.batch.slots[s] = slots.sequences[s].q_slot;
    scenario.batch.kv_slots[s] = slots.sequences[s].kv_slot;
  }
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.indices_file = path;
  scenario.parallel.imported = std::move(order).value();
  return std::nullopt;
}

std::string describe_input(const InputNote& note) {
  if (note.different == 0) return fmt::format("{} is the scenario's", note.name);
  const std::string place = note.token < 0
                                ? fmt::format("head {}", note.head)
                                : fmt::format("token {}, head {}", note.token, note.head);
  return fmt::format("{} is the record's own ({} of {} values differ, first at {})", note.name,
                     note.different, note.values, place);
}

std::string describe_inputs(const ForeignGrade& graded) {
  if (graded.inputs.empty()) return "inputs: the record holds none; judged against the scenario's";
  std::vector<std::string> notes;
  for (const InputNote& note : graded.inputs) notes.push_back(describe_input(note));
  return fmt::format("inputs: {}; judged against {}", fmt::join(notes, ", "),
                     graded.uses_own_inputs ? "the record's" : "them");
}

void write_text(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan,
                std::ostream& out) {
  out << fmt::format("{} of somebody else's tensors{}, plan {}\n",
                     graded.grade.passed ? "PASS" : "FAIL",
                     record.executor.empty() ? "" : fmt::format(" (executor {})", record.executor),
                     to_hex(plan.hash));
  write_grade_table(graded.grade, out);
  for (const std::string& hint : graded.hints) out << "looks like: " << hint << '\n';
  out << fmt::format("rows in {} order: {}\n", to_name(record.order), record.order_source);
  for (size_t t = 0; t < record.tensors.size(); ++t)
    out << fmt::format("read {:<9} {}\n", record.tensors[t].name, record.readings[t]);
  out << describe_inputs(graded) << '\n';
  const auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    constexpr size_t kShown = 12;
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size()));
    out << fmt::format("{}: {}", what, fmt::join(names.begin(), end, ", "));
    if (names.size() > kShown) out << fmt::format(" and {} more", names.size() - kShown);
    out << '\n';
  };
  list("not in the record, not graded", graded.missing);
  list("not asked for by the scenario, not graded", graded.unasked);
  list("not part of a sample, not graded", graded.unjudged);
  list("ignored", record.ignored);
  if (!graded.judged.query_tokens.empty()) {
    out << fmt::format("judged on a sample: {} query rows, {} key rows\n",
                       graded.judged.query_tokens.size(), graded.judged.key_tokens.size());
  }
}

Json to_json(const ForeignRecord& record, const ForeignGrade& graded, const Plan& plan) {
  Json json = grade_json(graded.grade, record.executor, plan.hash);
  json["order"] = to_name(record.order);
  json["order_source"] = record.order_source;
  json["graded"] = Json::array();
  for (const TensorGrade& tensor : graded.grade.tensors) json["graded"].push_back(tensor.name);
  json["missing"] = graded.missing;
  json["unasked"] = graded.unasked;
  json["unjudged"] = graded.unjudged;
  json["ignored"] = record.ignored;
  json["read"] = Json::object();
  for (size_t t = 0; t < record.tensors.size(); ++t)
    json["read"][record.tensors[t].name] = record.readings[t];
  json["inputs"] = Json::array();
  for (const InputNote& note : graded.inputs) {
    json["inputs"].push_back({{"name", note.name},
                              {"values", note.values},
                              {"different", note.different},
                              {"token", note.token},
                              {"head", note.head}});
  }
  json["truth"] = graded.uses_own_inputs ? "record" : "scenario";
  json["hints"] = graded.hints;
  const bool is_sample = !graded.judged.query_tokens.empty();
  json["judged"] = {{"whole", !is_sample},
                    {"query_rows", graded.judged.query_tokens.size()},
                    {"key_rows", graded.judged.key_tokens.size()}};
  return json;
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
    std::cout << to_json(record.value(), graded.value(), plan).dump() << '\n';
  } else {
    write_text(record.value(), graded.value(), plan, std::cout);
  }
  return graded.value().grade.passed ? 0 : 1;
}

}  // namespace cpscope
