#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"

namespace cpscope::tests {

/// Every mark there is, each under its name, and the colours of every role: what a change of the
/// painter shows itself on.
gui::Drawing draw_mark_gallery(const gui::Theme& theme);
inline constexpr gui::Size kMarkGallerySize{760, 560};

}  // namespace cpscope::tests
