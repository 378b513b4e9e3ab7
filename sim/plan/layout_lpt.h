#pragma once

#include "sim/base/result.h"
#include "sim/plan/mask_bands.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Visible pairs of the query rows of each chunk of `chunk` packed padded tokens, for one head.
/// Source: MagiAttention's clipped chunk areas; the sum over a chunk's clipped slices is its number
/// of visible pairs.
std::vector<int64_t> chunk_areas(const MaskBands& mask, const BatchSlots& slots, int64_t chunk);

/// Deals chunks to ranks: largest area first (equal areas: higher id first) to the least loaded
/// rank (equal loads: lower rank) that holds fewer than ceil(n / ranks) chunks; when the chunks
/// left equal the ranks still empty, only empty ranks are candidates. Returns [rank] ascending
/// chunk ids. Source: Graham 1969 (LPT); capacity and ties as MagiAttention's min-heap dispatch.
/// Expects n >= ranks.
std::vector<std::vector<int64_t>> deal_longest_first(const std::vector<int64_t>& areas,
                                                     int32_t ranks);

}  // namespace cpscope
