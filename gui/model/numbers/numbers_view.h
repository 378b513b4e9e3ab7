#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// Where run A diverges from its reference: all tensors as bars of their budgets, one tensor as a
/// heat map of row errors, their histogram, and the worst rows.
/// Camera: x heads, y tokens (the tensor's side). Grid: x heads, y tokens of the shown tensor.
/// Hits: "tensor/dq" (its worst row), "row/TOKEN/HEAD" of the worst rows, "bin/N" of the histogram,
/// "divergence".
View draw_numbers(const ViewInput& input);

}  // namespace cpscope::gui
