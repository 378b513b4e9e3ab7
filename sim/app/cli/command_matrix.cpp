#include "sim/app/cli/command_matrix.h"

#include "sim/app/matrix/matrix_run.h"
#include "sim/app/matrix/matrix_table.h"
#include "sim/base/whole_file.h"
#include "sim/findings/progress_bar.h"
#include "sim/findings/study.h"

#include <iostream>

#include <fmt/format.h>

namespace cpscope {

namespace {

/// A file's name for the scenario of a cell that somebody saves.
constexpr const char* kCellFile = "cell.toml";

CaseStatus status_of(CellStatus status) {
  if (status == CellStatus::pass) return CaseStatus::pass;
  return status == CellStatus::refused ? CaseStatus::refused : CaseStatus::fail;
}

/// What is known of every cell; those that failed are looked into.
Findings make_matrix_findings(const std::vector<CellResult>& results, const std::string& executor,
                              const MatrixCounts& total, Toolbox& toolbox) {
  Findings all{.command = "verify --matrix", .date = today()};
  all.summary =
      fmt::format("{} cells: {} pass, {} are rejected with a reason, {} are blind, {} fail",
                  total.all(), total.pass, total.refused, total.blind, total.fail);
  int studied = 0;
  for (const CellResult& result : results) {
    CaseOutcome outcome;
    outcome.status = status_of(result.status);
    outcome.reason = result.reason;
    outcome.executor = executor;
    CaseFindings findings = make_findings(describe(result.cell), "", std::move(outcome));
    findings.path.clear();
    if (result.status == CellStatus::blind) findings.blind.push_back(result.reason);
    if (findings.status == CaseStatus::fail && studied++ < kMostStudied) {
      LoadedScenario loaded;
      loaded.scenario = make_cell_scenario(result.cell);
      loaded.text = findings.text = print_scenario(loaded.scenario);
      findings.path = kCellFile;
      findings.replay =
          fmt::format("cpscope run {} --executor {}", kCellFile, quote_word(executor));
      if (result.status == CellStatus::fail) {
        const CaseOptions options{.executor = executor, .poison = true};
        CaseOutcome again = run_case(toolbox, loaded, options);
        findings.plan = again.plan;
        findings.grade = again.grade;
        study_failure(toolbox, loaded, options, findings);
      }
    }
    all.cases.push_back(std::move(findings));
  }
  return all;
}

}  // namespace

int command_matrix(const MatrixArguments& options, const Tools& tools) {
  const Result<Executor*> executor = find_executor(tools.toolbox, options.executor);
  if (!executor) return report(executor.error());
  // An executor that owns a device runs one plan at a time.
  const int threads = executor.value()->name() == "cpu" ? 0 : 1;
  const std::vector<MatrixCell> cells = full_matrix();
  const auto run_with_bar = [&] {
    ProgressBar bar(true);
    return run_matrix(*executor.value(), tools.toolbox, cells, threads, bar.phase("matrix"));
  };
  const std::vector<CellResult> results = run_with_bar();
  const MatrixReport matrix = summarise_matrix(results);
  if (!options.markdown_path.empty()) {
    const Result<size_t> written =
        write_whole_file(options.markdown_path, matrix_markdown(matrix), "the table");
    if (!written) return report(written.error());
  }
  std::cout << (options.json ? print_json(matrix_json(matrix)) + "\n" : matrix_text(matrix));
  if (!options.files.report.empty() || !options.files.junit.empty()) {
    const Findings all =
        make_matrix_findings(results, executor.value()->name(), matrix.total, tools.toolbox);
    if (const auto error = write_output_files(all, options.files, tools, options.json))
      return report(*error);
  }
  if (matrix.total.fail > 0 || matrix.total.blind > 0) return 1;
  // Nothing ran: the executor is here, but can do none of it.
  return matrix.total.pass > 0 ? 0 : 3;
}

}  // namespace cpscope
