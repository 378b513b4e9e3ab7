#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"

namespace cpscope::tests {

/// All kinds of marks with their names, and the colours of all roles: a picture that shows changes
/// of the painter.
gui::Drawing draw_mark_gallery(const gui::Theme& theme);
inline constexpr gui::Size kMarkGallerySize{760, 560};

}  // namespace cpscope::tests
