#pragma once

#include "gui/draw/drawing.h"

#include <string_view>

namespace cpscope::gui {

/// How wide a line of text will be, from a table of the advances of Inter and JetBrains Mono,
/// without a font file and without kerning. For SVG, whose letters are drawn by whoever shows it:
/// so the picture is the same on every machine and in builds without Dear ImGui.
float estimate_width(std::string_view text, float size, Face face);

}  // namespace cpscope::gui
