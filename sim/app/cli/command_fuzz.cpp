#include "sim/app/cli/commands.h"
#include "sim/app/fuzz/fuzz.h"
#include "sim/base/whole_file.h"
#include "sim/documents/json_text.h"
#include "sim/findings/progress_bar.h"
#include "sim/findings/study.h"
#include "sim/scenario/scenario_names.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct FuzzArguments {
  std::vector<std::string> paths;  // one scenario, or none
  std::string executor;
  std::string out_path;   // of the smallest failing scenario
  double seconds = 60.0;  // 0: no limit
  int64_t count = 0;      // draws; 0: as many as the time allows
  int64_t first = 0;      // number of the first draw
  uint64_t seed = 1;
  std::string dtype;  // of the draws; empty: every one
  OutputFiles files;
  bool json = false;
};

/// Scenarios that are tried on the way to the smallest one.
constexpr int64_t kShrinkTrials = 2000;

/// Writes a scenario and, where it has one, its order beside it. An error names the file.
std::optional<Error> write_scenario(Scenario scenario, const std::filesystem::path& path) {
  if (scenario.parallel.layout == LayoutKind::indices) {
    const std::filesystem::path order =
        std::filesystem::path(path).replace_extension(".order.json");
    Json json{{"cp_size", scenario.parallel.cp_size}, {"ranks", scenario.parallel.imported.ranks}};
    if (!scenario.batch.self_attention) json["kv_ranks"] = scenario.parallel.imported.kv_ranks;
    scenario.parallel.indices_file = order.filename().string();
    if (const auto written = write_whole_file(order.string(), json.dump() + "\n", "the order file");
        !written)
      return written.error();
  }
  if (const auto written =
          write_whole_file(path.string(), print_scenario(scenario), "the scenario");
      !written)
    return written.error();
  return std::nullopt;
}

std::string replay_command(const std::string& path, const std::string& executor) {
  return "cpscope fuzz " + path + (executor.empty() ? "" : " --executor " + executor);
}

Json fuzz_finding_json(const FuzzFinding& finding) {
  return {{"check", finding.check}, {"text", finding.text}};
}

/// What is told of one scenario after all checks.
CaseFindings make_fuzz_findings(Toolbox& toolbox, const FuzzArguments& options,
                                const LoadedScenario& loaded,
                                const std::optional<FuzzFinding>& finding) {
  const CaseOptions case_options{.executor = options.executor, .poison = true};
  CaseOutcome outcome;
  // Nobody asks for more than the verdict without a report.
  if (!options.files.report.empty()) outcome = run_case(toolbox, loaded, case_options);
  outcome.status = finding ? CaseStatus::fail : CaseStatus::pass;
  outcome.reason = finding ? fmt::format("check {}: {}", finding->check, finding->text) : "";
  if (outcome.executor.empty())
    outcome.executor = options.executor.empty() ? "cpu" : options.executor;
  const bool has_failed = !outcome.grade.passed;
  CaseFindings findings = make_findings(loaded.path, loaded.text, std::move(outcome));
  findings.replay = replay_command(quote_word(loaded.path), options.executor);
  if (has_failed) study_failure(toolbox, loaded, case_options, findings);
  if (finding && !findings.first && findings.not_located.empty())
    findings.not_located =
        "the answer keeps its budget; what failed is the check " + finding->check;
  if (!options.files.report.empty()) add_probes(toolbox, loaded, findings);
  return findings;
}

/// All checks on one scenario of a file.
int replay(const FuzzArguments& options, const Tools& tools) {
  const Result<LoadedScenario> loaded = load_scenario_alone(options.paths.front(), "fuzz");
  if (!loaded) return report(loaded.error());
  const FuzzResult result = try_scenario(tools.toolbox, options.executor, loaded.value().scenario);
  if (!result.refusal.empty()) {
    std::cerr << "cpscope: " << result.refusal << '\n';
    return 2;
  }
  if (result.finding && result.finding->obstacle) return report(*result.finding->obstacle);
  if (options.json) {
    Json json{{"schema", 1},
              {"passed", !result.finding},
              {"probed", result.is_probed},
              {"equivalents", result.equivalents}};
    json["finding"] = result.finding ? fuzz_finding_json(*result.finding) : Json();
    std::cout << print_json(json) << '\n';
  } else if (result.finding) {
    std::cout << fmt::format("FAIL check {}: {}\n", result.finding->check, result.finding->text);
  } else {
    std::cout << fmt::format("PASS {}, compared with {} other splits of the same attention\n",
                             result.is_probed ? "all checks" : "all checks but the probe",
                             result.equivalents);
  }
  Findings all{.command = "fuzz", .date = today()};
  all.cases.push_back(make_fuzz_findings(tools.toolbox, options, loaded.value(), result.finding));
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return result.finding ? 1 : 0;
}

std::string count_by_dtype(const FuzzReport& report) {
  std::string text;
  for (const auto& [dtype, count] : report.passed_by_dtype)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dtype, count);
  return text;
}

Json report_json(const FuzzReport& report, uint64_t seed, double seconds) {
  Json json{{"schema", 1},
            {"seed", seed},
            {"drawn", report.drawn},
            {"passed", report.passed},
            {"refused", report.refused},
            {"probed", report.probed},
            {"equivalents", report.equivalents},
            {"seconds", seconds}};
  json["passed_by_dtype"] = Json::object();
  for (const auto& [dtype, count] : report.passed_by_dtype) json["passed_by_dtype"][dtype] = count;
  json["finding"] = report.finding ? fuzz_finding_json(*report.finding) : Json();
  return json;
}

/// Looks for the smallest scenario that still fails, writes it and tells of it.
std::optional<Error> shrink_finding(const FuzzArguments& options, Toolbox& toolbox,
                                    const FuzzReport& found, Json& json, Findings& all) {
  std::cerr << "cpscope: a check failed; looking for the smallest scenario that still fails\n";
  LoadedScenario loaded;
  loaded.scenario =
      shrink_scenario(toolbox, options.executor, found.failed, *found.finding, kShrinkTrials);
  loaded.text = print_scenario(loaded.scenario);
  loaded.path = options.out_path.empty()
                    ? fmt::format("cpscope-fuzz-{}-{}.toml", options.seed, found.failed_draw)
                    : options.out_path;
  const FuzzResult result = try_scenario(toolbox, options.executor, loaded.scenario);
  if (auto error = write_scenario(loaded.scenario, loaded.path)) return error;
  const std::string command = replay_command(loaded.path, options.executor);
  json["draw"] = found.failed_draw;
  json["scenario"] = loaded.path;
  json["replay"] = command;
  if (result.finding) json["smallest_finding"] = fuzz_finding_json(*result.finding);
  all.cases.push_back(make_fuzz_findings(toolbox, options, loaded,
                                         result.finding ? result.finding : found.finding));
  all.summary +=
      fmt::format("; draw {} fails the check {}", found.failed_draw, found.finding->check);
  if (options.json) return std::nullopt;
  std::cout << fmt::format(
      "FAIL draw {}, check {}: {}\nsmallest scenario that still fails: {}\n  there: {}\nreplay: "
      "{}\n",
      found.failed_draw, found.finding->check, found.finding->text, loaded.path,
      result.finding ? result.finding->text : "it passes now", command);
  return std::nullopt;
}

/// What is told of draws that all passed: one case.
CaseFindings find_none(const FuzzArguments& options, const FuzzReport& found, double seconds) {
  CaseOutcome outcome;
  outcome.status = CaseStatus::pass;
  outcome.executor = options.executor.empty() ? "cpu" : options.executor;
  outcome.run_seconds = seconds;
  CaseFindings findings = make_findings("", "", std::move(outcome));
  findings.name = fmt::format("{} draws of seed {}", found.drawn, options.seed);
  findings.replay = fmt::format(
      "cpscope fuzz --seed {} --first {} --count {} --seconds 0{}{}", options.seed, options.first,
      found.drawn, options.dtype.empty() ? "" : " --dtype " + options.dtype,
      options.executor.empty() ? "" : " --executor " + quote_word(options.executor));
  return findings;
}

int command_fuzz(const FuzzArguments& options, const Tools& tools) {
  if (const auto error = check_output_files(options.files)) return report(*error);
  if (const auto executor = find_executor(tools.toolbox, options.executor); !executor)
    return report(executor.error());
  if (!options.paths.empty()) return replay(options, tools);
  const auto start = std::chrono::steady_clock::now();
  const auto run = [&] {
    ProgressBar bar(true);
    return fuzz(tools.toolbox, options.executor,
                {.seed = options.seed,
                 .first = static_cast<uint64_t>(options.first),
                 .count = options.count,
                 .seconds = options.seconds,
                 .dtype = options.dtype},
                bar.phase("fuzz"));
  };
  const FuzzReport found = run();
  if (found.finding && found.finding->obstacle) return report(*found.finding->obstacle);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Json json = report_json(found, options.seed, seconds);
  Findings all{.command = "fuzz", .date = today()};
  all.summary = fmt::format(
      "{} draws of seed {}: {} passed ({}), {} refused by rule; {} probed, compared with {} other "
      "splits",
      found.drawn, options.seed, found.passed, count_by_dtype(found), found.refused, found.probed,
      found.equivalents);
  if (!options.json)
    std::cout << fmt::format(
        "{} draws of seed {} in {:.1f} s: {} passed ({}), {} refused by rule; {} probed, compared "
        "with {} other splits\n",
        found.drawn, options.seed, seconds, found.passed, count_by_dtype(found), found.refused,
        found.probed, found.equivalents);
  if (found.finding) {
    if (const auto error = shrink_finding(options, tools.toolbox, found, json, all))
      return report(*error);
  } else {
    all.cases.push_back(find_none(options, found, seconds));
  }
  if (options.json) std::cout << print_json(json) << '\n';
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return found.finding ? 1 : 0;
}

}  // namespace

Command add_fuzz(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<FuzzArguments>();
  CLI::App* fuzz = app.add_subcommand(
      "fuzz",
      "random scenarios over the whole space, each held to the oracle, the probe and other splits "
      "of the same attention; a failure is shrunk to the smallest scenario that still fails");
  fuzz->add_option("FILE", options->paths, "apply the same checks to this scenario alone")
      ->expected(0, 1);
  fuzz->add_option("--seconds", options->seconds, "stop after so long (default 60; 0 = never)")
      ->check(finite_number());
  fuzz->add_option("--count", options->count, "stop after so many draws (default 0 = never)")
      ->check(whole_number());
  fuzz->add_option("--seed", options->seed, "which draws (default 1)")->check(whole_number());
  fuzz->add_option("--first", options->first, "number of the first draw (default 0)")
      ->check(whole_number());
  fuzz->add_option("--dtype", options->dtype,
                   "only draws of this dtype: fp64, fp32, fp16, bf16 or fp8 (default all)")
      ->check(CLI::IsMember({"fp64", "fp32", "fp16", "bf16", "fp8"}));
  fuzz->add_option("--out", options->out_path,
                   "where the smallest failing scenario goes (default cpscope-fuzz-SEED-DRAW.toml)")
      ->check(kNotEmpty);
  add_executor(fuzz, options->executor);
  add_json(fuzz, options->json);
  add_output_files(fuzz, options->files);
  fuzz->footer("Example: cpscope fuzz --seconds 30 --seed 7");
  return {fuzz, [options, tools] { return command_fuzz(*options, tools); }};
}

}  // namespace cpscope
