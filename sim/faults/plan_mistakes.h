#pragma once

#include "sim/run/plan_mistake.h"

namespace cpscope {

/// The faults of the catalogue that are mistakes of plans or inputs and have a cause, each in all
/// its places, those that can be in one place first.
void visit_plan_mistakes(const Plan& healthy, const std::function<bool(PlanMistake)>& take);

/// True if a run of `faulty` with the inputs of `healthy` reads and writes rows that are there: the
/// batch has as many tokens, and every item stays inside its buffers.
bool stays_in_buffers(const Plan& healthy, const Plan& faulty);

}  // namespace cpscope
