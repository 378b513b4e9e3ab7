#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// The square of query ids (down) x key ids (right): which pairs are visible, and which rank
/// computes them in which step. Grid: x keys, y queries -> PairRange. Regions "pair/<first
/// query>/<first key>" are chunk pairs; their target is their compute item if there is only one,
/// otherwise the PairRange.
View draw_mask(const ViewInput& input);

}  // namespace cpscope::gui
