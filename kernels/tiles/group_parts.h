#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>

/// The query heads of a kv head, dealt to several CTAs. A kernel that owns keys has as many items
/// as keys and kv heads give it, which are too few where a rank has few kv heads (one of many query
/// heads: multi-query attention, or all-to-all over as many ranks as there are kv heads): most
/// multiprocessors idle, and the longest item of a causal mask takes as long as all others. So
/// groups are dealt in parts, each with dk and dv of its own, in fp32, which are added up in the
/// order of the parts (part_sums).
namespace cpscope::kernels {

/// Into how many parts, alike, groups are best dealt: 1 unless the items end sooner by more than
/// adding up takes. The list's tiles are counted, its work is not dealt yet.
/// Cost: O(tiles x heads x divisors of the group), of no more items than a device soon has done.
int32_t choose_group_parts(const WorkHeads& heads, const TileList& list);

/// The heads of an item whose groups are dealt in `parts`: a part is as a kv head of fewer query
/// heads.
WorkHeads heads_in_parts(const WorkHeads& heads, int32_t parts);

}  // namespace cpscope::kernels
