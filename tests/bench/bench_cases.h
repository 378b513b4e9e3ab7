#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <string>

namespace cpscope::bench {

/// Shape of a planning problem. One document is one sequence of `tokens`.
struct PlanSize {
  int64_t tokens = 131'072;
  int64_t documents = 1;
  int32_t ranks = 64;
  LayoutKind layout = LayoutKind::dual_chunk;
  CommType comm_type = CommType::p2p;
  std::string generator = "";  // of the lengths, seed 1; none: `documents` uneven ones
};

/// A causal bf16 scenario with 8 heads of 128 lanes; documents that sum to the tokens, the same on
/// every machine.
Scenario planning_scenario(const PlanSize& size);

/// One causal sequence for the executors: 8 heads of 128 lanes, 8 ranks, p2p, dual_chunk.
Scenario walking_scenario(int64_t tokens, bool backward, Dtype dtype);

/// A proved plan with its inputs. Aborts when the scenario is refused: benchmarks only ask what is
/// possible.
struct ReadyRun {
  CheckedPlan plan;
  RunInputs inputs;
};
ReadyRun prepare_run(const Scenario& scenario);

}  // namespace cpscope::bench
