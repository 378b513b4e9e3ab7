#pragma once

#include "gui/app/app_state.h"
#include "gui/window/picture.h"
#include "sim/base/result.h"

#include <cstddef>
#include <functional>
#include <string>

namespace cpscope::gui {

/// What stands at the foot of a picture: file, plan, version. The state has a plan.
std::string imprint_of(const AppState& state);

/// What a picture of the state's focused view shows: the page of ways while it is open. The state
/// has a plan.
struct ViewPicture {
  Size size;
  std::function<Picture(const TextWidth&)> compose;
};
/// Errors: the page of ways has no comparison yet.
Result<ViewPicture> picture_of_view(const AppState& state);

/// The focused view as `cpscope render` draws it, as SVG: bytes that were written, or why not. The
/// state has a plan.
Result<size_t> write_view_svg(const AppState& state, const std::string& path);

}  // namespace cpscope::gui
