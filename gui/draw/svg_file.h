#pragma once

#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <cstddef>
#include <string>

namespace cpscope::gui {

/// Properties of an SVG file other than its marks.
struct SvgPage {
  Size size;
  Color background;         // a = 0: no background
  std::string title;        // read by screen readers, shown as a tooltip by browsers
  std::string description;  // one or two sentences that describe the picture
  // For an SVG inside another page: no XML declaration, and all ids begin with this prefix, because
  // they must be unique in that page.
  bool is_inline = false;
  std::string id_prefix = {};
};

/// The drawing as the text of an SVG 1.1 file: the same marks give the same bytes. Fonts are named
/// (Inter, JetBrains Mono, then generic ones), not embedded. Control characters and bytes that are
/// not ASCII become "?".
std::string print_svg(const Drawing& drawing, const SvgPage& page);

/// Writes the file completely or not at all. Returns the number of bytes.
Result<size_t> write_svg(const std::string& path, const Drawing& drawing, const SvgPage& page);

}  // namespace cpscope::gui
