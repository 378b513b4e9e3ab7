#pragma once

#include "gui/draw/drawing.h"

namespace cpscope::gui {

/// Adds the marks of `part`, moved so that its (0, 0) is at `at`, clipped to `size` from there.
void place_drawing(Drawing& page, Drawing part, Point at, Size size);

}  // namespace cpscope::gui
