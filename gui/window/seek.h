#pragma once

#include "gui/app/app_state.h"
#include "sim/base/result.h"

#include <cstdint>
#include <optional>

namespace cpscope::gui {

/// Puts the playhead on a step that a command line names: forward steps first, then backward ones.
/// The error names the range. The state has a plan.
std::optional<Error> seek_named_step(AppState& state, int64_t step);

}  // namespace cpscope::gui
