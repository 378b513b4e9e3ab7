#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>

namespace cpscope::gui {

/// Bytes that a plan will take while the window plans, proves, indexes and shows it, known before
/// anything is planned: every pair of ranks that meets, and what their sequences cut. Rather too
/// much than too little: at most sixty times the plan's arrays (tests/gui/app/document_test.cpp),
/// which are an eighth of what the window takes of a ring.
int64_t estimate_plan_bytes(const Scenario& scenario);

/// Half of this machine's memory: the plan that is shown stays while the next one is made.
int64_t plan_bytes_limit();

/// Why a scenario is not planned in the window, and what to do; nothing when it is.
std::optional<Error> refuse_large_plan(const Scenario& scenario, int64_t limit);

}  // namespace cpscope::gui
