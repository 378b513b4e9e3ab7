#pragma once

#include "sim/base/result.h"
#include "sim/plan/mask_bands.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope {

/// Calls visit(chunk, band, row_begin, row_end) for every range of a band's rows that lies in one
/// chunk of `chunk` packed padded query tokens; `origin` is the packed id of the band's row 0.
template <class Visit>
void for_each_chunk(std::span<const Band> bands, int64_t origin, int64_t chunk, Visit visit) {
  for (const Band& band : bands) {
    int64_t row = band.q0;
    while (row < band.q1) {
      const int64_t id = (origin + row) / chunk;
      const int64_t end = std::min(band.q1, (id + 1) * chunk - origin);
      visit(id, band, row, end);
      row = end;
    }
  }
}

/// Visible pairs of the query rows of each chunk of `chunk` packed padded tokens, for one head.
/// Source: MagiAttention's clipped chunk areas; the sum over a chunk's clipped slices is its number
/// of visible pairs.
std::vector<int64_t> chunk_areas(const MaskBands& mask, const BatchSlots& slots, int64_t chunk);

/// Chunk ids in the order in which they are assigned: largest area first, equal areas by higher id.
std::vector<int64_t> order_by_area(const std::vector<int64_t>& areas);

/// Assigns chunks to ranks: largest area first (equal areas: higher id first) to the least loaded
/// rank (equal loads: lower rank) that holds fewer than ceil(n / ranks) chunks. When as many chunks
/// are left as ranks are empty, only empty ranks are candidates. Returns [rank] ascending chunk
/// ids. Source: Graham 1969 (LPT); capacity and ties as MagiAttention's min-heap dispatch. Expects
/// n >= ranks.
std::vector<std::vector<int64_t>> assign_longest_first(const std::vector<int64_t>& areas,
                                                       int32_t ranks);

}  // namespace cpscope
