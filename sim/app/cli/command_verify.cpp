#include "sim/app/cli/command.h"
#include "sim/app/cli/command_matrix.h"
#include "sim/app/cli/commands.h"
#include "sim/app/cli/verified_file.h"
#include "sim/documents/json_text.h"
#include "sim/findings/run_document.h"
#include "sim/findings/study.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include <fmt/format.h>

namespace cpscope {
namespace {

struct VerifyArguments {
  std::vector<std::string> paths;
  std::string executor;
  std::string markdown_path;  // of the matrix
  double max_flops = 2e12;
  OutputFiles files;
  bool json = false, poison = false, matrix = false;
};

Json row_json(const VerifyRow& row, const CaseFindings& findings) {
  Json json{{"scenario", row.path},
            {"status", to_name(row.outcome.status)},
            {"reason", row.outcome.reason},
            {"executor", row.outcome.executor}};
  if (!row.outcome.plan) return json;
  json["plan_hash"] = to_hex(row.outcome.plan->plan().hash);
  json["seconds"] = {{"plan", row.outcome.plan_seconds},
                     {"run", row.outcome.run_seconds},
                     {"judge", row.outcome.judge_seconds}};
  if (!row.outcome.grade.tensors.empty()) {
    json["tensors"] = grade_json(row.outcome.grade, row.outcome.executor,
                                 row.outcome.plan->plan().hash)["tensors"];
  }
  add_findings(findings, json);
  return json;
}

std::vector<std::string> executors_asked(const std::string& name, const Toolbox& toolbox) {
  if (name != "all") return {name};
  std::vector<std::string> names;
  for (const auto& executor : toolbox.executors) {
    if (!executor->absence()) names.push_back(executor->name());
  }
  return names;
}

/// Looks into the failure with this number, unless there were many before it.
void look_into(Toolbox& toolbox, const VerifyRow& row, const CaseOptions& options, int number,
               CaseFindings& findings) {
  if (number > kMostStudied) {
    findings.not_located = fmt::format("only the first {} failures were looked into", kMostStudied);
    return;
  }
  study_failure(toolbox, row.loaded, options, findings);
}

int command_verify(const VerifyArguments& options, const Tools& tools) {
  if (const auto error = check_output_files(options.files)) return report(*error);
  if (options.matrix)
    return command_matrix({options.executor, options.markdown_path, options.files, options.json},
                          tools);
  for (const std::string& name : executors_asked(options.executor, tools.toolbox)) {
    const Result<Executor*> executor = find_executor(tools.toolbox, name);
    if (!executor) return report(executor.error());
  }
  const Result<std::vector<std::string>> files = find_scenarios(options.paths);
  if (!files) return report(files.error());
  std::vector<VerifyRow> rows;
  Findings all{.command = "verify", .date = today()};
  int studied = 0;
  if (!options.json) std::cout << table_header() << '\n';
  for (const std::string& file : files.value()) {
    for (const std::string& name : executors_asked(options.executor, tools.toolbox)) {
      const CaseOptions case_options{
          .executor = name, .poison = options.poison, .max_flops = options.max_flops};
      rows.push_back(verify_file(tools.toolbox, file, case_options));
      if (!options.json) std::cout << table_line(rows.back()) << std::endl;
      all.cases.push_back(to_findings(rows.back(), case_options));
      CaseFindings& findings = all.cases.back();
      if (findings.status != CaseStatus::fail || findings.grade.tensors.empty()) continue;
      look_into(tools.toolbox, rows.back(), case_options, ++studied, findings);
      if (!options.files.report.empty() && studied <= kMostStudied)
        add_probes(tools.toolbox, rows.back().loaded, findings);
      if (!options.json && findings.first)
        std::cout << "  first wrong at " << describe(*findings.first) << std::endl;
    }
  }
  const int code = exit_code_of(rows);
  Json json{{"schema", 1}, {"passed", code == 0}, {"rows", Json::array()}};
  for (size_t i = 0; i < rows.size(); ++i) json["rows"].push_back(row_json(rows[i], all.cases[i]));
  if (options.json) std::cout << print_json(json) << '\n';
  if (const auto error = write_output_files(all, options.files, tools, options.json))
    return report(*error);
  return code;
}

}  // namespace

Command add_verify(CLI::App& app, const Tools& tools) {
  const auto options = std::make_shared<VerifyArguments>();
  CLI::App* verify = app.add_subcommand("verify", "all scenarios under the paths, one row each");
  verify->add_option("PATH", options->paths,
                     "scenario files or folders; folders `bad` and `clusters` only when named");
  add_executor(verify, options->executor);
  add_json(verify, options->json);
  verify->add_flag("--matrix", options->matrix,
                   "sweep comm type x layout x mask x format x padding x feature on small shapes");
  verify
      ->add_option(
          "--markdown", options->markdown_path,
          "with --matrix: also write the table, next to what other frameworks offer, to this file")
      ->check(kNotEmpty);
  add_output_files(verify, options->files);
  add_poison(verify, options->poison, "each run");
  verify
      ->add_option("--max-flops", options->max_flops,
                   "plan and prove, but do not execute, cases above this arithmetic; 0 = no limit")
      ->check(finite_number());
  verify->footer("Example: cpscope verify scenarios --junit out/verify.xml");
  return {verify, [options, tools] {
            if (options->paths.empty() && !options->matrix) throw CLI::RequiredError("PATH");
            return command_verify(*options, tools);
          }};
}

}  // namespace cpscope
