#include "sim/app/cli/command.h"

#include "sim/clock/trace_match.h"
#include "sim/plan/document/load_plan.h"
#include "sim/plan/document/plan_document.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Reads all of the text as a number.
template <class Number>
std::optional<Number> read_number(const std::string& text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc() || stop != end || text.empty()) return std::nullopt;
  return number;
}

}  // namespace

CLI::Validator whole_number(int64_t low, int64_t high) {
  return {[=](std::string& text) {
            const auto number = read_number<int64_t>(text);
            if (number && *number >= low && *number <= high) return std::string();
            const std::string range = high == std::numeric_limits<int64_t>::max()
                                          ? fmt::format("from {} on", low)
                                          : fmt::format("from {} to {}", low, high);
            return fmt::format("this must be a whole number {}: \"{}\"", range, text);
          },
          ""};
}

CLI::Validator finite_number(double low, double high) {
  return {[=](std::string& text) {
            const auto number = read_number<double>(text);
            if (number && *number >= low && *number <= high) return std::string();
            const std::string range = high == std::numeric_limits<double>::max()
                                          ? fmt::format("from {:g} on", low)
                                          : fmt::format("from {:g} to {:g}", low, high);
            return fmt::format("this must be a finite number {}: \"{}\"", range, text);
          },
          ""};
}

namespace {

/// A tensor's name and a finite number that is not negative; else nothing.
std::optional<WidenedBudget> parse_budget(const std::string& text) {
  constexpr std::string_view kNames[] = {"out", "lse", "max_logit", "dq",
                                         "dk",  "dv",  "d_sink",    "dbias"};
  const size_t sign = text.find('=');
  if (sign == std::string::npos) return std::nullopt;
  const std::string name = text.substr(0, sign);
  const auto number = read_number<double>(text.substr(sign + 1));
  const bool is_known = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  if (!is_known || !number || !(*number >= 0) || !std::isfinite(*number)) return std::nullopt;
  return WidenedBudget{name, *number};
}

}  // namespace

std::vector<WidenedBudget> parse_budgets(const std::vector<std::string>& budgets) {
  std::vector<WidenedBudget> parsed;
  for (const std::string& text : budgets)
    if (const auto budget = parse_budget(text)) parsed.push_back(*budget);
  return parsed;
}

void add_scenario_file(CLI::App* app, std::string& path) {
  app->add_option("FILE", path, "scenario file (TOML), or a plan document (JSON)")->required();
}

void add_json(CLI::App* app, bool& json) {
  app->add_flag("--json", json, "print one JSON document on stdout and nothing else");
}

void add_executor(CLI::App* app, std::string& executor) {
  app->add_option(
         "--executor", executor,
         "cpu (default), cuda, cuda-portable (no kernels of one GPU generation only), nccl or "
         "plugin:PATH")
      ->check(kNotEmpty);
}

void add_poison(CLI::App* app, bool& poison, const char* when) {
  app->add_flag(
      "--poison", poison,
      fmt::format("fill padding rows, output and receive buffers with NaN before {}", when));
}

void add_sample(CLI::App* app, int64_t& rows) {
  app->add_option("--sample", rows,
                  "compare only about N query rows, and as many keys, of a batch too long to judge "
                  "whole; all other rows are looked through")
      ->check(whole_number());
}

void add_budgets(CLI::App* app, std::vector<std::string>& budgets) {
  app->add_option("--budget", budgets,
                  "NAME=X: the rel_l2 that a tensor may have where the earned budget is narrower, "
                  "as lse=1e-3; shown in the verdict; may be given for several")
      ->check(CLI::Validator(
          [](std::string& text) {
            return parse_budget(text) ? std::string() : "a budget is NAME=X, as lse=1e-3: " + text;
          },
          ""))
      ->expected(1)
      ->take_all();
}

void add_cluster(CLI::App* app, ClusterChoice& choice) {
  app->add_option("--cluster", choice.cluster,
                  "a file of scenarios/clusters by name (h200x8, h200_ib, ...), or any .toml")
      ->required()
      ->check(kNotEmpty);
  app->add_option("--stack", choice.stack,
                  "whose kernels and schedule: a stack of the cluster file (default: its first)")
      ->check(kNotEmpty);
}

CLI::Option* add_measured(CLI::App* app, std::vector<std::string>& traces,
                          std::optional<int64_t>& layer) {
  CLI::Option* measured = app->add_option(
      "--measured", traces,
      "traces of a run of other software: Kineto's JSON (torch.profiler, also .gz), other JSON in "
      "Chrome's format, nsys's SQLite exports; one for each rank, or RANK=FILE where a file does "
      "not say its rank. What ran is shown next to the plan's items");
  measured->check(kNotEmpty);
  app->add_option("--layer", layer,
                  "which repetition of the plan in these traces, from 0 (default: the one of "
                  "median duration)")
      ->check(whole_number())
      ->needs(measured);
  return measured;
}

Result<LoadedScenario> load_with_warnings(const std::string& path) {
  Result<LoadedScenario> loaded = load_scenario_or_plan(path);
  if (loaded) {
    for (const std::string& warning : loaded.value().warnings) std::cerr << warning << '\n';
  }
  return loaded;
}

Result<LoadedScenario> load_scenario_alone(const std::string& path, std::string_view command) {
  if (!is_plan_document(path)) return load_with_warnings(path);
  return make_bad_input(
      fmt::format("{} plans the split by itself, and a plan document is one that is made", command),
      "give a scenario file", path);
}

namespace {

namespace fs = std::filesystem;

/// Options that name a file which a command writes.
constexpr std::array<std::string_view, 9> kOutputs = {"--record", "--junit",      "--report",
                                                      "--out",    "--markdown",   "--csv",
                                                      "--trace",  "--screenshot", "--chakra"};

/// A name of one file, whatever way leads there.
fs::path identify(const std::string& path) {
  std::error_code failure;
  // From the root on: of a relative name that leads to nothing yet, no part would be resolved.
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), failure);
  return failure ? fs::absolute(path).lexically_normal() : whole;
}

/// One file, by its name or by a link of either kind.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code failure;
  return identify(a) == identify(b) || fs::equivalent(a, b, failure);
}

struct NamedFile {
  std::string option;  // or FILE
  std::string path;
};

/// The files that a scenario file names beside itself.
void add_files_of_scenario(const std::string& path, std::vector<NamedFile>& inputs) {
  if (!path.ends_with(".toml")) return;
  const Result<LoadedScenario> loaded = load_scenario(path);
  if (!loaded) return;  // the command says so
  const fs::path folder = fs::path(path).parent_path();
  const Scenario& scenario = loaded.value().scenario;
  if (!scenario.parallel.indices_file.empty())
    inputs.push_back({"indices_file", (folder / scenario.parallel.indices_file).string()});
  if (!scenario.batch.positions_file.empty())
    inputs.push_back({"positions_file", (folder / scenario.batch.positions_file).string()});
  if (scenario.batch.generator && !scenario.batch.generator->file.empty())
    inputs.push_back({"the lengths' file", (folder / scenario.batch.generator->file).string()});
  if (scenario.attention.generator && !scenario.attention.generator->file.empty())
    inputs.push_back({"the mask's file", (folder / scenario.attention.generator->file).string()});
}

}  // namespace

std::optional<Error> check_outputs(const CLI::App& command) {
  std::vector<NamedFile> inputs, outputs;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    // `timeline --record` reads what `run --record` has written.
    const bool is_output = std::find(kOutputs.begin(), kOutputs.end(), name) != kOutputs.end() &&
                           !(name == "--record" && command.get_name() == "timeline");
    std::error_code failure;
    for (const std::string& word : option->results()) {
      // A trace may have its rank in front.
      const std::string path = name == "--measured" ? parse_trace_source(word).path : word;
      if (is_output && !word.empty())
        outputs.push_back({name, word});
      else if (fs::is_regular_file(path, failure))
        inputs.push_back({name, path});
    }
  }
  if (outputs.empty()) return std::nullopt;
  for (size_t i = 0, given = inputs.size(); i < given; ++i)
    add_files_of_scenario(NamedFile(inputs[i]).path, inputs);
  for (size_t o = 0; o < outputs.size(); ++o) {
    const NamedFile& output = outputs[o];
    for (const NamedFile& input : inputs) {
      if (!is_same_file(input.path, output.path)) continue;
      return make_error(ErrorKind::bad_input,
                        fmt::format("{} would replace a file that the command reads: {}",
                                    output.option, output.path),
                        "give it another name");
    }
    for (size_t other = 0; other < o; ++other) {
      if (!is_same_file(outputs[other].path, output.path)) continue;
      return make_error(ErrorKind::bad_input,
                        fmt::format("{} and {} name the same file: {}", outputs[other].option,
                                    output.option, output.path),
                        "give each a name of its own");
    }
  }
  return std::nullopt;
}

}  // namespace cpscope
