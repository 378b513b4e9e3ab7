#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// Who has how much to do: pairs and bytes of every rank beside the ideal, the busiest rank of
/// every step, and what travels beside what must.
/// Camera: x ranks. Grid: x ranks (of the pairs), y pairs. Hits: "rank/3", "bytes/3", "step/2",
/// "traffic".
View draw_balance(const ViewInput& input);

}  // namespace cpscope::gui
