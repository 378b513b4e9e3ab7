#pragma once

#include "gui/draw/drawing.h"

struct ImDrawList;

namespace cpscope::gui {

struct Fonts;
class Textures;

/// The destination of a drawing.
struct PaintPlace {
  ImDrawList* list = nullptr;
  const Fonts* fonts = nullptr;  // fonts of the atlas in use; their scale is the drawing's scale
  Textures* textures = nullptr;  // null: cells are painted as boxes
  Point origin;                  // screen position of the drawing's (0, 0)
};

/// Paints the marks in order. Boxes and axis-parallel lines are on whole screen pixels, so that
/// they are sharp and neighbours meet; every mark that is not empty is at least one pixel wide.
/// Marks outside of the clip of `place.list` cost almost nothing.
void paint(const Drawing& drawing, const PaintPlace& place);

}  // namespace cpscope::gui
