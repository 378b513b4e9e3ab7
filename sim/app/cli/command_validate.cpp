#include "sim/app/cli/commands.h"
#include "sim/app/cli/progress_bar.h"
#include "sim/base/whole_file.h"
#include "sim/clock/validation.h"
#include "sim/documents/json_text.h"
#include "sim/scenario/scenario_folder.h"
#include "sim/scenario/text_file.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

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

/// The page: Markdown that reads well as text too.
std::string to_page(const Validation& validation) {
  std::string text =
      "# Predictions against measurements\n\n"
      "Made by `cpscope validate`. Rows marked fitted are those that constants of the stack were "
      "fitted to; they do not count in the mean.\n";
  for (const ValidationGroup& group : validation.groups) {
    const char* unit = group.unit == "ms" ? "Milliseconds"
                       : group.unit == "step_us"
                           ? "Microseconds that the busiest rank computes in a step"
                       : group.unit == "tflops" ? "TFLOP/s a GPU of the visible pairs"
                                                : "Percent of as many times one GPU alone";
    text += fmt::format("\n## {}\n\n{}. {}.\n\n", group.title, group.source, unit);
    text +=
        "| what | pass | cluster, stack | measured | predicted | error |\n"
        "| --- | --- | --- | --- | --- | --- |\n";
    for (const ValidationRow& row : group.rows) {
      text += fmt::format("| {} | {} | {}{}{} | {} | ", row.name, row.pass, row.cluster,
                          row.stack.empty() ? "" : ", ", row.stack, figure_of(row, row.measured));
      text += row.failure.empty()
                  ? fmt::format("{} | {:+.1f} %{} |\n", figure_of(row, row.predicted),
                                row.error_percent(), row.is_fitted ? ", fitted" : "")
                  : fmt::format("- | {} |\n", row.failure);
    }
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
  const std::string page = to_page(all);
  if (!options.page_path.empty()) {
    const Result<size_t> written = write_whole_file(options.page_path, page, "the page");
    if (!written) return report(written.error());
  }
  std::cout << (options.json ? print_json(validation_json(all)) + "\n" : page);
  return 0;
}

}  // namespace

Command add_validate(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<ValidateArguments>();
  CLI::App* validate = app.add_subcommand(
      "validate", "predictions next to measured and published times, row by row");
  validate->add_option("FILE", options->paths,
                       "measurements (default: all of scenarios/clusters/measured)");
  validate->add_option("--out", options->page_path, "also write the page (Markdown) to this file")
      ->check(kNotEmpty);
  add_json(validate, options->json);
  validate->footer("Example: cpscope validate --out out/validation.md");
  return {validate, [options, tools] { return command_validate(*options, tools); }};
}

}  // namespace cpscope
