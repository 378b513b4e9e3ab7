#pragma once

#include "sim/findings/findings.h"
#include "sim/run/grade/case.h"

#include <string>
#include <vector>

namespace cpscope {

/// One line of a verification.
struct VerifyRow {
  std::string path;
  LoadedScenario loaded;
  CaseOutcome outcome;
};

/// Scenario files under the paths, sorted; folders `bad` and `clusters` only when a path names
/// them.
Result<std::vector<std::string>> find_scenarios(const std::vector<std::string>& paths);

VerifyRow verify_file(Toolbox& toolbox, const std::string& path, const CaseOptions& options);

/// What is known of a row that was made with these options.
CaseFindings to_findings(const VerifyRow& row, const CaseOptions& options);

std::string table_header();
std::string table_line(const VerifyRow& row);

/// 1 when a row failed, 2 when a row is an error, 3 when none passed, else 0.
int exit_code_of(const std::vector<VerifyRow>& rows);

}  // namespace cpscope
