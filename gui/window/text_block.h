#pragma once

#include "gui/app/caption.h"
#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"
#include "gui/model/view.h"

#include <string>

namespace cpscope::gui {

/// A paragraph that is broken into lines where it meets the end of its room.
struct TextBlock {
  Point at;                // top left
  float width = 0;         // room of a line
  float size = 13;         // of a letter
  float leading = 19;      // from line to line
  int32_t most_lines = 3;  // what does not fit ends in ".."
  Color color;             // of words
  Color link_color;        // of words with a target
};

/// Adds the paragraph and gives the number of its lines.
int32_t add_text_block(Drawing& drawing, const TextBlock& block, const Spans& spans,
                       const TextWidth& text_width);

}  // namespace cpscope::gui
