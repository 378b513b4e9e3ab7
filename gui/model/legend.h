#pragma once

#include "gui/model/view.h"

#include <functional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// One entry of a legend: a sample of what is painted, if there is one, and what it means.
struct LegendEntry {
  std::string text;
  bool has_sample = false;
  Color color;
  Hatch hatch = Hatch::none;
  Color hatch_color;
  Color outline{0, 0, 0, 0};
  bool is_strong = false;
  bool is_faint = false;
  bool starts_line = false;  // in a flowing legend: begins a new line
};

/// Paints entries below each other, words wrapped, and returns where the next line would begin.
/// What does not fit is left out.
float add_legend_column(Drawing& drawing, const ViewInput& input, const Box& box,
                        const std::vector<LegendEntry>& entries);

/// Paints entries beside each other, line after line.
float add_legend_flow(Drawing& drawing, const ViewInput& input, const Box& box,
                      const std::vector<LegendEntry>& entries);

/// Height of a legend in one line.
inline constexpr float kLegendHeight = 20;

/// One entry of a legend in one line: `add_swatch` paints the sample into a box `swatch` wide, the
/// text stands behind it, and x moves behind both. Nothing when it does not fit.
void add_legend_entry(Drawing& drawing, const ViewInput& input, const Box& line, float& x,
                      const std::string& text, float swatch,
                      const std::function<void(const Box&)>& add_swatch);

/// A sentence in the middle of the view: why it is empty, and what to do.
void add_sentence(Drawing& drawing, const ViewInput& input, const Box& box,
                  const std::string& text);

/// A sentence in one line around a point; as much of it as the view is wide.
void add_sentence_line(Drawing& drawing, const ViewInput& input, Point at, const std::string& text);

/// Linear between two colours, in sRGB; 0 is a.
Color mix(Color a, Color b, float share);

}  // namespace cpscope::gui
