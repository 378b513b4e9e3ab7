#pragma once

#include "sim/plan/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/run/grade.h"
#include "sim/run/run_record.h"
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

/// Told how far a case is: phase (run, then judge), done of total units of it. Never from two
/// threads at once.
using CaseProgress = std::function<void(std::string_view phase, int64_t done, int64_t total)>;

struct CaseOptions {
  std::string executor = {};  // empty = the toolbox's first
  bool poison = false;
  double max_flops =
      0.0;  // skip runs whose arithmetic (executor and judge) passes this; 0 = no limit
  int64_t sample_rows = 0;  // judge only about so many query rows; 0 = the whole batch
  std::vector<WidenedBudget> budgets = {};  // of tensors that may err more than they have earned
  bool measures_items = false;              // for a record: when each item was carried out
  bool keeps_items = false;                 // for a record: what each item has written
  bool keeps_exact = false;                 // what the judge expects, and what every row may err
  CaseProgress progress = {};               // may be empty
  std::function<bool()> is_cancelled = {};  // as in RunControl; a cancelled case is skipped
};

/// One scenario taken through the whole walk: planned, proved, executed, judged, graded.
struct CaseOutcome {
  CaseStatus status = CaseStatus::error;
  std::string reason;          // why it is not a pass; empty for a pass
  std::optional<Error> error;  // the same as it came, if the case was not graded
  int exit_code = 0;
  std::string executor;
  std::optional<CheckedPlan> plan;
  PlanSummary summary;
  RunInputs inputs;
  RunOutput output;
  std::vector<Tensor> items;  // in plan order; empty unless asked for
  Grade grade;
  Answer exact;  // the judge's; empty unless asked for; of the judged rows alone when they are few
  JudgedRows judged;  // empty lists when the whole batch was judged
  double plan_seconds = 0.0, run_seconds = 0.0, judge_seconds = 0.0;
};

/// Plans and proves. Errors come back as refused, bad input or (a proof failed) failed.
Result<CheckedPlan> plan_scenario(const Scenario& scenario);
/// The same for a scenario of a file: what is refused says where.
Result<CheckedPlan> plan_scenario(const LoadedScenario& loaded);

/// The executor of that name, or why it is not here (kind unavailable; bad_input for a name that
/// nobody knows).
Result<Executor*> find_executor(Toolbox& toolbox, const std::string& name);

/// Why a probe cannot be run here; nothing when it can.
std::optional<Error> probe_obstacle(const CheckedPlan& plan, const Executor& executor);

/// Why a record cannot be judged here; nothing when it can.
std::optional<Error> grade_obstacle(const CheckedPlan& plan);

CaseOutcome run_case(Toolbox& toolbox, const Scenario& scenario, const CaseOptions& options);
/// The same for a scenario of a file: what is refused says where.
CaseOutcome run_case(Toolbox& toolbox, const LoadedScenario& loaded, const CaseOptions& options);

/// The record of a finished case (contract, section 4). Takes the items out of the outcome, which
/// may fill half of the machine.
RunRecord make_record(CaseOutcome& outcome, const std::string& scenario_text);

/// Arithmetic that a run and its judgement take, about.
double estimate_flops(const Scenario& scenario, const PlanSummary& summary);

}  // namespace cpscope
