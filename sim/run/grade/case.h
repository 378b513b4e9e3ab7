#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/run/grade/grade.h"
#include "sim/run/grade/work_estimate.h"
#include "sim/run/record/run_record.h"
#include "sim/run/toolbox.h"
#include "sim/scenario/scenario_file.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

enum class CaseStatus { pass, fail, refused, skipped, error };
std::string_view to_name(CaseStatus value);

/// Reports the progress of a case: phase (run, then judge) and done of total work. Never called
/// from two threads at once.
using CaseProgress = std::function<void(std::string_view phase, int64_t done, int64_t total)>;

struct CaseOptions {
  std::string executor = {};  // empty = the toolbox's first
  bool poison = false;
  double max_flops =
      0.0;  // skip runs with more arithmetic (executor and oracle) than this; 0 = no limit
  int64_t sample_rows = 0;  // judge only about this many query rows; 0 = the whole batch
  std::vector<WidenedBudget> budgets = {};  // wider budgets that the caller allows
  bool measures_items = false;              // for a record: when each item ran
  bool keeps_items = false;                 // for a record: the results of each item
  bool keeps_exact = false;                 // the exact answer, and the error budget of every row
  // Called once the case is known to be run, before it is; may be empty.
  std::function<void(const WorkEstimate&)> estimated = {};
  CaseProgress progress = {};               // may be empty
  std::function<bool()> is_cancelled = {};  // as in RunControl; a cancelled case is skipped
};

/// The result of one scenario in all stages: planned, proved, executed, judged, graded.
struct CaseOutcome {
  CaseStatus status = CaseStatus::error;
  std::string reason;          // why it is not a pass; empty for a pass
  std::optional<Error> error;  // the same as an Error, if the case was not graded
  int exit_code = 0;
  std::string executor;
  std::optional<CheckedPlan> plan;
  PlanSummary summary;
  RunInputs inputs;
  RunOutput output;
  std::vector<Tensor> items;  // in plan order; empty unless requested
  Grade grade;
  Answer exact;       // the oracle's; empty unless requested; only the judged rows of a sample
  JudgedRows judged;  // empty lists when the whole batch was judged
  double plan_seconds = 0.0, run_seconds = 0.0, judge_seconds = 0.0;
};

/// Plans and proves. Errors: refused, bad input or (a proof failed) failed.
Result<CheckedPlan> plan_scenario(const Scenario& scenario);
/// The same for a loaded file: a refusal names the place in the file, and the plan of a plan
/// document is that which it holds.
Result<CheckedPlan> plan_scenario(const LoadedScenario& loaded);
/// The steps of a plan in other number formats, with other rotary positions, or forward only: all
/// else in `scenario` must be as in the plan. The plan is called custom, because wires may differ
/// from those of its schedule.
Result<CheckedPlan> vary_plan(const Plan& plan, const Scenario& scenario);
/// What plans a variant of the scenario of a loaded file: vary_plan for a plan document.
using PlanVariant = std::function<Result<CheckedPlan>(const Scenario&)>;
PlanVariant variants_of(const LoadedScenario& loaded);

/// The executor of that name, or why it is unavailable here (kind unavailable; bad_input for an
/// unknown name).
Result<Executor*> find_executor(Toolbox& toolbox, const std::string& name);

/// Why a probe cannot be run here; nothing when it can.
std::optional<Error> probe_obstacle(const CheckedPlan& plan, const Executor& executor);

/// Why a record cannot be judged here; nothing when it can.
std::optional<Error> grade_obstacle(const CheckedPlan& plan);

CaseOutcome run_case(Toolbox& toolbox, const Scenario& scenario, const CaseOptions& options);
/// The same for a plan that is there.
CaseOutcome run_case(Toolbox& toolbox, const CheckedPlan& plan, const CaseOptions& options);
/// Runs the case of a scenario file; a refusal names the place in the file.
CaseOutcome run_case(Toolbox& toolbox, const LoadedScenario& loaded, const CaseOptions& options);

/// The record of a finished case (contract, section 4). Moves the items out of the outcome, because
/// they may fill half of the memory.
RunRecord make_record(CaseOutcome& outcome, const std::string& scenario_text);

/// Estimated arithmetic of a run and its grading.
double estimate_flops(const Scenario& scenario, const PlanSummary& summary);

}  // namespace cpscope
