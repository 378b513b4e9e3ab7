#pragma once

#include "sim/app/commands.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace cpscope {

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

/// "NAME=X" with a tensor's name and a finite number that is not negative; else nothing.
std::optional<WidenedBudget> parse_budget(const std::string& text);

/// Why the files that a parsed command writes must not be written: one is also read, or two have
/// the same name. Nothing when all is well.
std::optional<Error> check_outputs(const CLI::App& command);

/// A command of the program, and what runs it once the line is parsed.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

/// Options that several commands have.
void add_scenario_file(CLI::App* app, CommandOptions& options);
void add_json(CLI::App* app, CommandOptions& options);
/// What every verification can write beside what it prints.
void add_outlets(CLI::App* app, CommandOptions& options);
void add_executor(CLI::App* app, CommandOptions& options);

/// The commands that predict times, and the one that measures what they go by.
std::vector<Command> add_predicting(CLI::App& app, CommandOptions& options, Toolbox& toolbox,
                                    const PictureCommands& pictures);

}  // namespace cpscope
