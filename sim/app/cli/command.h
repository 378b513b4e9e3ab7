#pragma once

#include "sim/app/cli/program.h"
#include "sim/findings/error_document.h"
#include "sim/findings/findings.h"
#include "sim/run/grade/case.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace cpscope {

/// What commands are given besides their options.
struct Tools {
  Toolbox& toolbox;
  const PictureCommands& pictures;
};

/// A command of the program, and the function that runs it once the command line is parsed.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

inline const CLI::Validator kNotEmpty(
    [](std::string& text) {
      return text.empty() ? std::string("the value is empty") : std::string();
    },
    "");
/// A whole number from `low` to `high` and nothing else: no empty word, as an unset variable of a
/// shell leaves, no fraction, nothing that would be cut off.
CLI::Validator whole_number(int64_t low = 0, int64_t high = std::numeric_limits<int64_t>::max());
/// A finite number from `low` to `high`.
CLI::Validator finite_number(double low = 0.0, double high = std::numeric_limits<double>::max());

/// The error that a parsed command ends with because of the files it writes: one is also read, or
/// two have the same name. Nothing when all is well.
std::optional<Error> check_outputs(const CLI::App& command);

// Options that several commands have.

void add_scenario_file(CLI::App* app, std::string& path);
void add_json(CLI::App* app, bool& json);
void add_executor(CLI::App* app, std::string& executor);
/// Padding rows, output and receive buffers hold NaN before the run.
void add_poison(CLI::App* app, bool& poison, const char* when);
/// About so many query rows, and as many keys, are judged; 0: all.
void add_sample(CLI::App* app, int64_t& rows);

/// "NAME=X": tensors whose error may be larger than their earned budgets.
void add_budgets(CLI::App* app, std::vector<std::string>& budgets);
/// The same as numbers; the words were checked when they were parsed.
std::vector<WidenedBudget> parse_budgets(const std::vector<std::string>& budgets);

/// A cluster and one of its stacks, for predictions.
struct ClusterChoice {
  std::string cluster;  // by name or file
  std::string stack;    // empty: the cluster's first
};
void add_cluster(CLI::App* app, ClusterChoice& choice);

/// Traces of other software, FILE or RANK=FILE, and which layer of them. Gives the first option.
CLI::Option* add_measured(CLI::App* app, std::vector<std::string>& traces,
                          std::optional<int64_t>& layer);

/// Files that every verification can write in addition to what it prints.
struct OutputFiles {
  std::string report;  // ends in .html or .md; empty: none
  std::string junit;
};
void add_output_files(CLI::App* app, OutputFiles& files);
/// Can they be written? Checked before anything is run.
std::optional<Error> check_output_files(const OutputFiles& files);
/// Writes them, and says so on stdout unless `is_quiet`. Only the first of several processes does.
std::optional<Error> write_output_files(const Findings& findings, const OutputFiles& files,
                                        const Tools& tools, bool is_quiet);

// What several commands do.

/// Loads a scenario and prints its warnings to stderr.
Result<LoadedScenario> load_with_warnings(const std::string& path);
/// The same for a command that plans the split itself: a plan document is rejected.
Result<LoadedScenario> load_scenario_alone(const std::string& path, std::string_view command);

}  // namespace cpscope
