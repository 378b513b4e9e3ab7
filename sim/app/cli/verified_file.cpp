#include "sim/app/cli/verified_file.h"

#include "sim/findings/progress_bar.h"
#include "sim/plan/document/load_plan.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace cpscope {
namespace {

bool is_named_only_folder(const std::filesystem::path& path) {
  return path.filename() == "bad" || path.filename() == "clusters";
}

std::optional<Error> add_folder(const std::filesystem::path& folder,
                                std::vector<std::string>& files) {
  std::error_code error;
  const auto refuse = [&](const std::filesystem::path& unreadable) {
    return make_error(ErrorKind::bad_input, "the folder cannot be read: " + unreadable.string(),
                      error.message());
  };
  auto entry = std::filesystem::recursive_directory_iterator(folder, error);
  if (error) return refuse(folder);
  std::filesystem::path last = folder;
  for (; entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    last = entry->path();
    if (entry->is_directory(error) && is_named_only_folder(entry->path()))
      entry.disable_recursion_pending();
    if (entry->is_regular_file(error) && entry->path().extension() == ".toml")
      files.push_back(entry->path().string());
  }
  // The iterator ends where it cannot go into a folder: the one that it stood at.
  if (error) return refuse(last);
  return std::nullopt;
}

/// Largest rel_l2 over its budget, of the tensors of a grade; 0 when nothing was graded.
double worst_share_of_budget(const Grade& grade) {
  double worst = 0;
  for (const TensorGrade& tensor : grade.tensors) {
    if (tensor.budget > 0) worst = std::max(worst, tensor.rel_l2 / tensor.budget);
  }
  return worst;
}

double worst_rel_l2(const Grade& grade) {
  double worst = 0;
  for (const TensorGrade& tensor : grade.tensors) worst = std::max(worst, tensor.rel_l2);
  return worst;
}

/// The first line of a reason; the others are in the JSON and the report.
std::string first_line(const std::string& reason) {
  const size_t end = reason.find('\n');
  return end == std::string::npos ? reason : reason.substr(0, end) + " (and more)";
}

}  // namespace

Result<std::vector<std::string>> find_scenarios(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error))
      return make_error(ErrorKind::bad_input, "no such file or folder: " + path,
                        "name a scenario file or a folder of them");
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
    } else if (auto failure = add_folder(path, files)) {
      return *failure;
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  if (files.empty())
    return make_error(ErrorKind::bad_input, "no scenario (*.toml) under: " + paths.front(),
                      "name a folder that holds some");
  return files;
}

CaseFindings to_findings(const VerifyRow& row, const CaseOptions& options) {
  CaseFindings findings = make_findings(row.path, row.loaded.text, row.outcome);
  findings.replay = "cpscope run " + quote_word(row.path);
  if (!options.executor.empty()) findings.replay += " --executor " + quote_word(options.executor);
  if (options.poison) findings.replay += " --poison";
  return findings;
}

VerifyRow verify_file(Toolbox& toolbox, const std::string& path, const CaseOptions& options) {
  VerifyRow row;
  row.path = path;
  Result<LoadedScenario> loaded = load_scenario_or_plan(path);
  if (!loaded) {
    const bool is_refused = loaded.error().kind == ErrorKind::refused;
    row.outcome.status = loaded.error().kind == ErrorKind::failed ? CaseStatus::fail
                         : is_refused                             ? CaseStatus::refused
                                                                  : CaseStatus::error;
    row.outcome.reason = to_text(loaded.error());
    return row;
  }
  row.loaded = std::move(loaded).value();
  ProgressBar bar(true, std::filesystem::path(path).stem().string());
  CaseOptions watched = options;
  watched.progress = bar.phases();
  watched.estimated = [&](const WorkEstimate& estimate) { bar.announce(estimate); };
  row.outcome = run_case(toolbox, row.loaded, watched);
  // The tensors of a finished case are of no more use; a long list of cases would not fit in
  // memory.
  row.outcome.inputs = {};
  row.outcome.output = {};
  return row;
}

std::string table_header() {
  return fmt::format("{:<44} {:<10} {:<17} {:<32} {:>5} {:>8}  {:<8} {:>9} {:>7} {:>7}", "scenario",
                     "comm", "layout", "mask", "ranks", "tokens", "status", "rel_l2", "/budget",
                     "s");
}

std::string table_line(const VerifyRow& row) {
  const std::string name = std::filesystem::path(row.path).stem().string();
  if (!row.outcome.plan)
    return fmt::format("{:<44} {:<8}  {}", name, to_name(row.outcome.status),
                       first_line(row.outcome.reason));
  const Scenario& scenario = row.loaded.scenario;
  std::string line =
      fmt::format("{:<44} {:<10} {:<17} {:<32} {:>5} {:>8}  {:<8}", name,
                  to_name(scenario.parallel.comm_type), to_name(scenario.parallel.layout),
                  describe_mask(scenario.attention), scenario.parallel.cp_size,
                  row.outcome.plan->plan().layout.slots.tokens, to_name(row.outcome.status));
  if (!row.outcome.grade.tensors.empty()) {
    line +=
        fmt::format(" {:>9.2e} {:>7.2f} {:>7.2f}", worst_rel_l2(row.outcome.grade),
                    worst_share_of_budget(row.outcome.grade),
                    row.outcome.plan_seconds + row.outcome.run_seconds + row.outcome.judge_seconds);
  }
  if (!row.outcome.reason.empty()) line += "  " + first_line(row.outcome.reason);
  return line;
}

int exit_code_of(const std::vector<VerifyRow>& rows) {
  const auto count = [&](CaseStatus status) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const VerifyRow& row) { return row.outcome.status == status; });
  };
  if (count(CaseStatus::error) > 0) return 2;
  if (count(CaseStatus::fail) > 0) return 1;
  return count(CaseStatus::pass) > 0 ? 0 : 3;
}

}  // namespace cpscope
