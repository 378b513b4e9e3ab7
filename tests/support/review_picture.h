#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/image.h"
#include "gui/draw/theme.h"

#include <string>

namespace cpscope::tests {

/// If CPSCOPE_REVIEW is set, writes out/review/<name>.<theme>.png below the source folder, for
/// visual review. Otherwise does nothing.
void save_png_for_review(const std::string& name, const gui::Drawing& drawing, gui::Size size,
                         gui::ThemeName theme = gui::ThemeName::dark, float scale = 1);
void save_png_for_review(const std::string& name, const gui::Image& image);

}  // namespace cpscope::tests
