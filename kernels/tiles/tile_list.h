#pragma once

#include "sim/plan/band.h"

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::kernels {

/// Rows that one CTA owns, and rows of the other side that it takes at a time. by_blocks: every
/// walked tile lies inside a block, the rows between two multiples of walked_rows, and tiles are
/// walked from the last to the first, so that CTAs may add to a block's results one after the other
/// (TileList::turns). heads: query heads of one kv head that a tile of query rows holds side by
/// side, each with all of its rows.
struct TileShape {
  int32_t owned_rows = 128;
  int32_t walked_rows = 64;
  bool by_blocks = false;
  int32_t heads = 1;

  int32_t num_blocks(int32_t rows) const { return (rows + walked_rows - 1) / walked_rows; }

  friend auto operator<=>(const TileShape&, const TileShape&) = default;
};

/// Keys that a query row sees, by row of the kv buffer: [lo, hi); empty when lo >= hi.
struct KeyRange {
  int32_t lo = 0;
  int32_t hi = 0;
};

/// Consecutive rows [begin, end) of the walked side, taken in tiles of TileShape::walked_rows; the
/// last tile may be short, by blocks the first one too. Every row in it has a partner in the owned
/// tile, so nothing else, and no padding, is ever read. Without is_masked every pair is visible and
/// all tiles are whole.
struct TileRun {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t range_set = 0;  // which of a query row's ranges counts here
  int8_t is_masked = 0;
  int8_t closes = 0;  // by blocks: nobody adds to these rows after this (TileList::unclosed)
};

/// Rows [begin, end) of the owned side and the runs that meet them. Without runs the tile's results
/// are those of empty rows.
struct OwnedTile {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_run = 0;
  int32_t num_runs = 0;
  int32_t first_turn = 0;  // by blocks: of TileList::turns
  int32_t first_gap = -1;  // by blocks: of TileList::gaps; -1: every row has a partner
  int32_t num_tiles = 0;   // walked
};

/// Whose turn it is to add to the rows of walked tiles: num_tiles of them, in the order of the
/// walk, each counted one place before the last one. A tile may add when `turn` tiles have done so.
struct TurnRun {
  int32_t num_tiles = 0;
  int32_t counter = 0;  // of the first tile
  int32_t turn = 0;     // or kOpeningTurn

  friend bool operator==(const TurnRun&, const TurnRun&) = default;
};

/// The first turn, of a tile with all rows that its counter is about: they are stored, not added.
inline constexpr int32_t kOpeningTurn = -1;

/// Rows [begin, end).
struct RowStretch {
  int32_t begin = 0;
  int32_t end = 0;

  friend bool operator==(const RowStretch&, const RowStretch&) = default;
};

/// What one CTA takes at a time, in launch order (work_order). `head` counts the heads of the owned
/// side from the item's first one: query heads, or TileShape::heads of them, or kv heads where keys
/// are owned, TileList::group_parts of each.
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
  /// By blocks, the walked tiles of each owned tile: how many tiles before it in launch order add
  /// to rows of its own. Sums that are added in turn come out alike in every run, and a tile waits
  /// only for items that were dealt before its own. A counter is about the rows of one block that
  /// tiles with rows in common walk.
  std::vector<TurnRun> turns;
  int32_t num_counters = 0;
  std::vector<RowStretch> unopened;  // rows that must be zeros before, of one block each
  /// Rows of no tile that takes the last turn with all rows that the counter is about
  /// (TileRun::closes): what else is to be done with finished sums, is to be done with these
  /// afterwards.
  std::vector<RowStretch> unclosed;
  /// By blocks, for every owned tile with rows that have no partner anywhere: a bit for each of its
  /// rows, 32 to a word, 1: without a partner. Such rows may hold anything.
  std::vector<uint32_t> gaps;
  /// By blocks, of several query heads of a kv head: every walked tile is taken for all of them
  /// before the next one is; else all tiles of a head before those of the next head.
  bool walks_by_tile = false;
  /// Of keys: the query heads of a kv head are dealt in so many parts, alike, each with dk and dv
  /// of its own (group_parts).
  int32_t group_parts = 1;
  int64_t visited_cells = 0;  // area of all tiles walked, for one head
};

enum class TileOwner { queries, keys };

/// The heads of an item, for the order of its work.
struct WorkHeads {
  int32_t num_heads = 1;         // of the owned side
  int32_t heads_walked = 1;      // of the other side, which every tile walks
  int32_t heads_sharing = 1;     // of the owned side, that walk the same head
  int64_t cached_rows = 16'384;  // walked rows of one head that the L2 cache has room for
  int32_t most_at_once = 0;      // of the owned side; 0: all. Others come when these are done
  int32_t group = 1;  // query heads of a kv head that may be dealt in parts; 1: they may not
  int32_t num_heads_of_step = 0;  // kv heads of which the item's are a piece; 0: they are all
  int64_t sum_row_bytes = 0;      // of dk and dv of a part, one row
};

/// Cuts the visible area of one compute item to tiles of `shape`. q_rows, kv_rows: rows of the
/// item's buffers.
/// Cost: O(rows x ranges of a row + runs), in time and host memory.
TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const WorkHeads& heads, TileShape shape, TileOwner owner);

}  // namespace cpscope::kernels
