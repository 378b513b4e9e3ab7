#pragma once

#include "gui/draw/drawing.h"
#include "gui/panel/fonts.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/paint.h"

#include <cstdint>

namespace cpscope::gui {

inline ImU32 pack_color(Color color) { return IM_COL32(color.r, color.g, color.b, color.a); }

/// Converts logical coordinates to screen pixels and knows the visible area; used to paint all
/// marks.
class Brush {
 public:
  explicit Brush(const PaintPlace& place);

  ImDrawList& list() const { return *place_.list; }
  const PaintPlace& place() const { return place_; }
  float scale() const { return scale_; }

  /// Screen pixels of a point, with fractions.
  ImVec2 at(Point point) const {
    return {place_.origin.x + point.x * scale_, place_.origin.y + point.y * scale_};
  }
  /// The box rounded to whole pixels, at least one wide and high. Empty or NaN boxes stay empty.
  Box on_pixels(const Box& box) const;
  /// A width in whole pixels, at least one.
  float pixels_of(float width) const;
  /// The part of the screen that can be painted now.
  Box visible() const;
  bool is_visible(const Box& pixels) const;

  /// Fills pixels, clipped to the visible part.
  void fill(const Box& pixels, Color color) const;
  /// Draws a hatch over pixels, aligned with all other hatches of the drawing.
  void hatch(const Box& pixels, Hatch hatch, Color color) const;

 private:
  void hatch_tiles(const Box& pixels, const HatchTile& tile, ImU32 color) const;
  void hatch_lines(const Box& pixels, Hatch hatch, ImU32 color) const;

  PaintPlace place_;
  float scale_ = 1;
};

void paint_box(const Brush& brush, const FilledBox& mark);
void paint_outline(const Brush& brush, const OutlinedBox& mark);
void paint_line(const Brush& brush, const Line& mark);
void paint_polygon(const Brush& brush, const Polygon& mark);
void paint_ribbon(const Brush& brush, const Ribbon& mark);
void paint_label(const Brush& brush, const Label& mark);
void paint_pixels(const Brush& brush, const Pixels& mark);

}  // namespace cpscope::gui
