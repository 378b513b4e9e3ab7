#pragma once

#include "sim/findings/findings.h"
#include "sim/run/toolbox.h"

namespace cpscope {

/// Looks into a failure: runs the scenario again with the results of all items kept, beside a
/// clean walk of the same plan in the same dtype, and fills `first`, `worst_rows`, `seen` and
/// `exact` of the findings, or says in `not_located` why there is no first place. Nothing for a
/// case that did not fail in its grade. `options` are those that the case was run with.
void study_failure(Toolbox& toolbox, const LoadedScenario& loaded, const CaseOptions& options,
                   CaseFindings& findings);

/// Failures of one command that are looked into; each takes two more runs.
inline constexpr int kMostStudied = 20;

/// Asks the probes too, as far as that takes seconds; else a sentence says that nobody asked.
void add_probes(Toolbox& toolbox, const LoadedScenario& loaded, CaseFindings& findings);

/// The rows that are furthest off, by what they may err, furthest first. Needs the row budgets of
/// the grade.
std::vector<WrongRow> list_worst_rows(const Plan& plan, const Answer& seen, const Answer& exact,
                                      const Grade& grade);

/// Most rows that it lists.
inline constexpr size_t kMostWorstRows = 12;

}  // namespace cpscope
