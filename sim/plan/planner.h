#pragma once

#include "sim/base/result.h"
#include "sim/plan/plan.h"

namespace cpscope {

/// Turns a scenario into the complete work order of every rank, forward and backward. Nothing is
/// executed. Refuses by name what mathematics, head counts or memory forbid.
Result<Plan> make_plan(const Scenario& scenario);

}  // namespace cpscope
