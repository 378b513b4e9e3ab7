#include "sim/app/commands.h"
#include "sim/app/grade_text.h"
#include "sim/app/json_text.h"
#include "sim/app/progress_bar.h"
#include "sim/app/verdict_text.h"
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
    std::cout << probe_json(result, executor.value()->name()).dump() << '\n';
  } else {
    write_probe_text(result, executor.value()->name(), std::cout);
  }
  return result.passed() ? 0 : 1;
}

}  // namespace cpscope
