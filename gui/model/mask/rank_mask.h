#pragma once

#include "gui/model/axis.h"
#include "gui/model/mask/mask_frame.h"
#include "gui/model/view.h"

namespace cpscope::gui {

/// Adds the mask with the tokens of each rank together: queries and keys in the local order of rank
/// 0, then of rank 1, and so on. The axes count rows of that order.
void add_rank_mask(const ViewInput& input, const MaskFrame& frame, const Axis& q, const Axis& k,
                   Direction direction, View& view);

}  // namespace cpscope::gui
