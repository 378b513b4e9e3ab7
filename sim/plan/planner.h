#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"

#include <optional>

namespace cpscope {

/// What head counts and group sizes forbid for the communication type, by name; nothing when the
/// scenario is possible.
std::optional<Error> refuse_by_rule(const Scenario& scenario);

/// Turns a scenario into the complete work order of every rank, forward and backward. Nothing is
/// executed. Refuses by name what mathematics, head counts or memory forbid.
Result<Plan> make_plan(const Scenario& scenario);

}  // namespace cpscope
