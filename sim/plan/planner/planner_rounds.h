#pragma once

#include "sim/plan/planner/plan_builder.h"

#include <functional>
#include <optional>

namespace cpscope {

/// Writes both passes of a plan whose layout and home buffers are there.
using FillPlan = std::function<std::optional<Error>(PlanBuilder&)>;

/// Plans the rounds of cp_sizes: every group as a plan of its own, which `fill` makes, on buffers
/// that hold the group's rows (BufferRole::round). Groups of a round share its steps, rounds follow
/// one another.
std::optional<Error> plan_rounds(PlanBuilder& builder, const FillPlan& fill);

/// Refuses schedules that are not planned in rounds, with the reason.
std::optional<Error> refuse_round_schedule(const Scenario& scenario);

/// The scenario of one group: all sequences, on the ranks of the group.
Scenario group_scenario(const Scenario& scenario, int32_t ranks);

}  // namespace cpscope
