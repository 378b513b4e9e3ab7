#pragma once

#include "sim/clock/calibration.h"
#include "sim/clock/pass_clock.h"
#include "sim/plan/check/plan_check.h"
#include "sim/run/executor.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// A scenario that an executor with a clock has carried out; its answer is thrown away.
struct Run {
  std::shared_ptr<const CheckedPlan> checked;
  RunOutput output;

  const Plan& plan() const { return checked->plan(); }
  const std::string& label() const { return plan().scenario.title; }
};

/// Errors: unavailable (no clock), and what planner and executor say.
Result<Run> carry_out(Executor& executor, const Scenario& scenario, int32_t repeats);

double duration_us(const ItemEvent& event);

/// Did no other item run on the same GPU meanwhile?
bool is_alone(const ItemEvent& event, const RunOutput& output, bool is_one_gpu);

/// Bytes that a merge, reorder or finish item reads and writes; nothing for what is no copy.
std::optional<double> local_bytes(const Plan& plan, const ItemEvent& event, const Stack& stack);

/// What each rank sent in each stage of the forward.
void add_wires(const Run& run, std::vector<WireSample>& samples);

/// When a rank of the forward sent, or copied what had arrived to its place, which takes time only
/// if `packing` gives the cost of it; in order, disjoint.
std::vector<BusyTime> transfers_of(const Run& run, RankId rank,
                                   const std::optional<RowCost>& packing);

}  // namespace cpscope
