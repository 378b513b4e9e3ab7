#pragma once

#include "gui/model/view.h"
#include "sim/plan/layout.h"

namespace cpscope::gui {

/// The layout (which rank will own which token) while the plan is still being made: owners in
/// global order above, a matrix of ranks x tokens below. Uses size, theme and text_width of the
/// input, no plan.
View draw_first_layout(const Layout& layout, const ViewInput& input);

}  // namespace cpscope::gui
