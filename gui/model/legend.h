#pragma once

#include "gui/model/view.h"

#include <functional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// One entry of a legend: a sample of the painted mark, if there is one, and its meaning.
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

/// Paints entries below each other, with wrapped text, and returns where the next line would begin.
/// Entries that do not fit are left out.
float add_legend_column(Drawing& drawing, const ViewInput& input, const Box& box,
                        const std::vector<LegendEntry>& entries);

/// Paints entries side by side, line after line.
float add_legend_flow(Drawing& drawing, const ViewInput& input, const Box& box,
                      const std::vector<LegendEntry>& entries);

/// Height of a legend in one line.
inline constexpr float kLegendHeight = 20;

/// Adds an entry to a legend of one line: `add_swatch` paints the sample into a box of width
/// `swatch`, the text follows, and x moves after both. Does nothing when the entry does not fit.
void add_legend_entry(Drawing& drawing, const ViewInput& input, const Box& line, float& x,
                      const std::string& text, float swatch,
                      const std::function<void(const Box&)>& add_swatch);

/// Adds a sentence in the middle of an empty view: why it is empty, and what to do.
void add_sentence(Drawing& drawing, const ViewInput& input, const Box& box,
                  const std::string& text);

/// Adds a sentence in one line around a point, cut to the width of the view.
void add_sentence_line(Drawing& drawing, const ViewInput& input, Point at, const std::string& text);

/// Linear between two colours, in sRGB; 0 is a.
Color mix(Color a, Color b, float share);

}  // namespace cpscope::gui
