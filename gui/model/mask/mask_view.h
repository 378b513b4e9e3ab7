#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// The square of query ids (down) x key ids (right): which pairs are visible, which rank computes
/// them and in which step. Grid: x keys, y queries -> PairRange. Regions "pair/<first query>/<first
/// key>" are chunk pairs: their compute item where it is the only one, else the PairRange.
View draw_mask(const ViewInput& input);

}  // namespace cpscope::gui
