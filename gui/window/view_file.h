#pragma once

#include "gui/app/app_state.h"
#include "gui/window/picture.h"
#include "sim/base/result.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace cpscope::gui {

/// The text at the foot of a picture: file, plan, version. The state must have a plan.
std::string imprint_of(const AppState& state);

/// The content of a picture of the state's focused view: the page of ways while that is open. The
/// state must have a plan. `caption_lines`: as PictureSource's.
struct ViewPicture {
  Size size;
  std::function<Picture(const TextWidth&)> compose;
};
/// Errors: the page of ways has no comparison yet.
Result<ViewPicture> picture_of_view(const AppState& state, int32_t caption_lines = 0);

/// Writes the focused view as `cpscope render` draws it, as SVG. Returns the number of bytes, or an
/// error. The state must have a plan.
Result<size_t> write_view_svg(const AppState& state, const std::string& path);

}  // namespace cpscope::gui
