#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"
#include "sim/plan/planner/planner_rounds.h"

#include <optional>

namespace cpscope {

/// Refuses head counts and group sizes that the communication type does not allow, with an error
/// that names them; nothing when the scenario is possible.
std::optional<Error> refuse_by_rule(const Scenario& scenario);

/// Turns a scenario into the complete schedule of every rank, forward and backward. Nothing is
/// executed. An impossible scenario (mathematics, head counts, memory) is refused with an error
/// that names the reason.
Result<Plan> make_plan(const Scenario& scenario);

/// The same with a schedule of the caller's. Its communication type is custom, unless it is the
/// plan of the scenario's own communication type, item for item.
Result<Plan> make_custom_plan(const Scenario& scenario, const FillPlan& fill);

}  // namespace cpscope
