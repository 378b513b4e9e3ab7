#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// The work of the ranks: pairs and bytes of every rank compared with the ideal, the busiest rank
/// of every step, and the transferred bytes compared with the necessary ones.
/// Camera: x ranks. Grid: x ranks (of the pairs), y pairs. Hits: "rank/3", "bytes/3", "step/2",
/// "traffic".
View draw_balance(const ViewInput& input);

}  // namespace cpscope::gui
