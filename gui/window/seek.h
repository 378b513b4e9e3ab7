#pragma once

#include "gui/app/app_state.h"
#include "sim/base/result.h"

#include <cstdint>
#include <optional>

namespace cpscope::gui {

/// Moves the playhead to a step number of the command line: forward steps first, then backward
/// ones. The error names the valid range. The state must have a plan.
std::optional<Error> seek_named_step(AppState& state, int64_t step);

/// The step of a picture without a given one: the second forward step has finished, current and
/// later work; a plan of one step has only that one.
int32_t first_shown_step(const PlanIndex& plan);

}  // namespace cpscope::gui
