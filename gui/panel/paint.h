#pragma once

#include "gui/draw/drawing.h"

struct ImDrawList;

namespace cpscope::gui {

struct Fonts;
class Textures;

/// Where a drawing is painted.
struct PaintPlace {
  ImDrawList* list = nullptr;
  const Fonts* fonts = nullptr;  // of the atlas in use; their scale is the drawing's scale
  Textures* textures = nullptr;  // null: cells are painted as boxes
  Point origin;                  // screen pixels of the drawing's (0, 0)
};

/// Paints the marks in their order. Boxes and upright lines lie on whole screen pixels, so that
/// they are sharp and neighbours meet; whatever is not empty is at least one pixel wide. What lies
/// outside of the clip of `place.list` costs almost nothing.
void paint(const Drawing& drawing, const PaintPlace& place);

}  // namespace cpscope::gui
