#pragma once

#include "gui/model/legend.h"
#include "gui/model/mask/mask_marks.h"
#include "gui/model/view.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// A square with a smaller side is not drawn.
inline constexpr float kLeastMask = 40;

/// The boxes of the view.
struct MaskFrame {
  Box square, left_strip, top_strip, left_ruler, top_ruler, text;
  bool has_side = false;  // the text is next to the square; otherwise below
};

/// Places the square, its rulers and strips, and the text where it leaves the square most room.
MaskFrame place_mask_parts(const ViewInput& input);

/// The steps of a pass that are finished, and those that compute in the moment.
StepWindow find_window(const PlanIndex& index, Direction direction, Moment moment);
Direction direction_at(const PlanIndex& index, Moment moment);

/// Entries of the legend.
LegendEntry mask_sample(std::string text, const MaskPaint& paint, CellLook look, PaintWhen when,
                        const Theme& theme);
LegendEntry mask_text(std::string text, bool starts_line = false, bool is_strong = false);
LegendEntry faint_mask_text(std::string text, bool starts_line = false);
/// When cells are computed, from a new line on, and by what they are coloured if not by class.
void add_time_samples(const ViewInput& input, const MaskPaint& paint,
                      std::vector<LegendEntry>& entries);

void add_mask_axis_names(Drawing& drawing, const ViewInput& input, const MaskFrame& frame);

}  // namespace cpscope::gui
