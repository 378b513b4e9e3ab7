#pragma once

#include "sim/plan/band.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::kernels {

/// Rows that one CTA owns, and rows of the other side that it takes at a time. group_rows: owned
/// rows that are worked on together and may be idle while others are not; 0: all of them.
struct TileShape {
  int32_t owned_rows = 128;
  int32_t walked_rows = 64;
  int32_t group_rows = 0;

  int32_t rows_of_group() const { return group_rows > 0 ? group_rows : owned_rows; }
  int32_t num_groups() const { return owned_rows / rows_of_group(); }

  friend bool operator==(const TileShape&, const TileShape&) = default;
};

/// Keys that a query row sees, by row of the kv buffer: [lo, hi); empty when lo >= hi.
struct KeyRange {
  int32_t lo = 0;
  int32_t hi = 0;
};

/// Consecutive rows [begin, end) of the walked side, taken in tiles of TileShape::walked_rows; the
/// last tile may be short. Every row in it has a partner in the owned tile, so nothing else, and no
/// padding, is ever read. Without is_masked every pair of a group that is not idle is visible and
/// the last tile is whole.
struct TileRun {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t range_set = 0;  // which of a query row's ranges counts here
  int16_t is_masked = 0;
  int16_t idle_groups = 0;  // bit g: no row of group g has a partner here
};

/// Rows [begin, end) of the owned side and the runs that meet them. Without runs the tile's results
/// are those of empty rows.
struct OwnedTile {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_run = 0;
  int32_t num_runs = 0;
};

/// What one CTA takes at a time, in launch order: longest first in each section of heads, the short
/// ones of all heads at the end. `head` counts the heads of the
/// owned side from the item's first one: query heads, or kv heads where keys are owned.
struct WorkItem {
  int32_t tile = 0;
  int32_t head = 0;
};

/// One compute item cut to tiles, from either side. Both sides of a plan's bands become per-row key
/// ranges, so a kernel never sees a mask type, a layout or a framework's special case: a row that
/// sees several stretches of keys has one range in each of several range sets, disjoint.
struct TileList {
  TileShape shape;
  int32_t q_rows = 0;
  int32_t kv_rows = 0;
  int32_t num_range_sets = 0;
  std::vector<KeyRange> ranges;  // [range_set][q row]
  std::vector<OwnedTile> tiles;  // every owned row is in exactly one
  std::vector<TileRun> runs;
  std::vector<WorkItem> work;  // tiles x heads
  int64_t visited_cells = 0;   // area of all tiles walked, idle groups left out, for one head
};

enum class TileOwner { queries, keys };

/// Heads of the owned side. A section's heads are worked on together, so that what they read stays
/// in the L2 cache.
struct HeadSections {
  int32_t num_heads = 1;
  int32_t heads_per_section = 1;
};

/// Cuts the visible area of one compute item to tiles of `shape`. q_rows, kv_rows: rows of the
/// item's buffers.
/// Cost: O(rows x ranges of a row + runs), in time and host memory.
TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const HeadSections& heads, TileShape shape, TileOwner owner);

}  // namespace cpscope::kernels
