#pragma once

#include "gui/model/axis.h"
#include "gui/model/numbers/error_scale.h"
#include "gui/model/view.h"

#include <vector>

namespace cpscope::gui {

/// A cell of the heat map that must always be visible.
struct FlaggedCell {
  Box box;
  int64_t token = 0;  // first token of the cell
  int32_t head = 0;
};

/// Tokens down, heads to the right, the worst share of every cell. A row of pixels shows the worst
/// of all tokens that touch it, so that one wrong row is visible at any zoom.
struct ErrorHeat {
  Pixels pixels;                   // width 0 when nothing is shown
  std::vector<FlaggedCell> flags;  // cells over their budgets, top to bottom, at most kMostFlags
  int64_t num_flagged = 0;         // number of all such cells
  std::vector<float> flagged_heights;  // [row of pixels with such a cell] its middle

  static constexpr size_t kMostFlags = 400;
};

ErrorHeat fold_errors(const ErrorField& field, const ErrorScale& scale, const Axis& heads,
                      const Axis& tokens);

}  // namespace cpscope::gui
