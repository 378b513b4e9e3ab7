#pragma once

#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <cstddef>
#include <string>

namespace cpscope::gui {

/// What an SVG has beside its marks.
struct SvgPage {
  Size size;
  Color background;         // a = 0: none
  std::string title;        // spoken by screen readers, shown as a tooltip by browsers
  std::string description;  // one or two sentences: what is seen
  // Inside another page: no XML declaration, and ids that begin so, since they must differ from all
  // others there.
  bool is_inline = false;
  std::string id_prefix = {};
};

/// The drawing as the text of an SVG 1.1 file: the same marks give the same bytes. Fonts are named
/// (Inter, JetBrains Mono, then any of their kind), not embedded. Control characters and bytes that
/// are not ASCII become "?".
std::string print_svg(const Drawing& drawing, const SvgPage& page);

/// Writes it as a whole or not at all. Gives the number of bytes.
Result<size_t> write_svg(const std::string& path, const Drawing& drawing, const SvgPage& page);

}  // namespace cpscope::gui
