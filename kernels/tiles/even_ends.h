#pragma once

#include "kernels/tiles/tile_list.h"

/// The order of the last items, so that all CTAs end at about the same time.
namespace cpscope::kernels {

/// How long an item of the list takes, by a model. The unit is the time of one streamed tile.
double item_time(const TileList& list, const WorkItem& item);

/// Reorders the last items of list.work, three for each of TileShape::ctas_per_sm CTAs of a
/// multiprocessor, where that saves time if CTAs take them as FreeCtas does: the longest first is
/// not best. Four causal heads of 16384 tokens, 2.6 items a CTA: 12 % longer than the mean, 0.6 %
/// reordered. The items before them keep their order, which keeps rows in the cache. Nothing is
/// changed where the number of CTAs is unknown. Source: MULTIFIT (Coffman, Garey and Johnson, SIAM
/// J. Comput. 7, 1978). Cost: O(items x log), at most 64 items for each CTA.
void even_out_ends(TileList& list);

}  // namespace cpscope::kernels
