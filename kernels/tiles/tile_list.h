#pragma once

#include "sim/plan/band.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::kernels {

/// Sizes of a CTA's stationary tile (owned_rows) and of the streamed tiles of the other side
/// (walked_rows). by_blocks: every streamed tile lies inside a block, the rows between two
/// multiples of walked_rows. Tiles are streamed from the last to the first, so that CTAs may add to
/// a block's results one after another (TileList::turns). heads: query heads of one KV head that a
/// tile of query rows holds together, each with all of its rows. cuts_keys: tiles of query rows do
/// not span rows that see no key in common, and their keys are cut into parts, so that few rows of
/// many keys are work for all CTAs (TileList::parts). ctas_per_sm: CTAs that fit an SM; 0: unknown.
/// warpgroup_rows: so many stationary query rows at a time may leave out streamed tiles
/// (OwnedTile::unseen); 0: none do. ctas_together: so many CTAs of the launch run at the same time
/// for sure (shift_begins); 0: perhaps one.
struct TileShape {
  int32_t owned_rows = 128;
  int32_t walked_rows = 64;
  bool by_blocks = false;
  int32_t heads = 1;
  bool cuts_keys = false;
  int32_t ctas_per_sm = 0;
  int32_t warpgroup_rows = 0;
  int32_t ctas_together = 0;

  int32_t num_blocks(int32_t rows) const { return (rows + walked_rows - 1) / walked_rows; }

  friend auto operator<=>(const TileShape&, const TileShape&) = default;
};

/// Keys that a query row sees, as rows of the K and V buffer: [lo, hi); empty when lo >= hi.
struct KeyRange {
  int32_t lo = 0;
  int32_t hi = 0;
};

/// Consecutive streamed rows [begin, end), taken in tiles of TileShape::walked_rows. The last tile
/// may be short, by blocks the first one too. Every row in it has a partner in the stationary tile,
/// so no other row and no padding is ever read. Without is_masked every pair is visible and all
/// tiles are whole.
struct TileRun {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t range_set = 0;  // index of the query rows' range set that applies here
  int8_t is_masked = 0;
  int8_t closes = 0;  // by blocks: no tile adds to these rows afterwards (TileList::unclosed)
};

/// Number of streamed tiles of a run.
int32_t count_tiles(const TileRun& run, const TileShape& shape);

/// Rows [begin, end) of the stationary side and the runs of streamed rows that meet them. Without
/// runs the tile's results are those of empty rows.
struct OwnedTile {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_run = 0;
  int32_t num_runs = 0;
  union {
    int32_t first_turn = 0;  // by blocks: index into TileList::turns
    /// Else, for each TileShape::warpgroup_rows of the rows, 8 bits from the lowest on: how many of
    /// the last streamed tiles these rows leave out, since they see nothing there: at most
    /// kMostUnseen, all of them tiles of the last run, and not its first tile.
    uint32_t unseen;
  };
  int32_t first_gap = -1;  // by blocks: index into TileList::gaps; -1: every row has a partner
  int32_t num_tiles = 0;   // streamed
};

inline constexpr int32_t kMostUnseen = 3;

/// Order of the additions to the rows of num_tiles streamed tiles, in the order in which they are
/// streamed; each tile's counter is one less than that of the tile before. A tile may add when
/// `turn` tiles have done so.
struct TurnRun {
  int32_t num_tiles = 0;
  int32_t counter = 0;  // of the first tile
  int32_t turn = 0;     // or kOpeningTurn

  friend bool operator==(const TurnRun&, const TurnRun&) = default;
};

/// The first turn, of a tile with all rows of its counter: the rows are stored, not added.
inline constexpr int32_t kOpeningTurn = -1;

/// Parts of a tile's keys at most.
inline constexpr int32_t kMostKeyParts = 264;

/// Which part of its rows' keys a tile streams. Parts are numbered in the order of the keys.
struct KeyPart {
  int32_t index = 0;
  int32_t count = 1;       // of the tiles with the same rows; 1: the tile has all keys
  int32_t first_slot = 0;  // of the results of part 0, in memory; those of the others follow

  friend bool operator==(const KeyPart&, const KeyPart&) = default;
};

/// Rows [begin, end).
struct RowStretch {
  int32_t begin = 0;
  int32_t end = 0;

  friend bool operator==(const RowStretch&, const RowStretch&) = default;
};

/// Unit of work of one CTA, in launch order (work_order). `head` counts the heads of the stationary
/// side from the item's first one: query heads, or groups of TileShape::heads of them; or, with
/// stationary keys, KV heads, each TileList::group_parts times.
struct WorkItem {
  int32_t tile = 0;
  int32_t head = 0;
};

/// One compute item cut to tiles, with stationary queries or stationary keys. Both sides of a
/// plan's bands become per-row key ranges, so a kernel never sees a mask type, a layout or a
/// framework's special case: a row that sees several stretches of keys has one range in each of
/// several range sets; the ranges are disjoint.
struct TileList {
  TileShape shape;
  int32_t q_rows = 0;
  int32_t kv_rows = 0;
  int32_t num_range_sets = 0;
  std::vector<KeyRange> ranges;  // [range_set][q row]
  std::vector<OwnedTile> tiles;  // every stationary row is in exactly one, or in one for each part
  std::vector<TileRun> runs;
  std::vector<WorkItem> work;  // tiles x heads
  /// By blocks, for the streamed tiles of each stationary tile: how many tiles before it in launch
  /// order add to rows of its own. Sums that are added in a fixed order are the same in every run,
  /// and a tile waits only for items that start before its own, unless draws_late. A counter covers
  /// rows of one block that are streamed by tiles with rows in common.
  std::vector<TurnRun> turns;
  int32_t num_counters = 0;
  std::vector<RowStretch> unopened;  // rows that must be zeroed first, each of one block
  /// Rows that no tile with all rows of the counter adds to last (TileRun::closes). The final step
  /// on finished sums must be done for these rows afterwards.
  std::vector<RowStretch> unclosed;
  /// By blocks, for every stationary tile that has rows without any partner: one bit for each of
  /// its rows, 32 to a word, 1: without a partner. Such rows may hold anything.
  std::vector<uint32_t> gaps;
  /// By blocks, with several query heads of a KV head. True: every streamed tile is taken for all
  /// heads before the next tile. False: all tiles of a head are taken before those of the next
  /// head.
  bool walks_by_tile = false;
  /// By blocks: tiles wait for items that are fetched after their own (shift_begins).
  bool draws_late = false;
  /// With stationary keys: the number of equal parts that the query heads of a KV head are split
  /// into, each with its own dk and dv (group_parts).
  int32_t group_parts = 1;
  /// With TileShape::cuts_keys, for every tile; else empty.
  std::vector<KeyPart> parts;
  int32_t num_part_slots = 0;      // parts of tiles with more than one
  std::vector<int32_t> cut_tiles;  // the first part of each tile that was cut
  int64_t visited_cells = 0;       // area of all streamed tiles, for one head
};

enum class TileOwner { queries, keys };

/// The heads of an item, for the order of its work.
struct WorkHeads {
  int32_t num_heads = 1;         // of the stationary side
  int32_t heads_walked = 1;      // heads of the other side that every tile streams
  int32_t heads_sharing = 1;     // heads of the stationary side that stream the same head
  int64_t cached_rows = 16'384;  // streamed rows of one head that fit the L2 cache
  int32_t most_at_once = 0;      // of the stationary side; 0: all. Others start when these are done
  int32_t group = 1;  // query heads of a KV head that may be split into parts; 1: no split
  int32_t num_heads_of_step = 0;  // KV heads that the item's are a piece of; 0: the item has all
  int64_t sum_row_bytes = 0;      // of dk and dv of a part, one row
  bool is_never_cut = false;      // every way to run the plan has these heads in one kernel

  /// Heads of the stationary side that all pieces have. Whatever decides the order in which sums
  /// are added goes by these, so that the order is the same for every piece.
  int32_t all_heads() const { return std::max(num_heads, num_heads_of_step); }
};

/// Cuts the visible area of one compute item to tiles of `shape`. q_rows, kv_rows: rows of the
/// item's buffers.
/// Cost: O(rows x ranges of a row + runs), in time and host memory.
TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const WorkHeads& heads, TileShape shape, TileOwner owner);

}  // namespace cpscope::kernels
