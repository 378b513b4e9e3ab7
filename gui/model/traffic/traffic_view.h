#pragma once

#include "gui/model/view.h"

namespace cpscope::gui {

/// Bytes from rank to rank: a matrix of senders (down) x receivers (right), and for few ranks the
/// ranks on a ring with an arrow for every link in use. The moment, or everything until its end
/// when input.is_cumulative. Grid: x receivers, y senders. Regions: "link/<src>/<dst>" ->
/// LinkTarget, "rank/<rank>" (senders), "receiver/<rank>" and "node/<rank>" (ring) -> RankTarget.
View draw_traffic(const ViewInput& input);

}  // namespace cpscope::gui
