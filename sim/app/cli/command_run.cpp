#include "sim/app/cli/commands.h"
#include "sim/documents/json_text.h"
#include "sim/documents/verdict_text.h"
#include "sim/findings/error_document.h"
#include "sim/findings/progress_bar.h"
#include "sim/findings/run_document.h"
#include "sim/findings/study.h"
#include "sim/run/probe/probe.h"

#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct RunArguments {
  std::string scenario_path, executor, record_path;
  std::vector<std::string> budgets;
  int64_t sample_rows = 0;
  OutputFiles files;
  bool json = false, poison = false, items = false;
};

struct ProbeArguments {
  std::string scenario_path, executor;
  OutputFiles files;
  bool json = false;
};

/// The command that does the same again.
std::string make_replay(const char* command, const std::string& path, const std::string& executor) {
  std::string replay = fmt::format("cpscope {} {}", command, quote_word(path));
  if (!executor.empty()) replay += " --executor " + quote_word(executor);
  return replay;
}

std::string make_run_replay(const RunArguments& options) {
  std::string replay = make_replay("run", options.scenario_path, options.executor);
  if (options.poison) replay += " --poison";
  if (options.sample_rows > 0) replay += fmt::format(" --sample {}", options.sample_rows);
  for (const std::string& budget : options.budgets) replay += " --budget " + quote_word(budget);
  return replay;
}

/// The tile that a probe's first finding is about, where the probe knows its step.
std::optional<WrongPlace> find_probed_place(const ProbeFinding& finding, const Plan& plan) {
  if (finding.step < 0 || finding.rank < 0) return std::nullopt;
  WrongPlace place;
  place.token = finding.token;
  place.head = finding.head;
  place.expected = finding.expected;
  place.seen = finding.seen;
  place.found_by = "by the probe " + finding.probe;
  const std::vector<ComputeItem>& computes = plan.forward.computes;
  for (size_t i = 0; i < computes.size(); ++i) {
    if (to_index(computes[i].rank) != finding.rank || to_index(computes[i].step) != finding.step)
      continue;
    place.site = {{Direction::forward, StageKind::compute, static_cast<int64_t>(i)},
                  computes[i].rank,
                  computes[i].step};
    place.tiles = tiles_of(plan, place.site, finding.token, false);
    return place;
  }
  return std::nullopt;
}

/// Everything that the probes have found of a scenario.
CaseFindings probe_findings(const ProbeArguments& options, const LoadedScenario& loaded,
                            const std::string& executor, ProbeReport report) {
  CaseOutcome outcome;
  outcome.executor = executor;
  outcome.status = report.passed() ? CaseStatus::pass : CaseStatus::fail;
  if (report.first) outcome.reason = report.first->text;
  for (const ProbeTally& tally : report.tallies)
    if (outcome.reason.empty() && tally.first) outcome.reason = tally.first->text;
  if (Result<CheckedPlan> plan = plan_scenario(loaded)) outcome.plan = std::move(plan).value();
  CaseFindings findings = make_findings(options.scenario_path, loaded.text, std::move(outcome));
  findings.replay = make_replay("probe", options.scenario_path, options.executor);
  if (findings.status == CaseStatus::fail && findings.plan) {
    if (report.first) findings.first = find_probed_place(*report.first, findings.plan->plan());
    if (!findings.first)
      findings.not_located =
          "this probe tells the row alone; `cpscope run --report` looks for the "
          "item";
  }
  findings.probe = std::move(report);
  return findings;
}

int command_run(const RunArguments& options, const Tools& tools) {
  if (const auto error = check_output_files(options.files)) return report(*error);
  const Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  const CaseOptions case_options{.executor = options.executor,
                                 .poison = options.poison,
                                 .sample_rows = options.sample_rows,
                                 .budgets = parse_budgets(options.budgets),
                                 .measures_items = !options.record_path.empty(),
                                 .keeps_items = options.items};
  const auto run_with_bar = [&] {
    ProgressBar bar(true);
    CaseOptions watched = case_options;
    watched.progress = bar.phases();
    watched.estimated = [&](const WorkEstimate& estimate) { bar.announce(estimate); };
    return run_case(tools.toolbox, loaded.value(), watched);
  };
  CaseOutcome outcome = run_with_bar();
  const RunSeconds seconds{outcome.plan_seconds, outcome.run_seconds, outcome.judge_seconds};
  const bool was_graded = !outcome.grade.tensors.empty();
  const int code = outcome.exit_code;
  if (!was_graded) {
    // A machine that lacks something is no fault of the file.
    const bool is_of_file =
        outcome.status != CaseStatus::skipped && outcome.status != CaseStatus::error;
    std::cerr << (is_of_file ? "" : "cpscope: ") << outcome.reason << '\n';
    if (outcome.error) note_error(*outcome.error);
  }
  if (was_graded && !options.record_path.empty()) {
    const Result<std::string> written =
        write_record(make_record(outcome, loaded.value().text), options.record_path);
    if (!written) return report(written.error());
  }
  Findings all{.command = "run", .date = today()};
  all.cases.push_back(
      make_findings(options.scenario_path, loaded.value().text, std::move(outcome)));
  CaseFindings& findings = all.cases.front();
  findings.replay = make_run_replay(options);
  study_failure(tools.toolbox, loaded.value(), case_options, findings);
  if (was_graded && !options.files.report.empty())
    add_probes(tools.toolbox, loaded.value(), findings);
  if (was_graded && options.json) {
    std::cout << print_json(run_json(findings, seconds)) << '\n';
  } else if (was_graded) {
    write_run_text(findings, seconds, std::cout);
  }
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return code;
}

}  // namespace

Command add_run(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<RunArguments>();
  CLI::App* run = app.add_subcommand("run", "executes the plan and compares with the dense oracle");
  add_scenario_file(run, options->scenario_path);
  add_executor(run, options->executor);
  add_json(run, options->json);
  CLI::Option* record =
      run->add_option("--record", options->record_path,
                      "write inputs, answers and, where the executor has a clock, the time of "
                      "every item to this .safetensors file")
          ->check(kNotEmpty);
  run->add_flag("--items", options->items,
                "with --record: also what every compute and finish item has written, 8 bytes of "
                "memory and 4 of the file a value (fp64: 8); refused when that is more than the "
                "machine has")
      ->needs(record);
  add_poison(run, options->poison, "the run");
  add_sample(run, options->sample_rows);
  add_budgets(run, options->budgets);
  add_output_files(run, options->files);
  run->footer(
      "Example: cpscope run scenarios/thd_padding_p2p.toml --poison --record out/run.safetensors");
  return {run, [options, tools] { return command_run(*options, tools); }};
}

namespace {

int command_probe(const ProbeArguments& options, const Tools& tools) {
  if (const auto error = check_output_files(options.files)) return report(*error);
  const Result<LoadedScenario> loaded = load_with_warnings(options.scenario_path);
  if (!loaded) return report(loaded.error());
  const Result<Executor*> executor = find_executor(tools.toolbox, options.executor);
  if (!executor) return report(executor.error());
  const PlanVariant plan_for = variants_of(loaded.value());
  const Result<CheckedPlan> plan = plan_for(probe_scenario(loaded.value().scenario));
  if (!plan) return report(plan.error(), loaded.value());
  if (const auto error = probe_obstacle(plan.value(), *executor.value())) return report(*error);
  const auto probe_with_bar = [&] {
    ProgressBar bar(true);
    const Scenario& scenario = loaded.value().scenario;
    const double flops = estimate_probe_flops(scenario, plan.value().plan(), *executor.value());
    bar.announce(estimate_executor(flops, scenario.numerics.dtype, executor.value()->name()));
    return run_probes(scenario, plan_for, *executor.value(), tools.toolbox.oracle.witness,
                      bar.share("probe"));
  };
  Result<ProbeReport> probed = probe_with_bar();
  if (!probed) return report(probed.error());
  const std::string name = executor.value()->name();
  Findings all{.command = "probe", .date = today()};
  all.cases.push_back(probe_findings(options, loaded.value(), name, std::move(probed).value()));
  const ProbeReport& result = *all.cases.front().probe;
  if (options.json) {
    std::cout << print_json(probe_json(result, name)) << '\n';
  } else {
    write_probe_text(result, name, std::cout);
  }
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return result.passed() ? 0 : 1;
}

}  // namespace

Command add_probe(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<ProbeArguments>();
  CLI::App* probe =
      app.add_subcommand("probe", "exact integer check of which keys every row has seen");
  add_scenario_file(probe, options->scenario_path);
  add_executor(probe, options->executor);
  add_json(probe, options->json);
  add_output_files(probe, options->files);
  probe->footer("Example: cpscope probe scenarios/contiguous_idle.toml --json");
  return {probe, [options, tools] { return command_probe(*options, tools); }};
}

}  // namespace cpscope
