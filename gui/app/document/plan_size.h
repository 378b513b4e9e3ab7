#pragma once

#include "sim/base/result.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <optional>

namespace cpscope::gui {

/// Estimates, before anything is planned, the bytes that a plan takes while the window plans,
/// proves, indexes and shows it: from the pairs of ranks that exchange data and the pieces into
/// which sequences are cut. An upper estimate: at most sixty times the plan's arrays
/// (tests/gui/app/document_test.cpp), which are an eighth of what the window takes for a ring.
int64_t estimate_plan_bytes(const Scenario& scenario);

/// Half of this machine's memory: the shown plan stays in memory while the next one is made.
int64_t plan_bytes_limit();

/// Why a scenario is too large to be planned in the window, with a remedy; nothing when it is not.
std::optional<Error> refuse_large_plan(const Scenario& scenario, int64_t limit);

}  // namespace cpscope::gui
