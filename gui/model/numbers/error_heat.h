#pragma once

#include "gui/model/axis.h"
#include "gui/model/numbers/error_scale.h"
#include "gui/model/view.h"

#include <vector>

namespace cpscope::gui {

/// A cell of the heat map that no picture may lose.
struct FlaggedCell {
  Box box;
  int64_t token = 0;  // first of the cell
  int32_t head = 0;
};

/// Tokens down, heads to the right, the worst share of every cell. A row of pixels stands for all
/// tokens that touch it, so that one wrong row shows at any zoom.
struct ErrorHeat {
  Pixels pixels;                   // of width 0 when nothing is shown
  std::vector<FlaggedCell> flags;  // cells over their budgets, top to bottom, at most kMostFlags
  int64_t num_flagged = 0;         // all of them
  std::vector<float> flagged_heights;  // [row of pixels with such a cell] its middle

  static constexpr size_t kMostFlags = 400;
};

ErrorHeat fold_errors(const ErrorField& field, const ErrorScale& scale, const Axis& heads,
                      const Axis& tokens);

}  // namespace cpscope::gui
