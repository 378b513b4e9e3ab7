#pragma once

#include "sim/faults/fault.h"
#include "sim/faults/faulty_executor.h"
#include "sim/plan/plan_check.h"
#include "sim/run/toolbox.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// One detector that went off, and the place that it names by itself; -1 where it names none.
struct Alarm {
  Detector detector{};
  int32_t rank = -1;
  int32_t step = -1;
  int64_t token = -1;
  int32_t head = -1;
  std::optional<FaultSite> site = std::nullopt;  // detectors that watch items know the item
  std::string text = {};                         // one sentence
};

/// What all detectors together need to know of a scenario: the proved plan and the oracle's words.
struct Referee {
  Scenario scenario;
  CheckedPlan plan;  // of the scenario as it is
  RunInputs inputs, poisoned;
  Verdict verdict;
  MaskWitness witness;
};

/// Plans, proves and judges a scenario once. Errors: whatever refuses it.
Result<Referee> make_referee(const Scenario& scenario, const Toolbox& toolbox);

/// Everything that one executor made the detectors see.
struct Examination {
  std::vector<Alarm> alarms;            // at most one a detector, in the order of Detector
  WalkTrace trace;                      // of the run with the scenario's own inputs
  std::optional<PlantedFault> planted;  // in that run
  std::optional<CheckedPlan> carried_out;
  std::vector<double> d_sink;  // of that run: the one answer that no buffer holds
  int64_t changed_posts = 0;   // messages posted otherwise than the proved plan says
};

/// Runs every detector against the executor, which only ever sees proved plans. Errors: a run that
/// did not come to an end.
Result<Examination> examine(const Referee& referee, FaultyExecutor& executor, bool poison);

}  // namespace cpscope
