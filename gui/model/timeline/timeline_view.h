#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// What each rank does and when. Step clock: columns are the steps of both passes, lanes the ranks;
/// bars compare a rank with the busiest one of its step. Nanoseconds (input.shows_time, and a run
/// with events): the times that the run's clock measured, run_b below run_a.
/// Hits: "cell/2/3" (rank, step; its compute item if there is one), "cell/2/3/sent/0" and
/// "cell/2/3/received/0" (phase; TransferItem), "step/3", "rank/2", "event/a/2/compute/17" (first
/// event of the lane; ItemId).
/// Grid, if cells are too small for hits of their own: x steps (or nanoseconds), y ranks.
View draw_timeline(const ViewInput& input);

}  // namespace cpscope::gui
