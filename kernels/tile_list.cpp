#include "kernels/tile_list.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace cpscope::kernels {
namespace {

/// Half-open stretch of rows or columns.
struct Stretch {
  int32_t begin = 0;
  int32_t end = 0;
};

/// Sorts and joins stretches that overlap or touch.
void join(std::vector<Stretch>& stretches) {
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const Stretch& next : stretches) {
    if (kept > 0 && next.begin <= stretches[kept - 1].end) {
      stretches[kept - 1].end = std::max(stretches[kept - 1].end, next.end);
    } else {
      stretches[kept++] = next;
    }
  }
  stretches.resize(kept);
}

/// The visible keys of every row, as few disjoint ranges as possible, set by set.
void collect_ranges(std::span<const BandSlice> slices, TileList& list) {
  std::vector<std::vector<Stretch>> rows(static_cast<size_t>(list.q_rows));
  for (const BandSlice& slice : slices) {
    for (int32_t q = slice.q0; q < slice.q1; ++q) {
      const ColumnRange seen = columns_of_row(slice, q);
      if (seen.begin < seen.end)
        rows[q].push_back({static_cast<int32_t>(seen.begin), static_cast<int32_t>(seen.end)});
    }
  }
  size_t num_sets = 1;
  for (std::vector<Stretch>& row : rows) {
    join(row);
    num_sets = std::max(num_sets, row.size());
  }
  list.num_range_sets = static_cast<int32_t>(num_sets);
  list.ranges.assign(num_sets * rows.size(), {});
  for (size_t q = 0; q < rows.size(); ++q) {
    for (size_t set = 0; set < rows[q].size(); ++set)
      list.ranges[set * rows.size() + q] = {rows[q][set].begin, rows[q][set].end};
  }
}

void append_tiles(Stretch stretch, int32_t range_set, bool is_masked, TileList& list) {
  if (stretch.begin >= stretch.end) return;
  list.runs.push_back({stretch.begin, stretch.end, range_set, is_masked ? 1 : 0});
}

/// One stretch of the walked side, of which the tiles inside `whole` need no mask: masked, whole,
/// masked. Tiles are counted from the stretch's begin.
void append_runs(Stretch stretch, Stretch whole, int32_t range_set, TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  const int32_t begin = std::max(whole.begin, stretch.begin),
                end = std::min(whole.end, stretch.end);
  const int32_t first = stretch.begin + (begin - stretch.begin + walked - 1) / walked * walked;
  const int32_t last = end <= first ? first : first + (end - first) / walked * walked;
  if (begin >= end || first >= last) return append_tiles(stretch, range_set, true, list);
  append_tiles({stretch.begin, first}, range_set, true, list);
  append_tiles({first, last}, range_set, false, list);
  append_tiles({last, stretch.end}, range_set, true, list);
}

/// Runs of keys for a tile of query rows.
void walk_keys(const OwnedTile& tile, TileList& list) {
  std::vector<Stretch> seen;
  for (int32_t set = 0; set < list.num_range_sets; ++set) {
    seen.clear();
    Stretch whole{0, std::numeric_limits<int32_t>::max()};
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    for (int32_t q = tile.begin; q < tile.end; ++q) {
      const KeyRange& range = ranges[q];
      whole = {std::max(whole.begin, range.lo), std::min(whole.end, range.hi)};
      if (range.lo < range.hi) seen.push_back({range.lo, range.hi});
    }
    join(seen);
    for (const Stretch& stretch : seen) append_runs(stretch, whole, set, list);
  }
}

void make_query_tiles(TileList& list) {
  for (int32_t q = 0; q < list.q_rows; q += list.shape.owned_rows) {
    OwnedTile tile{q, std::min(list.q_rows, q + list.shape.owned_rows),
                   static_cast<int32_t>(list.runs.size()), 0};
    walk_keys(tile, list);
    tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
    list.tiles.push_back(tile);
  }
}

/// For every tile of keys: the stretches of query rows whose interval of tiles holds it. Rows come
/// in order; work is done only where the interval changes.
class StretchTracker {
 public:
  explicit StretchTracker(size_t num_tiles) : opened_(num_tiles, 0), stretches_(num_tiles) {}

  /// Row `row` holds tiles [tiles.begin, tiles.end).
  void enter(int32_t row, Stretch tiles) {
    if (tiles.begin >= tiles.end) tiles = {};
    for_difference(held_, tiles, [&](int32_t t) { stretches_[t].push_back({opened_[t], row}); });
    for_difference(tiles, held_, [&](int32_t t) { opened_[t] = row; });
    held_ = tiles;
  }

  const std::vector<Stretch>& stretches_of(size_t tile) const { return stretches_[tile]; }

 private:
  /// Tiles of `a` that are not in `b`.
  template <class Visit>
  static void for_difference(Stretch a, Stretch b, Visit visit) {
    for (int32_t t = a.begin; t < std::min(a.end, b.begin); ++t) visit(t);
    for (int32_t t = std::max(a.begin, b.end); t < a.end; ++t) visit(t);
  }

  Stretch held_;
  std::vector<int32_t> opened_;                  // [tile] first row of the open stretch
  std::vector<std::vector<Stretch>> stretches_;  // [tile]
};

/// Runs of query rows for every tile of keys.
struct KeyTileWalks {
  StretchTracker touched;  // rows that see a key of the tile
  StretchTracker whole;    // rows that see every key of it

  KeyTileWalks(const TileList& list, int32_t set, size_t num_tiles)
      : touched(num_tiles), whole(num_tiles) {
    const int32_t owned = list.shape.owned_rows;
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    for (int32_t q = 0; q < list.q_rows; ++q) {
      const KeyRange& range = ranges[q];
      const bool sees_any = range.lo < range.hi;
      touched.enter(q,
                    sees_any ? Stretch{range.lo / owned, (range.hi - 1) / owned + 1} : Stretch{});
      // The last tile is whole when all keys that exist are seen.
      const int32_t end =
          range.hi == list.kv_rows ? (range.hi + owned - 1) / owned : range.hi / owned;
      whole.enter(q, sees_any ? Stretch{(range.lo + owned - 1) / owned, end} : Stretch{});
    }
    touched.enter(list.q_rows, {});
    whole.enter(list.q_rows, {});
  }
};

/// One stretch of rows of which several parts may need no mask.
void append_walk(Stretch rows, const std::vector<Stretch>& whole, int32_t set, TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  for (const Stretch& part : whole) {
    if (part.begin >= rows.end) break;
    if (part.end <= rows.begin || part.end - std::max(part.begin, rows.begin) < walked) continue;
    // Up to and including this part; what follows begins on a whole tile.
    const int32_t tiles = (std::min(part.end, rows.end) - rows.begin) / walked;
    if (tiles == 0) continue;
    const Stretch head{rows.begin, rows.begin + tiles * walked};
    append_runs(head, part, set, list);
    rows.begin = head.end;
  }
  append_tiles(rows, set, true, list);
}

void make_key_tiles(TileList& list) {
  const int32_t owned = list.shape.owned_rows;
  const size_t num_tiles = static_cast<size_t>((list.kv_rows + owned - 1) / owned);
  std::vector<KeyTileWalks> walks;
  for (int32_t set = 0; set < list.num_range_sets; ++set) walks.emplace_back(list, set, num_tiles);
  for (size_t t = 0; t < num_tiles; ++t) {
    OwnedTile tile{static_cast<int32_t>(t) * owned,
                   std::min(list.kv_rows, (static_cast<int32_t>(t) + 1) * owned),
                   static_cast<int32_t>(list.runs.size()), 0};
    for (int32_t set = 0; set < list.num_range_sets; ++set) {
      for (const Stretch& rows : walks[set].touched.stretches_of(t))
        append_walk(rows, walks[set].whole.stretches_of(t), set, list);
    }
    tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
    list.tiles.push_back(tile);
  }
}

/// Tiles that a CTA walks for each owned tile.
std::vector<int64_t> walked_tiles(const TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  std::vector<int64_t> cost(list.tiles.size(), 0);
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    for (int32_t r = 0; r < list.tiles[t].num_runs; ++r) {
      const TileRun& run = list.runs[list.tiles[t].first_run + r];
      cost[t] += (run.end - run.begin + walked - 1) / walked;
    }
  }
  return cost;
}

/// How many of the tiles in `order`, longest first, are dealt section by section; the others wait
/// for the end, where CTAs that come late to it take less: a quarter of all work, so that it
/// outweighs one longest tile for every CTA. Tiles of one length stay together.
size_t count_dealt_in_sections(const std::vector<int32_t>& order,
                               const std::vector<int64_t>& cost) {
  const int64_t all = std::accumulate(cost.begin(), cost.end(), int64_t{0});
  size_t kept = order.size();
  int64_t left = 0;
  for (size_t i = order.size(); i-- > 0;) {
    left += cost[order[i]];
    if (4 * left > all) break;
    if (i == 0 || cost[order[i - 1]] > cost[order[i]]) kept = i;
  }
  return kept;
}

/// Longest tiles first inside each section of heads; then, of all heads, the short ones.
void order_work(const HeadSections& heads, TileList& list) {
  const std::vector<int64_t> cost = walked_tiles(list);
  for (const int64_t tiles : cost)
    list.visited_cells += tiles * list.shape.walked_rows * list.shape.owned_rows;
  std::vector<int32_t> order(list.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return cost[a] > cost[b]; });
  const size_t kept = count_dealt_in_sections(order, cost);
  const int32_t section = std::max(1, heads.heads_per_section);
  const auto deal = [&](size_t begin, size_t end, int32_t first_head, int32_t end_head) {
    for (size_t i = begin; i < end; ++i) {
      for (int32_t head = first_head; head < end_head; ++head)
        list.work.push_back({order[i], head});
    }
  };
  for (int32_t first = 0; first < heads.num_heads; first += section)
    deal(0, kept, first, std::min(heads.num_heads, first + section));
  deal(kept, order.size(), 0, heads.num_heads);
}

}  // namespace

TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const HeadSections& heads, TileShape shape, TileOwner owner) {
  TileList list;
  list.shape = shape;
  list.q_rows = static_cast<int32_t>(q_rows);
  list.kv_rows = static_cast<int32_t>(kv_rows);
  collect_ranges(slices, list);
  owner == TileOwner::queries ? make_query_tiles(list) : make_key_tiles(list);
  order_work(heads, list);
  return list;
}

}  // namespace cpscope::kernels
