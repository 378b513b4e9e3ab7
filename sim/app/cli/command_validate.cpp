#include "sim/app/cli/commands.h"
#include "sim/base/whole_file.h"
#include "sim/clock/validation.h"
#include "sim/documents/json_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/scenario/scenario_folder.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct ValidateArguments {
  std::vector<std::string> paths;  // none: all measurements of the project
  std::string page_path;
  bool json = false;
};

constexpr int64_t kMaxMeasurementBytes = 16LL << 20;

std::string figure_of(const ValidationRow& row, double value) {
  return row.measured < 10 ? fmt::format("{:.2f}", value) : fmt::format("{:.0f}", value);
}

Json validation_json(const Validation& validation) {
  Json groups = Json::array();
  for (const ValidationGroup& group : validation.groups) {
    Json rows = Json::array();
    for (const ValidationRow& row : group.rows) {
      Json one = {{"name", row.name},   {"pass", row.pass},        {"cluster", row.cluster},
                  {"stack", row.stack}, {"fitted", row.is_fitted}, {"measured", row.measured}};
      if (row.failure.empty()) {
        one["predicted"] = row.predicted;
        one["error_percent"] = row.error_percent();
      } else {
        one["failure"] = row.failure;
      }
      rows.push_back(std::move(one));
    }
    groups.push_back({{"title", group.title},
                      {"source", group.source},
                      {"unit", group.unit},
                      {"rows", std::move(rows)},
                      {"counted", group.num_counted()},
                      {"mean_error_percent", group.mean_error_percent()}});
  }
  return {{"schema", 1}, {"groups", std::move(groups)}};
}

std::string stack_of(const ValidationRow& row) {
  return row.stack.empty() ? row.cluster : row.cluster + ", " + row.stack;
}

/// Every row of a group, as a Markdown table.
std::string rows_text(const ValidationGroup& group) {
  std::string text =
      "| what | pass | cluster, stack | measured | predicted | error |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const ValidationRow& row : group.rows) {
    text += fmt::format("| {} | {} | {} | {} | ", row.name, row.pass, stack_of(row),
                        figure_of(row, row.measured));
    text += row.failure.empty() ? fmt::format("{} | {:+.1f} %{} |\n", figure_of(row, row.predicted),
                                              row.error_percent(), row.is_fitted ? ", fitted" : "")
                                : fmt::format("- | {} |\n", row.failure);
  }
  return text;
}

/// One row for each stack and pass, of the rows that nothing was fitted to: how many, the mean of
/// the absolute error, and the row with the largest error. Then all rows without a prediction.
std::string stacks_text(const ValidationGroup& group) {
  std::vector<ValidationGroup> stacks;
  std::string failures;
  for (const ValidationRow& row : group.rows) {
    if (!row.failure.empty()) {
      failures += fmt::format("| {} | {} | - | - | {}: {} |\n", stack_of(row), row.pass, row.name,
                              row.failure);
    }
    if (!row.failure.empty() || row.is_fitted) continue;
    const std::string title = stack_of(row) + " | " + row.pass;
    auto stack = std::find_if(stacks.begin(), stacks.end(),
                              [&](const ValidationGroup& one) { return one.title == title; });
    if (stack == stacks.end()) {
      stacks.emplace_back();
      stack = std::prev(stacks.end());
      stack->title = title;
    }
    stack->rows.push_back(row);
  }
  std::string text =
      "| cluster, stack | pass | rows | mean error | largest error |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const ValidationGroup& stack : stacks) {
    const ValidationRow& largest = *std::max_element(
        stack.rows.begin(), stack.rows.end(), [](const ValidationRow& a, const ValidationRow& b) {
          return std::abs(a.error_percent()) < std::abs(b.error_percent());
        });
    text += fmt::format("| {} | {} | {:.1f} % | {}: {} instead of {}, {:+.1f} % |\n", stack.title,
                        stack.rows.size(), stack.mean_error_percent(), largest.name,
                        figure_of(largest, largest.predicted), figure_of(largest, largest.measured),
                        largest.error_percent());
  }
  return text + failures;
}

/// Markdown that reads well as text too: every row, or a summary by stack.
std::string to_page(const Validation& validation, bool has_rows) {
  std::string text = "# Predictions against measurements\n\n";
  text += has_rows ? "Made by `cpscope validate`. Rows marked fitted are those that constants of "
                     "the stack were fitted to; they do not count in the mean.\n"
                   : "Made by `cpscope validate --out`; it prints every row. Rows that constants "
                     "of the stack were fitted to do not count.\n";
  for (const ValidationGroup& group : validation.groups) {
    const char* unit = group.unit == "ms" ? "Milliseconds"
                       : group.unit == "step_us"
                           ? "Microseconds that the busiest rank computes in a step"
                       : group.unit == "tflops" ? "TFLOP/s a GPU of the visible pairs"
                                                : "Percent of as many times one GPU alone";
    text += fmt::format("\n## {}\n\n{}. {}.\n\n", group.title, group.source, unit);
    text += has_rows ? rows_text(group) : stacks_text(group);
    if (group.num_counted() > 0)
      text += fmt::format("\nMean of the absolute error over {} rows: {:.1f} %.\n",
                          group.num_counted(), group.mean_error_percent());
  }
  return text;
}

/// The files named, or all of the project's.
std::vector<std::string> measurement_files(const std::vector<std::string>& paths) {
  if (!paths.empty()) return paths;
  std::vector<std::string> files;
  std::error_code failed;
  for (const auto& entry :
       std::filesystem::directory_iterator(join_path(shipped_clusters(), "measured"), failed)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

int command_validate(const ValidateArguments& options, const Tools&) {
  ProgressBar bar(!options.json);
  Validation all;
  const std::vector<std::string> files = measurement_files(options.paths);
  if (files.empty())
    return report(make_error(ErrorKind::bad_input, "there are no measurements to compare with",
                             "name a file, or start in the project's folder"));
  for (const std::string& file : files) {
    const Result<std::string> text = read_text_file(file, kMaxMeasurementBytes);
    if (!text) return report(text.error());
    Result<Validation> validation =
        validate(text.value(), file, shipped_clusters(), {.progress = bar.phase("measurements")});
    if (!validation) return report(validation.error());
    for (ValidationGroup& group : validation.value().groups) all.groups.push_back(std::move(group));
  }
  if (!options.page_path.empty()) {
    const Result<size_t> written =
        write_whole_file(options.page_path, to_page(all, false), "the page");
    if (!written) return report(written.error());
  }
  std::cout << (options.json ? print_json(validation_json(all)) + "\n" : to_page(all, true));
  return 0;
}

}  // namespace

Command add_validate(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<ValidateArguments>();
  CLI::App* validate = app.add_subcommand(
      "validate", "predictions next to measured and published times, row by row");
  validate->add_option("FILE", options->paths,
                       "measurements (default: all of scenarios/clusters/measured)");
  validate->add_option("--out", options->page_path, "also write a summary (Markdown) to this file")
      ->check(kNotEmpty);
  add_json(validate, options->json);
  validate->footer("Example: cpscope validate --out out/validation.md");
  return {validate, [options, tools] { return command_validate(*options, tools); }};
}

}  // namespace cpscope
