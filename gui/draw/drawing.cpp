#include "gui/draw/drawing.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <fmt/format.h>

namespace cpscope::gui {

namespace {

constexpr std::array<std::string_view, 4> kHatchNames = {"none", "diagonal", "cross", "dots"};
constexpr std::array<std::string_view, 3> kFaceNames = {"body", "mono", "strong"};
constexpr std::array<std::string_view, 9> kAnchorNames = {
    "left_top",     "center_top",  "right_top",     "left_middle", "center_middle",
    "right_middle", "left_bottom", "center_bottom", "right_bottom"};

/// Prints a value to a tenth of a pixel, never "-0.0".
std::string print_tenths(float value) {
  std::string text = fmt::format("{:.1f}", value);
  return text == "-0.0" ? "0.0" : text;
}

std::string place(Point point) { return print_tenths(point.x) + "," + print_tenths(point.y); }

std::string place(const Box& box) {
  return print_tenths(box.x0) + "," + print_tenths(box.y0) + " " + print_tenths(box.x1) + "," +
         print_tenths(box.y1);
}

std::string color(Color c) {
  const std::string opaque = fmt::format("#{:02X}{:02X}{:02X}", c.r, c.g, c.b);
  return c.a == 255 ? opaque : opaque + fmt::format("{:02X}", c.a);
}

std::string quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    if (letter == '\n') {
      quoted += "\\n";
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

/// FNV-1a hash of the colours: printing all cells of a picture would be too long.
uint64_t hash_of(const Pixels& pixels) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const Color c : pixels.colors) {
    for (const uint8_t byte : {c.r, c.g, c.b, c.a}) hash = (hash ^ byte) * 0x100000001B3;
  }
  return hash;
}

struct PrintMark {
  std::string operator()(const FilledBox& m) const {
    std::string text = "box " + place(m.box) + " " + color(m.color);
    if (m.hatch != Hatch::none) {
      text +=
          fmt::format(" {} {}", kHatchNames[static_cast<size_t>(m.hatch)], color(m.hatch_color));
    }
    return m.rounding > 0 ? text + " round " + print_tenths(m.rounding) : text;
  }
  std::string operator()(const OutlinedBox& m) const {
    std::string text =
        "outline " + place(m.box) + " " + color(m.color) + " width " + print_tenths(m.width);
    if (m.is_dashed) text += " dashed";
    return m.rounding > 0 ? text + " round " + print_tenths(m.rounding) : text;
  }
  std::string operator()(const Line& m) const {
    return "line " + place(m.from) + " " + place(m.to) + " " + color(m.color) + " width " +
           print_tenths(m.width) + (m.is_dashed ? " dashed" : "") + (m.has_arrow ? " arrow" : "");
  }
  std::string operator()(const Polygon& m) const {
    std::string text = "polygon";
    for (const Point point : m.points) text += " " + place(point);
    return text + " " + color(m.color);
  }
  std::string operator()(const Ribbon& m) const {
    return "ribbon " + print_tenths(m.top_x0) + ".." + print_tenths(m.top_x1) + " at " +
           print_tenths(m.top) + " to " + print_tenths(m.bottom_x0) + ".." +
           print_tenths(m.bottom_x1) + " at " + print_tenths(m.bottom) + " " + color(m.color);
  }
  std::string operator()(const Label& m) const {
    return fmt::format("label {} {} {} {} {} {}", place(m.at),
                       kAnchorNames[static_cast<size_t>(m.anchor)], color(m.color),
                       kFaceNames[static_cast<size_t>(m.face)], print_tenths(m.size),
                       quote(m.text));
  }
  std::string operator()(const Pixels& m) const {
    return fmt::format("pixels {} {}x{} {:016x}", place(m.box), m.width, m.height, hash_of(m));
  }
  std::string operator()(const PushClip& m) const { return "clip " + place(m.box); }
  std::string operator()(const PopClip&) const { return "unclip"; }
};

}  // namespace

std::string print_drawing(const Drawing& drawing) {
  std::string text;
  for (const Mark& mark : drawing.marks) text += std::visit(PrintMark{}, mark) + "\n";
  return text;
}

}  // namespace cpscope::gui
