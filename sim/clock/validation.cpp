#include "sim/clock/validation.h"

#include "sim/base/parallel.h"
#include "sim/clock/clock.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/table_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

constexpr std::array<std::string_view, 3> kFileKeys = {"schema", "note", "groups"};
constexpr std::array<std::string_view, 5> kGroupKeys = {"title", "source", "unit", "scenario",
                                                        "rows"};
constexpr std::array<std::string_view, 9> kRowKeys = {
    "name", "cluster", "stack", "pass", "values", "over", "fitted", "measured", "samples"};
constexpr std::array<std::string_view, 4> kUnits = {"tflops", "ms", "scaling", "step_us"};
constexpr int64_t kMostRows = 10'000;
constexpr int64_t kMostSamples = 1000;

using Values = std::map<std::string, std::string, std::less<>>;

/// One row and the scenario to predict for it.
struct Question {
  size_t group = 0, row = 0;
  std::string scenario;  // text with names in braces
  Values values;
  int64_t samples = 1;
};

std::optional<std::string> text_of(const TomlValue& value) {
  switch (value.kind()) {
    case TomlKind::integer:
      return fmt::format("{}", value.integer());
    case TomlKind::floating:
      return fmt::format("{}", value.floating());
    case TomlKind::boolean:
      return value.boolean() ? "true" : "false";
    case TomlKind::text:
      return std::string(value.text());
    default:
      return std::nullopt;
  }
}

/// Members of a table that may be missing.
std::vector<TomlMember> members_of(const TableReader& row, std::string_view key) {
  const TomlValue value = row.find(key);
  if (value.kind() == TomlKind::table) return value.members();
  if (value.kind() != TomlKind::none)
    row.complain(key, "must be a table: " + show_value_of(value), "write { name = value }");
  return {};
}

std::string fill_in(std::string text, const Values& values) {
  for (const auto& [name, value] : values) {
    const std::string hole = "{" + name + "}";
    for (size_t at = text.find(hole); at != std::string::npos; at = text.find(hole, at))
      text.replace(at, hole.size(), value);
  }
  return text;
}

/// The item of a list, or the value itself for all places.
TomlValue item_of(const TomlValue& value, int64_t i) {
  return value.kind() == TomlKind::array ? value.item(i) : value;
}

/// Reads the rows of one group.
class GroupReader {
 public:
  GroupReader(TomlValue value, std::string name, size_t index, Validation& validation,
              std::vector<Question>& questions, Complaints& complaints)
      : name_(std::move(name)),
        table_(value, name_, kGroupKeys, complaints),
        index_(index),
        validation_(validation),
        questions_(questions),
        complaints_(complaints) {}

  void read() {
    if (!table_.is_table()) return;
    table_.complain_of_unknown();
    ValidationGroup& group = validation_.groups.emplace_back();
    group.title = need(table_, "title", "whose measurements these are");
    group.source = need(table_, "source", "where they can be read");
    group.unit = need(table_, "unit", show_choices(kUnits));
    if (table_.has("unit") && std::find(kUnits.begin(), kUnits.end(), group.unit) == kUnits.end())
      table_.complain("unit", "must be " + show_choices(kUnits) + ": " + show_text(group.unit), "");
    scenario_ = need(table_, "scenario", "a scenario file with {names} in braces");
    table_.require("rows", "write a table [[groups.rows]]");
    const TomlValue rows = table_.find("rows");
    for (int64_t i = 0; i < std::min(rows.size(), kMostRows); ++i)
      read_row(rows.item(i), fmt::format("{}.rows[{}]", name_, i));
  }

 private:
  static std::string need(const TableReader& table, std::string_view key, std::string hint) {
    table.require(key, std::move(hint));
    return table.text(key).value_or("");
  }

  void read_row(TomlValue value, const std::string& here) {
    const std::optional<TableReader> opened = open_table(value, here, kRowKeys, complaints_);
    if (!opened) return;
    const TableReader& row = *opened;
    ValidationRow shared;
    shared.name = need(row, "name", "what was measured");
    shared.cluster = need(row, "cluster", "a file of scenarios/clusters");
    shared.stack = row.text("stack").value_or("");
    shared.pass = row.text("pass").value_or("forward");
    constexpr std::array<std::string_view, 3> kPasses = {"forward", "backward", "both"};
    if (std::find(kPasses.begin(), kPasses.end(), shared.pass) == kPasses.end())
      row.complain("pass", "must be " + show_choices(kPasses) + ": " + show_text(shared.pass), "");
    Question question;
    question.group = index_;
    question.scenario = scenario_;
    question.samples = row.integer("samples", 1, kMostSamples).value_or(1);
    for (const TomlMember& member : members_of(row, "values")) {
      if (const auto text = text_of(member.value)) question.values[std::string(member.key)] = *text;
    }
    row.require("measured", "a figure, or a list of them");
    const TomlValue measured = row.find("measured");
    const int64_t count = measured.kind() == TomlKind::array ? measured.size() : 1;
    if (measured.kind() != TomlKind::none) add_rows(row, shared, question, measured, count);
  }

  void add_rows(const TableReader& row, const ValidationRow& shared, const Question& question,
                const TomlValue& measured, int64_t count) {
    const std::vector<TomlMember> over = members_of(row, "over");
    const TomlValue fitted = row.find("fitted");
    for (const TomlMember& member : over) {
      if (member.value.size() == count) continue;
      row.complain("over",
                   fmt::format("gives {} for {} measurements: {}", member.key, count,
                               show_value_of(member.value)),
                   "each list has one value a measurement");
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      ValidationRow one = shared;
      Question asked = question;
      const TomlValue figure = item_of(measured, i);
      one.measured = figure.kind() == TomlKind::integer    ? static_cast<double>(figure.integer())
                     : figure.kind() == TomlKind::floating ? figure.floating()
                                                           : 0.0;
      if (!(one.measured > 0) || !std::isfinite(one.measured)) {
        row.complain("measured", "must be above 0: " + show_value_of(figure), "");
        return;
      }
      for (const TomlMember& member : over) {
        const std::string text = text_of(member.value.item(i)).value_or("");
        asked.values[std::string(member.key)] = text;
        one.name += fmt::format(", {} {}", member.key, text);
      }
      const TomlValue flag = item_of(fitted, i);
      one.is_fitted = flag.kind() == TomlKind::boolean && flag.boolean();
      asked.row = validation_.groups[index_].rows.size();
      validation_.groups[index_].rows.push_back(std::move(one));
      questions_.push_back(std::move(asked));
    }
  }

  std::string name_, scenario_;
  TableReader table_;
  size_t index_;
  Validation& validation_;
  std::vector<Question>& questions_;
  Complaints& complaints_;
};

/// The planned and predicted scenario of a row.
struct PredictedRow {
  Plan plan;
  Timeline timeline;
};

/// `keeps_events`: stores the times of all items.
Result<PredictedRow> predict_row(const std::string& text, const ValidationRow& row,
                                 const Cluster& cluster, bool keeps_events) {
  Result<LoadedScenario> loaded = parse_scenario(text, row.name);
  if (!loaded) return loaded.error();
  Scenario& scenario = loaded.value().scenario;
  if (row.pass == "forward") scenario.numerics.backward = false;
  Result<Plan> plan = make_plan(scenario);
  if (!plan) return plan.error();
  Result<Timeline> timeline = predict(plan.value(), cluster, {row.stack, keeps_events});
  if (!timeline) return timeline.error();
  return PredictedRow{std::move(plan).value(), std::move(timeline).value()};
}

/// Time of the passes of the row, and the operations of their visible pairs.
struct PassTime {
  double us = 0, flops_of_gpu = 0;

  double tflops() const { return flops_of_gpu / us * 1e-6; }
};

Result<PassTime> predict_passes(const std::string& text, const ValidationRow& row,
                                const Cluster& cluster) {
  const Result<PredictedRow> predicted = predict_row(text, row, cluster, false);
  if (!predicted) return predicted.error();
  const auto& [plan, timeline] = predicted.value();
  PassTime time;
  for (const Direction direction : kDirections) {
    if (row.pass != "both" && row.pass != to_name(direction)) continue;
    time.us += timeline.pass(direction).total_us;
    time.flops_of_gpu += flops_of_pass(plan, direction);
  }
  return time;
}

/// Compute time in microseconds of the busiest rank in one step of the row's pass.
Result<double> step_us_of(const std::string& text, const Values& values, const ValidationRow& row,
                          const Cluster& cluster) {
  const Result<PredictedRow> predicted = predict_row(text, row, cluster, true);
  if (!predicted) return predicted.error();
  const auto& [plan, timeline] = predicted.value();
  const auto step = values.find("step");
  const Direction direction = row.pass == "backward" ? Direction::backward : Direction::forward;
  IdVector<RankId, double> busy_us(plan.home.size());
  for (const ItemEvent& event : timeline.events) {
    if (event.item.kind != StageKind::compute || event.item.direction != direction ||
        step == values.end() || fmt::format("{}", to_index(event.step)) != step->second)
      continue;
    busy_us[event.rank] += static_cast<double>(event.end_ns - event.start_ns) * 1e-3;
  }
  const double most = *std::max_element(busy_us.begin(), busy_us.end());
  if (most > 0) return most;
  return make_error(ErrorKind::bad_input, "nothing is computed in this step of this pass",
                    "give the row a value step, and pass forward or backward");
}

/// The row's figure for one text of its scenario, in the group's unit.
Result<double> figure_of(const std::string& scenario, Values values, const std::string& unit,
                         const ValidationRow& row, const Cluster& cluster) {
  if (unit == "step_us") return step_us_of(fill_in(scenario, values), values, row, cluster);
  const Result<PassTime> all = predict_passes(fill_in(scenario, values), row, cluster);
  if (!all) return all.error();
  if (unit == "ms") return all.value().us * 1e-3;
  if (unit == "tflops") return all.value().tflops();
  values["ranks"] = "1";
  const Result<PassTime> alone = predict_passes(fill_in(scenario, values), row, cluster);
  if (!alone) return alone.error();
  return 100.0 * all.value().tflops() / alone.value().tflops();
}

void answer(const Question& question, const std::string& cluster_folder, const std::string& unit,
            ValidationRow& row) {
  const Result<Cluster> cluster = load_cluster(row.cluster, cluster_folder);
  if (!cluster) {
    row.failure = cluster.error().complaints.front().what;
    return;
  }
  Values values = question.values;
  double sum = 0;
  for (int64_t seed = 1; seed <= question.samples; ++seed) {
    values["seed"] = fmt::format("{}", seed);
    const Result<double> figure = figure_of(question.scenario, values, unit, row, cluster.value());
    if (!figure) {
      row.failure = to_text(figure.error());
      return;
    }
    sum += figure.value();
  }
  row.predicted = sum / static_cast<double>(question.samples);
}

}  // namespace

double ValidationGroup::mean_error_percent() const {
  double sum = 0;
  for (const ValidationRow& row : rows) {
    if (!row.is_fitted && row.failure.empty()) sum += std::abs(row.error_percent());
  }
  return num_counted() > 0 ? sum / static_cast<double>(num_counted()) : 0.0;
}

int64_t ValidationGroup::num_counted() const {
  return std::count_if(rows.begin(), rows.end(), [](const ValidationRow& row) {
    return !row.is_fitted && row.failure.empty();
  });
}

Result<Validation> validate(std::string_view text, const std::string& path,
                            const std::string& cluster_folder, const RunControl& control) {
  const Result<TomlDocument> document = TomlDocument::parse(text, path);
  if (!document) return document.error();
  Complaints complaints(path);
  const TableReader root(document.value().root(), "", kFileKeys, complaints);
  root.complain_of_unknown();
  root.require("schema", "write schema = 1");
  root.integer("schema", 1, 1);
  root.require("groups", "write a table [[groups]]");
  Validation validation;
  std::vector<Question> questions;
  const TomlValue groups = root.find("groups");
  for (int64_t i = 0; i < std::min(groups.size(), kMostRows); ++i)
    GroupReader(groups.item(i), fmt::format("groups[{}]", i), validation.groups.size(), validation,
                questions, complaints)
        .read();
  if (complaints.count() > 0) return complaints.to_error();
  RunWatch watch(control, static_cast<int64_t>(questions.size()));
  for_each_index(static_cast<int64_t>(questions.size()), [&](int64_t i) {
    if (watch.is_cancelled()) return;
    const Question& question = questions[static_cast<size_t>(i)];
    ValidationGroup& group = validation.groups[question.group];
    answer(question, cluster_folder, group.unit, group.rows[question.row]);
    watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the validation", "measurements");
  return validation;
}

}  // namespace cpscope
