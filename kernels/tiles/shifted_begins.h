#pragma once

#include "kernels/tiles/tile_list.h"

#include <vector>

/// Where the tiles of one document with few heads begin to stream (by blocks, stationary keys).
namespace cpscope::kernels {

/// CTAs of a head that begin at the document's last rows start one hand-over after each other. With
/// few heads many CTAs belong to each, so the last one starts late. They begin at different blocks
/// instead, stream up to the first row, and then what is left.
///
/// Turns are those of a virtual schedule, in which every CTA streams one tile a unit of time:
/// a tile waits only for tiles that are at a block earlier in that schedule, so there is no cycle.
/// But it may wait for an item that is fetched after its own. So at least TileShape::ctas_together
/// CTAs must run at the same time, and a CTA must not fetch an item before it has sent all of dq of
/// the one before (TileList::draws_late). Then an item is never fetched too late: take the earliest
/// visit of a block that has not happened. In the schedule a CTA of its head is free when its item
/// begins, so fewer items than there are CTAs come before it in the list and have not ended.

/// True if this gains more than it costs: the waiting is a large enough share of all time.
bool suits_shifted_begins(const WorkHeads& heads, bool is_packed, const TileList& list);

/// Cuts and reorders the tiles' runs, and fills list.work. Returns the time in the schedule at
/// which each tile begins, in streamed tiles.
std::vector<double> shift_begins(const WorkHeads& heads, TileList& list);

}  // namespace cpscope::kernels
