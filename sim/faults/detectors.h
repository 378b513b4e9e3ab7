#pragma once

#include "sim/faults/fault.h"
#include "sim/faults/faulty_executor.h"
#include "sim/plan/check/plan_check.h"
#include "sim/run/grade/grade.h"
#include "sim/run/toolbox.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One detector that raised an alarm, and the place that it names; -1 if unknown.
struct Alarm {
  Detector detector{};
  int32_t rank = -1;
  int32_t step = -1;
  int64_t token = -1;
  int32_t head = -1;
  std::optional<FaultSite> site = std::nullopt;  // known to detectors that watch items
  std::string text = {};                         // one sentence
};

/// Reference data of a scenario for all detectors: the proved plan and the oracle's answers.
struct Referee {
  Scenario scenario;
  CheckedPlan plan;  // of the scenario as it is
  RunInputs inputs, poisoned;
  Verdict verdict;
  MaskWitness witness;
};

/// Plans, proves and judges a scenario once. Errors: any refusal.
Result<Referee> make_referee(const Scenario& scenario, const Toolbox& toolbox);

/// Results of all detectors for one executor.
struct Examination {
  std::vector<Alarm> alarms;            // at most one per detector, in the order of Detector
  WalkTrace trace;                      // of the run with the scenario's own inputs
  std::optional<PlantedFault> planted;  // in that run
  std::optional<CheckedPlan> carried_out;
  Answer answer;              // of that run
  Grade grade;                // of the answer, with the budgets of its rows
  int64_t changed_posts = 0;  // messages that differ from the proved plan's
};

/// Runs every detector against the executor, which gets only proved plans. Errors: a run that did
/// not finish.
Result<Examination> examine(const Referee& referee, FaultyExecutor& executor, bool poison);

/// The known mistakes that explain the answer, found from the answer alone as in `cpscope grade`;
/// none if it passes. Errors: cancelled.
Result<std::vector<Cause>> name_causes(const Referee& referee, const Toolbox& toolbox,
                                       const Examination& examination, bool poison);

}  // namespace cpscope
