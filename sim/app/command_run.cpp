#include "sim/app/commands.h"
#include "sim/app/grade_text.h"
#include "sim/app/json_text.h"
#include "sim/app/progress_bar.h"
#include "sim/run/probe.h"

#include <iostream>

#include <fmt/format.h>

namespace cpscope {
namespace {

void write_grade_text(const CaseOutcome& outcome, std::ostream& out) {
  out << fmt::format("{} on executor {}, plan {}\n", outcome.grade.passed ? "PASS" : "FAIL",
                     outcome.executor, to_hex(outcome.plan->plan().hash));
  write_grade_table(outcome.grade, out);
  if (!outcome.judged.query_tokens.empty()) {
    out << fmt::format("judged on a sample: {} query rows, {} key rows\n",
                       outcome.judged.query_tokens.size(), outcome.judged.key_tokens.size());
  }
  out << fmt::format("planned and proved in {:.3f} s, ran in {:.3f} s, judged in {:.3f} s\n",
                     outcome.plan_seconds, outcome.run_seconds, outcome.judge_seconds);
}

Json finding_json(const ProbeFinding& finding) {
  return {{"rank", finding.rank},
          {"step", finding.step},
          {"token", finding.token},
          {"head", finding.head},
          {"expected", finite_or_null(finding.expected)},
          {"seen", finite_or_null(finding.seen)},
          {"probe", finding.probe},
          {"text", finding.text}};
}

}  // namespace

int command_run(const CommandOptions& options, Toolbox& toolbox) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.paths.front());
  if (!loaded) return report(loaded.error());
  CaseOptions case_options{.executor = options.executor,
                           .poison = options.poison,
                           .sample_rows = options.sample_rows,
                           .measures_items = !options.record_path.empty(),
                           .keeps_items = options.items};
  const auto run_with_bar = [&] {
    ProgressBar bar(true);
    case_options.progress = bar.phases();
    return run_case(toolbox, loaded.value(), case_options);
  };
  CaseOutcome outcome = run_with_bar();
  const bool was_graded = !outcome.grade.tensors.empty();
  if (!was_graded) {
    // A machine that lacks something is no fault of the file.
    const bool is_of_file =
        outcome.status != CaseStatus::skipped && outcome.status != CaseStatus::error;
    std::cerr << (is_of_file ? "" : "cpscope: ") << outcome.reason << '\n';
    return outcome.exit_code;
  }
  if (!options.record_path.empty()) {
    const Result<std::string> written =
        write_record(make_record(outcome, loaded.value().text), options.record_path);
    if (!written) return report(written.error());
  }
  if (options.json) {
    Json json = grade_json(outcome.grade, outcome.executor, outcome.plan->plan().hash);
    const bool is_sample = !outcome.judged.query_tokens.empty();
    json["judged"] = {{"whole", !is_sample},
                      {"query_rows", outcome.judged.query_tokens.size()},
                      {"key_rows", outcome.judged.key_tokens.size()}};
    json["seconds"] = {{"plan", outcome.plan_seconds},
                       {"run", outcome.run_seconds},
                       {"judge", outcome.judge_seconds}};
    std::cout << json.dump() << '\n';
  } else {
    write_grade_text(outcome, std::cout);
  }
  return outcome.exit_code;
}

int command_probe(const CommandOptions& options, Toolbox& toolbox) {
  const Result<LoadedScenario> loaded = load_with_warnings(options.paths.front());
  if (!loaded) return report(loaded.error());
  const Result<Executor*> executor = find_executor(toolbox, options.executor);
  if (!executor) return report(executor.error());
  const Result<CheckedPlan> plan = plan_scenario(probe_scenario(loaded.value().scenario));
  if (!plan) return report(plan.error(), loaded.value());
  if (const auto error = probe_obstacle(plan.value(), *executor.value())) return report(*error);
  ProgressBar bar(true);
  const Result<ProbeReport> probed =
      run_probes(loaded.value().scenario, *executor.value(), toolbox.witness, bar.phase("probe"));
  if (!probed) return report(probed.error());
  const ProbeReport& result = probed.value();
  if (options.json) {
    Json json{{"schema", 1},
              {"rows", result.rows},
              {"wrong_count_rows", result.wrong_count_rows},
              {"wrong_key_rows", result.wrong_key_rows}};
    json["first"] = nullptr;
    if (result.first) json["first"] = finding_json(*result.first);
    json["passes"] = result.passes;
    json["passed"] = result.passed();
    json["probes"] = Json::array();
    for (const ProbeTally& tally : result.tallies) {
      Json probe{{"probe", tally.probe}, {"rows", tally.rows}, {"wrong_rows", tally.wrong}};
      probe["first"] = tally.first ? finding_json(*tally.first) : Json(nullptr);
      if (!tally.why_not.empty()) probe["why_not"] = tally.why_not;
      json["probes"].push_back(probe);
    }
    json["executor"] = executor.value()->name();
    std::cout << json.dump() << '\n';
  } else {
    std::cout << fmt::format(
        "{}: {} rows probed in {} passes on executor {}; {} with a wrong count, {} with wrong "
        "keys\n",
        result.passed() ? "PASS" : "FAIL", result.rows, result.passes, executor.value()->name(),
        result.wrong_count_rows, result.wrong_key_rows);
    for (const ProbeTally& tally : result.tallies) {
      std::cout << fmt::format("  {:<9} {:>8} rows asked, {} wrong{}\n", tally.probe, tally.rows,
                               tally.wrong,
                               !tally.why_not.empty() ? " (" + tally.why_not + ")"
                               : tally.rows == 0      ? std::string(" (nothing to ask here)")
                                                      : std::string());
      if (tally.first) std::cout << "            first: " << tally.first->text << '\n';
    }
  }
  return result.passed() ? 0 : 1;
}

}  // namespace cpscope
