#pragma once

#include "kernels/tiles/tile_list.h"

#include <cstdint>

/// Splits the query heads of a KV head among several CTAs. A kernel with stationary keys has one
/// item for each tile of keys and KV head. These are too few where a rank has few KV heads (one of
/// many query heads: multi-query attention, or all-to-all over as many ranks as there are KV
/// heads): most multiprocessors idle, and the longest item of a causal mask takes as long as all
/// others together. So groups are split into parts. Each part has its own dk and dv in fp32, which
/// are added up in the order of the parts (part_sums).
namespace cpscope::kernels {

/// Number of equal parts that groups are best split into: 1 unless the items end sooner by more
/// than the addition costs. The list's tiles are counted; its work is not assigned yet.
/// is_packed: of several documents.
/// Cost: O(tiles x heads x divisors of the group), only for items few enough that a device finishes
/// them soon.
int32_t choose_group_parts(const WorkHeads& heads, bool is_packed, const TileList& list);

/// The heads of an item whose groups are split into `parts`: a part counts as a KV head with fewer
/// query heads.
WorkHeads heads_in_parts(const WorkHeads& heads, int32_t parts);

}  // namespace cpscope::kernels
