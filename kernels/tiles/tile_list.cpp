#include "kernels/tiles/tile_list.h"

#include "kernels/tiles/even_ends.h"
#include "kernels/tiles/group_parts.h"
#include "kernels/tiles/key_parts.h"
#include "kernels/tiles/shifted_begins.h"
#include "kernels/tiles/tile_turns.h"
#include "kernels/tiles/work_order.h"

#include <algorithm>
#include <limits>

namespace cpscope::kernels {
namespace {

/// Sorts stretches and joins those that overlap or touch.
void join(std::vector<RowStretch>& stretches) {
  std::sort(stretches.begin(), stretches.end(),
            [](const RowStretch& a, const RowStretch& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (const RowStretch& next : stretches) {
    if (kept > 0 && next.begin <= stretches[kept - 1].end) {
      stretches[kept - 1].end = std::max(stretches[kept - 1].end, next.end);
    } else {
      stretches[kept++] = next;
    }
  }
  stretches.resize(kept);
}

/// Collects the visible keys of every row, in as few disjoint ranges as possible, set by set.
void collect_ranges(std::span<const BandSlice> slices, TileList& list) {
  std::vector<std::vector<RowStretch>> rows(static_cast<size_t>(list.q_rows));
  for (const BandSlice& slice : slices) {
    for (int32_t q = slice.q0; q < slice.q1; ++q) {
      const ColumnRange seen = columns_of_row(slice, q);
      if (seen.begin < seen.end)
        rows[q].push_back({static_cast<int32_t>(seen.begin), static_cast<int32_t>(seen.end)});
    }
  }
  size_t num_sets = 1;
  for (std::vector<RowStretch>& row : rows) {
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

/// The streamed rows that the rows of a stationary tile see, by one range set.
struct TileView {
  std::vector<RowStretch> touched;  // streamed rows that some row of the tile sees
  std::vector<RowStretch> whole;    // streamed rows that every row of the tile sees
};

bool is_masked(RowStretch tile, const TileView& view, int32_t walked_rows) {
  const auto is_inside = [&](const RowStretch& stretch) {
    return stretch.begin <= tile.begin && tile.end <= stretch.end;
  };
  return tile.end - tile.begin < walked_rows ||
         std::none_of(view.whole.begin(), view.whole.end(), is_inside);
}

/// Cuts a stretch of streamed rows to runs of tiles of one kind. Tiles are counted from the
/// stretch's begin, or from that of its first block.
void append_runs(RowStretch stretch, const TileView& view, int32_t range_set, TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  const int32_t origin = list.shape.by_blocks ? stretch.begin / walked * walked : stretch.begin;
  const int32_t num_tiles = (stretch.end - origin + walked - 1) / walked;
  // The kind of a tile changes only where a boundary lies in it, and after that tile.
  std::vector<int32_t> changes{0, num_tiles};
  const auto add_boundary = [&](int32_t row) {
    if (row < stretch.begin || row > stretch.end) return;
    const int32_t tile = (row - origin) / walked;
    for (const int32_t change : {tile, tile + 1}) {
      if (change < num_tiles) changes.push_back(change);
    }
  };
  for (const auto* stretches : {&view.touched, &view.whole}) {
    for (const RowStretch& part : *stretches) {
      add_boundary(part.begin);
      add_boundary(part.end);
    }
  }
  std::sort(changes.begin(), changes.end());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  const size_t first_run = list.runs.size();
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    const int32_t first_end = origin + (changes[i] + 1) * walked;
    const int32_t begin = std::max(stretch.begin, first_end - walked);
    const int32_t end = std::min(stretch.end, origin + changes[i + 1] * walked);
    const int8_t masked = is_masked({begin, std::min(end, first_end)}, view, walked) ? 1 : 0;
    if (list.runs.size() > first_run && masked == list.runs.back().is_masked) {
      list.runs.back().end = end;
    } else {
      list.runs.push_back({begin, end, range_set, masked, 0});
    }
  }
}

/// True if two query rows see a key in common.
bool share_a_key(const TileList& list, int32_t a, int32_t b) {
  for (int32_t i = 0; i < list.num_range_sets; ++i) {
    const KeyRange& of_a = list.ranges[int64_t{i} * list.q_rows + a];
    for (int32_t j = 0; j < list.num_range_sets; ++j) {
      const KeyRange& of_b = list.ranges[int64_t{j} * list.q_rows + b];
      if (std::max(of_a.lo, of_b.lo) < std::min(of_a.hi, of_b.hi)) return true;
    }
  }
  return false;
}

/// The query rows of long documents, in order. Tiles do not span two of them. Stationary query
/// tiles: each row would stream the keys of both documents; if keys are cut, every document counts
/// as long. By blocks: a block that a document
/// shares with the one before is the last of its own tiles but the first of the other's, which
/// would wait for it all the time.
std::vector<RowStretch> find_long_documents(const TileList& list) {
  const int32_t long_rows = list.shape.cuts_keys ? 1 : 512;
  std::vector<RowStretch> documents;
  int32_t start = 0;
  for (int32_t q = 1; q <= list.q_rows; ++q) {
    if (q < list.q_rows && share_a_key(list, q - 1, q)) continue;
    if (q - start >= long_rows) documents.push_back({start, q});
    start = q;
  }
  return documents;
}

/// Appends the runs of one stationary tile, by one range set. cuts: streamed rows that no run may
/// span.
void append_walk(TileView& view, int32_t range_set, const std::vector<int32_t>& cuts,
                 TileList& list) {
  join(view.touched);
  for (const RowStretch& stretch : view.touched) {
    RowStretch rest = stretch;
    for (auto cut = std::upper_bound(cuts.begin(), cuts.end(), rest.begin);
         cut != cuts.end() && *cut < stretch.end; ++cut) {
      append_runs({rest.begin, *cut}, view, range_set, list);
      rest.begin = *cut;
    }
    append_runs(rest, view, range_set, list);
  }
}

/// Appends the runs of keys for a tile of query rows.
void walk_keys(const OwnedTile& tile, TileList& list) {
  TileView view;
  for (int32_t set = 0; set < list.num_range_sets; ++set) {
    view.touched.clear();
    view.whole.clear();
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    RowStretch whole{0, std::numeric_limits<int32_t>::max()};
    for (int32_t q = tile.begin; q < tile.end; ++q) {
      const KeyRange& range = ranges[q];
      whole = {std::max(whole.begin, range.lo), std::min(whole.end, range.hi)};
      if (range.lo < range.hi) view.touched.push_back({range.lo, range.hi});
    }
    if (whole.begin < whole.end) view.whole.push_back(whole);
    append_walk(view, set, {}, list);
  }
}

/// A tile of stationary rows, whose runs come next.
OwnedTile tile_of(const RowStretch& rows, const TileList& list) {
  OwnedTile tile;
  tile.begin = rows.begin;
  tile.end = rows.end;
  tile.first_run = static_cast<int32_t>(list.runs.size());
  return tile;
}

void add_query_tile(int32_t begin, int32_t end, TileList& list) {
  OwnedTile tile = tile_of({begin, end}, list);
  walk_keys(tile, list);
  tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
  list.tiles.push_back(tile);
}

/// A long document whose rows are no multiple of a tile is cut from its end: the short tile holds
/// the first rows, which see least under a causal mask.
void make_query_tiles(const std::vector<RowStretch>& long_documents, TileList& list) {
  const int32_t owned = list.shape.owned_rows;
  int32_t q = 0;
  const auto fill_until = [&](int32_t end) {
    for (; q < end; q = list.tiles.back().end) add_query_tile(q, std::min(end, q + owned), list);
  };
  for (const RowStretch& document : long_documents) {
    fill_until(document.begin);
    const int32_t rest = (document.end - document.begin) % owned;
    if (rest > 0) fill_until(document.begin + rest);
    fill_until(document.end);
  }
  fill_until(list.q_rows);
}

/// Finds, for every tile of keys, the stretches of query rows whose interval of tiles contains it.
/// Rows come in order; work is done only where the interval changes.
class StretchTracker {
 public:
  explicit StretchTracker(size_t num_tiles) : opened_(num_tiles, 0), stretches_(num_tiles) {}

  /// Row `row` sees tiles [tiles.begin, tiles.end).
  void enter(int32_t row, RowStretch tiles) {
    if (tiles.begin >= tiles.end) tiles = {};
    for_difference(held_, tiles, [&](int32_t t) { stretches_[t].push_back({opened_[t], row}); });
    for_difference(tiles, held_, [&](int32_t t) { opened_[t] = row; });
    held_ = tiles;
  }

  const std::vector<RowStretch>& stretches_of(size_t tile) const { return stretches_[tile]; }

 private:
  /// Visits the tiles of `a` that are not in `b`.
  template <class Visit>
  static void for_difference(RowStretch a, RowStretch b, Visit visit) {
    for (int32_t t = a.begin; t < std::min(a.end, b.begin); ++t) visit(t);
    for (int32_t t = std::max(a.begin, b.end); t < a.end; ++t) visit(t);
  }

  RowStretch held_;
  std::vector<int32_t> opened_;                     // [tile] first row of the open stretch
  std::vector<std::vector<RowStretch>> stretches_;  // [tile]
};

/// Stretches of query rows for every tile of keys.
struct KeyTileWalks {
  StretchTracker touched;  // rows that see a key of the tile
  StretchTracker whole;    // rows that see every key of it

  KeyTileWalks(const TileList& list, int32_t set, size_t num_tiles)
      : touched(num_tiles), whole(num_tiles) {
    const int32_t rows = list.shape.owned_rows;
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    for (int32_t q = 0; q < list.q_rows; ++q) {
      const KeyRange& range = ranges[q];
      const bool sees_any = range.lo < range.hi;
      touched.enter(
          q, sees_any ? RowStretch{range.lo / rows, (range.hi - 1) / rows + 1} : RowStretch{});
      // The last tile is whole when the row sees all keys that exist.
      const int32_t end = range.hi == list.kv_rows ? (range.hi + rows - 1) / rows : range.hi / rows;
      whole.enter(q, sees_any ? RowStretch{(range.lo + rows - 1) / rows, end} : RowStretch{});
    }
    touched.enter(list.q_rows, {});
    whole.enter(list.q_rows, {});
  }
};

void make_key_tiles(const std::vector<RowStretch>& long_documents, TileList& list) {
  std::vector<int32_t> cuts;  // see append_walk
  for (const RowStretch& document : long_documents) cuts.push_back(document.begin);
  const int32_t owned = list.shape.owned_rows;
  const auto num_tiles = static_cast<size_t>((list.kv_rows + owned - 1) / owned);
  std::vector<KeyTileWalks> walks;
  for (int32_t set = 0; set < list.num_range_sets; ++set) walks.emplace_back(list, set, num_tiles);
  for (size_t t = 0; t < num_tiles; ++t) {
    const int32_t first = static_cast<int32_t>(t) * owned;
    OwnedTile tile = tile_of({first, std::min(list.kv_rows, first + owned)}, list);
    for (int32_t set = 0; set < list.num_range_sets; ++set) {
      TileView view{walks[set].touched.stretches_of(t), walks[set].whole.stretches_of(t)};
      append_walk(view, set, cuts, list);
    }
    // With several range sets, by blocks: CTAs that reach rows in another order wait for each
    // other.
    std::stable_sort(list.runs.begin() + tile.first_run, list.runs.end(),
                     [](const TileRun& a, const TileRun& b) { return a.begin < b.begin; });
    tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
    list.tiles.push_back(tile);
  }
}

/// True if a query row of `rows` sees a key of `keys`, which belong to the run.
bool sees_any(const RowStretch& rows, const RowStretch& keys, const TileRun& run,
              const TileList& list) {
  if (run.is_masked == 0) return true;
  const KeyRange* ranges = list.ranges.data() + int64_t{run.range_set} * list.q_rows;
  return std::any_of(ranges + rows.begin, ranges + rows.end, [&](const KeyRange& range) {
    return std::max(range.lo, keys.begin) < std::min(range.hi, keys.end);
  });
}

/// OwnedTile::unseen of one warpgroup's rows.
uint32_t count_unseen(const RowStretch& rows, const TileRun& last, const TileList& list) {
  const int32_t most = std::min(kMostUnseen, count_tiles(last, list.shape) - 1);
  uint32_t count = 0;
  RowStretch keys{last.begin + (count_tiles(last, list.shape) - 1) * list.shape.walked_rows,
                  last.end};
  while (static_cast<int32_t>(count) < most && !sees_any(rows, keys, last, list)) {
    ++count;
    keys = {keys.begin - list.shape.walked_rows, keys.begin};
  }
  return count;
}

void find_unseen(OwnedTile& tile, const TileList& list) {
  if (tile.num_runs == 0) return;
  const TileRun& last = list.runs[tile.first_run + tile.num_runs - 1];
  for (int32_t part = 0; part * list.shape.warpgroup_rows < list.shape.owned_rows; ++part) {
    const int32_t begin = tile.begin + part * list.shape.warpgroup_rows;
    if (begin >= tile.end) return;
    const RowStretch rows{begin, std::min(tile.end, begin + list.shape.warpgroup_rows)};
    tile.unseen |= count_unseen(rows, last, list) << 8 * part;
  }
}

/// Counts the streamed tiles of each stationary tile, and records the area of all.
void count_walked_tiles(TileList& list) {
  int64_t all = 0;
  for (OwnedTile& tile : list.tiles) {
    for (int32_t r = 0; r < tile.num_runs; ++r)
      tile.num_tiles += count_tiles(list.runs[tile.first_run + r], list.shape);
    all += tile.num_tiles;
    if (list.shape.warpgroup_rows > 0) find_unseen(tile, list);
  }
  list.visited_cells = all * list.shape.walked_rows * list.shape.owned_rows;
}

}  // namespace

int32_t count_tiles(const TileRun& run, const TileShape& shape) {
  const int32_t walked = shape.walked_rows;
  const int32_t origin = shape.by_blocks ? run.begin / walked * walked : run.begin;
  return (run.end - origin + walked - 1) / walked;
}

TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const WorkHeads& item_heads, TileShape shape, TileOwner owner) {
  TileList list;
  list.shape = shape;
  list.q_rows = static_cast<int32_t>(q_rows);
  list.kv_rows = static_cast<int32_t>(kv_rows);
  collect_ranges(slices, list);
  const bool owns_queries = owner == TileOwner::queries;
  const std::vector<RowStretch> long_documents =
      owns_queries || shape.by_blocks ? find_long_documents(list) : std::vector<RowStretch>{};
  owns_queries ? make_query_tiles(long_documents, list) : make_key_tiles(long_documents, list);
  count_walked_tiles(list);
  if (shape.cuts_keys) cut_keys(item_heads, list);
  const bool is_packed = has_documents(long_documents);
  list.group_parts = choose_group_parts(item_heads, is_packed, list);
  const WorkHeads heads = heads_in_parts(item_heads, list.group_parts);
  if (!shape.by_blocks) {
    fill_in_sections(heads, list);
    // Parts of keys end together already, and heads that arrive later must not come first.
    if (!shape.cuts_keys && heads.most_at_once == 0) even_out_ends(list);
    return list;
  }
  if (suits_shifted_begins(heads, is_packed, list)) {
    const std::vector<double> begins = shift_begins(heads, list);
    BlockParts(owner, list).assign_turns_by_time(begins, list);
  } else {
    const std::vector<int32_t> order = fill_in_chains(heads, long_documents, list);
    BlockParts(owner, list).assign_turns(order, list);
  }
  collect_gaps(owner, list);
  return list;
}

}  // namespace cpscope::kernels
