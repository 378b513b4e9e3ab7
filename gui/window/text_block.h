#pragma once

#include "gui/app/caption/caption.h"
#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"
#include "gui/model/view.h"

#include <string>

namespace cpscope::gui {

/// A paragraph, wrapped at `width`.
struct TextBlock {
  Point at;                // top left
  float width = 0;         // width of a line
  float size = 13;         // size of the letters
  float leading = 19;      // distance from line to line
  int32_t most_lines = 3;  // text that does not fit is cut off with ".."
  Color color;             // colour of plain words
  Color link_color;        // colour of words with a target
};

/// Adds the paragraph and returns the number of its lines.
int32_t add_text_block(Drawing& drawing, const TextBlock& block, const Spans& spans,
                       const TextWidth& text_width);

}  // namespace cpscope::gui
