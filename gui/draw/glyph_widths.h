#pragma once

#include "gui/draw/drawing.h"

#include <string_view>

namespace cpscope::gui {

/// Estimates the width of a line of text from a table of the advance widths of Inter and JetBrains
/// Mono, without a font file and without kerning. Used for SVG, whose text is drawn by its viewer:
/// so the file is the same on every machine and in builds without Dear ImGui.
float estimate_width(std::string_view text, float size, Face face);

}  // namespace cpscope::gui
