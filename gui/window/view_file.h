#pragma once

#include "gui/app/app_state.h"
#include "sim/base/result.h"

#include <cstddef>
#include <string>

namespace cpscope::gui {

/// What stands at the foot of a picture: file, plan, version. The state has a plan.
std::string imprint_of(const AppState& state);

/// The focused view as `cpscope render` draws it, as SVG: bytes that were written, or why not. The
/// state has a plan.
Result<size_t> write_view_svg(const AppState& state, const std::string& path);

}  // namespace cpscope::gui
