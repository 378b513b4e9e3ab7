#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace cpscope::gui {

/// An 8-bit sRGB colour; a = 0 paints nothing.
struct Color {
  uint8_t r = 0, g = 0, b = 0, a = 255;

  constexpr Color with_alpha(uint8_t alpha) const { return {r, g, b, alpha}; }
  friend constexpr bool operator==(const Color&, const Color&) = default;
};

/// A position on the canvas in logical pixels, y downwards.
struct Point {
  float x = 0, y = 0;

  friend constexpr bool operator==(const Point&, const Point&) = default;
};

struct Size {
  float width = 0, height = 0;

  friend constexpr bool operator==(const Size&, const Size&) = default;
};

/// [x0, x1) x [y0, y1) in logical pixels.
struct Box {
  float x0 = 0, y0 = 0, x1 = 0, y1 = 0;

  constexpr float width() const { return x1 - x0; }
  constexpr float height() const { return y1 - y0; }
  constexpr Point center() const { return {(x0 + x1) / 2, (y0 + y1) / 2}; }
  constexpr bool contains(Point p) const { return p.x >= x0 && p.x < x1 && p.y >= y0 && p.y < y1; }
  constexpr Box inset(float by) const { return {x0 + by, y0 + by, x1 - by, y1 - by}; }
  friend constexpr bool operator==(const Box&, const Box&) = default;
};

/// Clamps the value to [low, high]; gives `low` where high < low, as in a box of one pixel
/// (std::clamp does not allow that).
constexpr float keep_between(float value, float low, float high) {
  return value < low || high < low ? low : (high < value ? high : value);
}

/// A second channel next to colour, for readers with colour vision deficiency and for print.
enum class Hatch : uint8_t { none, diagonal, cross, dots };

/// Body text is proportional; figures and ids have a fixed width.
enum class Face : uint8_t { body, mono, strong };

/// The point of a label's text that is placed at `at`.
enum class Anchor : uint8_t {
  left_top,
  center_top,
  right_top,
  left_middle,
  center_middle,
  right_middle,
  left_bottom,
  center_bottom,
  right_bottom
};

struct FilledBox {
  Box box;
  Color color;
  Hatch hatch = Hatch::none;
  Color hatch_color{};
  float rounding = 0;
};

struct OutlinedBox {
  Box box;
  Color color;
  float width = 1;  // grows inwards
  bool is_dashed = false;
  float rounding = 0;
  std::string title = {};  // what the box shows; in SVG a tooltip, read by screen readers
};

struct Line {
  Point from, to;
  Color color;
  float width = 1;
  bool is_dashed = false;
  bool has_arrow = false;  // the arrow head is at `to`
};

/// A filled convex polygon with at least three points.
struct Polygon {
  std::vector<Point> points;
  Color color;
};

/// A curved band from [x0, x1) at height `top` to [x0, x1) at height `bottom`; it shows where
/// tokens go.
struct Ribbon {
  float top_x0 = 0, top_x1 = 0, top = 0;
  float bottom_x0 = 0, bottom_x1 = 0, bottom = 0;
  Color color;
};

struct Label {
  Point at;
  Anchor anchor = Anchor::left_top;
  Color color;
  float size = 13;  // line height in logical pixels
  Face face = Face::body;
  std::string text;  // ASCII
};

/// A picture of width x height cells stretched over the box, each cell a rectangle with sharp
/// edges.
struct Pixels {
  Box box;
  int32_t width = 0, height = 0;
  std::vector<Color> colors;  // [row][column]
};

/// Clips everything until the matching PopClip to the box (and to the boxes of enclosing clips).
struct PushClip {
  Box box;
};
struct PopClip {};

using Mark =
    std::variant<FilledBox, OutlinedBox, Line, Polygon, Ribbon, Label, Pixels, PushClip, PopClip>;

/// A picture as a list of marks in paint order. Independent of window, font files and pixel format;
/// painted with Dear ImGui (gui/panel/paint.h) or written as SVG (gui/draw/svg_file.h).
struct Drawing {
  std::vector<Mark> marks;

  template <class M>
  void add(M mark) {
    marks.emplace_back(std::move(mark));
  }
};

/// Prints one line a mark, coordinates to a tenth of a pixel: golden tests compare this text first.
std::string print_drawing(const Drawing& drawing);

}  // namespace cpscope::gui
