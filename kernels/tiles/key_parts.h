#pragma once

#include "kernels/tiles/tile_list.h"

/// Parts of the keys of stationary query tiles (TileShape::cuts_keys).
namespace cpscope::kernels {

/// Replaces every tile by one for each part of its streamed tiles, of equal length where that is
/// possible, so that CTAs have several items each and end together; short tiles stay whole. The
/// streamed tiles must be counted. Depends on the heads of the item, because they are items too.
void cut_keys(const WorkHeads& heads, TileList& list);

}  // namespace cpscope::kernels
