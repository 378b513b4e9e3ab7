#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"

#include <optional>

namespace cpscope {

/// Refuses head counts and group sizes that the communication type does not allow, with an error
/// that names them; nothing when the scenario is possible.
std::optional<Error> refuse_by_rule(const Scenario& scenario);

/// Turns a scenario into the complete schedule of every rank, forward and backward. Nothing is
/// executed. An impossible scenario (mathematics, head counts, memory) is refused with an error
/// that names the reason.
Result<Plan> make_plan(const Scenario& scenario);

}  // namespace cpscope
