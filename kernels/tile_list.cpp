#include "kernels/tile_list.h"

#include "kernels/tile_turns.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace cpscope::kernels {
namespace {

using Stretch = RowStretch;  // of rows or columns

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

/// What one group of an owned tile's rows sees of the walked side, by one range set.
struct GroupView {
  std::vector<Stretch> touched;  // where a row of the group has a partner
  std::vector<Stretch> whole;    // where all of them have only partners
};

/// What a tile of the walked side is to the groups of an owned tile.
struct TileStatus {
  int8_t is_masked = 0;
  int16_t idle_groups = 0;

  friend bool operator==(const TileStatus&, const TileStatus&) = default;
};

TileStatus status_of(Stretch tile, const std::vector<GroupView>& groups, const TileShape& shape) {
  const auto is_inside = [&](const Stretch& stretch) {
    return stretch.begin <= tile.begin && tile.end <= stretch.end;
  };
  TileStatus status;
  for (int32_t g = 0; g < shape.num_groups(); ++g) {
    const GroupView* group = g < static_cast<int32_t>(groups.size()) ? &groups[g] : nullptr;
    const bool is_met =
        group != nullptr &&
        std::any_of(group->touched.begin(), group->touched.end(), [&](const Stretch& stretch) {
          return stretch.begin < tile.end && tile.begin < stretch.end;
        });
    if (!is_met) {
      status.idle_groups = static_cast<int16_t>(status.idle_groups | 1 << g);
    } else if (tile.end - tile.begin < shape.walked_rows ||
               std::none_of(group->whole.begin(), group->whole.end(), is_inside)) {
      status.is_masked = 1;
    }
  }
  return status;
}

/// Cuts a stretch of the walked side to runs of tiles that are alike. Tiles are counted from the
/// stretch's begin, or from that of its first block.
void append_runs(Stretch stretch, const std::vector<GroupView>& groups, int32_t range_set,
                 TileList& list) {
  const int32_t walked = list.shape.walked_rows;
  const int32_t origin = list.shape.by_blocks ? stretch.begin / walked * walked : stretch.begin;
  const int32_t num_tiles = (stretch.end - origin + walked - 1) / walked;
  // What a tile is changes only where a boundary lies in it, and behind it.
  std::vector<int32_t> changes{0, num_tiles};
  const auto add_boundary = [&](int32_t row) {
    if (row < stretch.begin || row > stretch.end) return;
    const int32_t tile = (row - origin) / walked;
    for (const int32_t change : {tile, tile + 1}) {
      if (change < num_tiles) changes.push_back(change);
    }
  };
  for (const GroupView& group : groups) {
    for (const auto* stretches : {&group.touched, &group.whole}) {
      for (const Stretch& part : *stretches) {
        add_boundary(part.begin);
        add_boundary(part.end);
      }
    }
  }
  std::sort(changes.begin(), changes.end());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  const size_t first_run = list.runs.size();
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    const int32_t first_end = origin + (changes[i] + 1) * walked;
    const int32_t begin = std::max(stretch.begin, first_end - walked);
    const int32_t end = std::min(stretch.end, origin + changes[i + 1] * walked);
    const TileStatus status = status_of({begin, std::min(end, first_end)}, groups, list.shape);
    if (list.runs.size() > first_run &&
        status == TileStatus{list.runs.back().is_masked, list.runs.back().idle_groups}) {
      list.runs.back().end = end;
    } else {
      list.runs.push_back({begin, end, range_set, status.is_masked, 0, status.idle_groups});
    }
  }
}

/// Do two query rows see a key in common?
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

/// The query rows of long documents, in order. Tiles do not reach across. Of query rows: each row
/// would walk the keys of both documents. By blocks: a block that a document shares with the one
/// before is its own tiles' last, which the other's tiles, that take it first, would wait for all
/// the time.
std::vector<Stretch> find_long_documents(const TileList& list) {
  constexpr int32_t kLongRows = 512;
  std::vector<Stretch> documents;
  int32_t start = 0;
  for (int32_t q = 1; q <= list.q_rows; ++q) {
    if (q < list.q_rows && share_a_key(list, q - 1, q)) continue;
    if (q - start >= kLongRows) documents.push_back({start, q});
    start = q;
  }
  return documents;
}

/// The runs of one owned tile, by one range set. cuts: rows of the walked side where none may go
/// on.
void append_walk(const std::vector<GroupView>& groups, int32_t range_set,
                 const std::vector<int32_t>& cuts, TileList& list) {
  std::vector<Stretch> touched;
  for (const GroupView& group : groups)
    touched.insert(touched.end(), group.touched.begin(), group.touched.end());
  join(touched);
  for (const Stretch& stretch : touched) {
    Stretch rest = stretch;
    for (auto cut = std::upper_bound(cuts.begin(), cuts.end(), rest.begin);
         cut != cuts.end() && *cut < stretch.end; ++cut) {
      append_runs({rest.begin, *cut}, groups, range_set, list);
      rest.begin = *cut;
    }
    append_runs(rest, groups, range_set, list);
  }
}

/// Runs of keys for a tile of query rows.
void walk_keys(const OwnedTile& tile, TileList& list) {
  const int32_t group_rows = list.shape.rows_of_group();
  std::vector<GroupView> groups;
  for (int32_t set = 0; set < list.num_range_sets; ++set) {
    groups.clear();
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    for (int32_t first = tile.begin; first < tile.end; first += group_rows) {
      GroupView& group = groups.emplace_back();
      Stretch whole{0, std::numeric_limits<int32_t>::max()};
      for (int32_t q = first; q < std::min(tile.end, first + group_rows); ++q) {
        const KeyRange& range = ranges[q];
        whole = {std::max(whole.begin, range.lo), std::min(whole.end, range.hi)};
        if (range.lo < range.hi) group.touched.push_back({range.lo, range.hi});
      }
      join(group.touched);
      if (whole.begin < whole.end) group.whole.push_back(whole);
    }
    append_walk(groups, set, {}, list);
  }
}

void add_query_tile(int32_t begin, int32_t end, TileList& list) {
  OwnedTile tile{begin, end, static_cast<int32_t>(list.runs.size()), 0};
  walk_keys(tile, list);
  tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
  list.tiles.push_back(tile);
}

/// Tiles of a long document that is no multiple of them are cut from its end: the short tile is
/// that of the first rows, which see least under a causal mask.
void make_query_tiles(const std::vector<Stretch>& long_documents, TileList& list) {
  const int32_t owned = list.shape.owned_rows;
  int32_t q = 0;
  const auto fill_until = [&](int32_t end) {
    for (; q < end; q = list.tiles.back().end) add_query_tile(q, std::min(end, q + owned), list);
  };
  for (const Stretch& document : long_documents) {
    fill_until(document.begin);
    const int32_t rest = (document.end - document.begin) % owned;
    if (rest > 0) fill_until(document.begin + rest);
    fill_until(document.end);
  }
  fill_until(list.q_rows);
}

/// For every group of keys: the stretches of query rows whose interval of groups holds it. Rows
/// come in order; work is done only where the interval changes.
class StretchTracker {
 public:
  explicit StretchTracker(size_t num_groups) : opened_(num_groups, 0), stretches_(num_groups) {}

  /// Row `row` holds groups [groups.begin, groups.end).
  void enter(int32_t row, Stretch groups) {
    if (groups.begin >= groups.end) groups = {};
    for_difference(held_, groups, [&](int32_t g) { stretches_[g].push_back({opened_[g], row}); });
    for_difference(groups, held_, [&](int32_t g) { opened_[g] = row; });
    held_ = groups;
  }

  const std::vector<Stretch>& stretches_of(size_t group) const { return stretches_[group]; }

 private:
  /// Groups of `a` that are not in `b`.
  template <class Visit>
  static void for_difference(Stretch a, Stretch b, Visit visit) {
    for (int32_t g = a.begin; g < std::min(a.end, b.begin); ++g) visit(g);
    for (int32_t g = std::max(a.begin, b.end); g < a.end; ++g) visit(g);
  }

  Stretch held_;
  std::vector<int32_t> opened_;                  // [group] first row of the open stretch
  std::vector<std::vector<Stretch>> stretches_;  // [group]
};

/// Stretches of query rows for every group of keys.
struct KeyGroupWalks {
  StretchTracker touched;  // rows that see a key of the group
  StretchTracker whole;    // rows that see every key of it

  KeyGroupWalks(const TileList& list, int32_t set, size_t num_groups)
      : touched(num_groups), whole(num_groups) {
    const int32_t rows = list.shape.rows_of_group();
    const KeyRange* ranges = list.ranges.data() + int64_t{set} * list.q_rows;
    for (int32_t q = 0; q < list.q_rows; ++q) {
      const KeyRange& range = ranges[q];
      const bool sees_any = range.lo < range.hi;
      touched.enter(q, sees_any ? Stretch{range.lo / rows, (range.hi - 1) / rows + 1} : Stretch{});
      // The last group is whole when all keys that exist are seen.
      const int32_t end = range.hi == list.kv_rows ? (range.hi + rows - 1) / rows : range.hi / rows;
      whole.enter(q, sees_any ? Stretch{(range.lo + rows - 1) / rows, end} : Stretch{});
    }
    touched.enter(list.q_rows, {});
    whole.enter(list.q_rows, {});
  }
};

/// cuts: as in append_walk.
void make_key_tiles(const std::vector<int32_t>& cuts, TileList& list) {
  const int32_t owned = list.shape.owned_rows, group_rows = list.shape.rows_of_group();
  const size_t num_groups = static_cast<size_t>((list.kv_rows + group_rows - 1) / group_rows);
  std::vector<KeyGroupWalks> walks;
  for (int32_t set = 0; set < list.num_range_sets; ++set) walks.emplace_back(list, set, num_groups);
  std::vector<GroupView> groups;
  for (int32_t first = 0; first < list.kv_rows; first += owned) {
    OwnedTile tile{first, std::min(list.kv_rows, first + owned),
                   static_cast<int32_t>(list.runs.size()), 0};
    for (int32_t set = 0; set < list.num_range_sets; ++set) {
      groups.clear();
      for (int32_t key = first; key < tile.end; key += group_rows) {
        const auto g = static_cast<size_t>(key / group_rows);
        groups.push_back({walks[set].touched.stretches_of(g), walks[set].whole.stretches_of(g)});
      }
      append_walk(groups, set, cuts, list);
    }
    tile.num_runs = static_cast<int32_t>(list.runs.size()) - tile.first_run;
    list.tiles.push_back(tile);
  }
}

int32_t count_tiles(const TileRun& run, const TileShape& shape) {
  const int32_t walked = shape.walked_rows;
  const int32_t origin = shape.by_blocks ? run.begin / walked * walked : run.begin;
  return (run.end - origin + walked - 1) / walked;
}

/// Counts the tiles that each owned tile walks. Returns those that its groups do.
std::vector<int64_t> count_walked_tiles(TileList& list) {
  std::vector<int64_t> cost(list.tiles.size(), 0);
  for (size_t t = 0; t < list.tiles.size(); ++t) {
    for (int32_t r = 0; r < list.tiles[t].num_runs; ++r) {
      const TileRun& run = list.runs[list.tiles[t].first_run + r];
      list.tiles[t].num_tiles += count_tiles(run, list.shape);
      const int32_t busy =
          list.shape.num_groups() - std::popcount(static_cast<uint16_t>(run.idle_groups));
      cost[t] += int64_t{busy} * count_tiles(run, list.shape);
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

/// By blocks: how many chains are dealt at a time. A chain is the tiles of a document and a walked
/// head; its CTAs come to the same rows one behind the other. Of few chains many CTAs wait for each
/// other; of many, each brings the rows that it walks from memory for itself, which takes power
/// away from the products. num_tiles: walked by all heads, of one document; its CTAs wait when the
/// first chains begin, so there are as few as keep that to a 90th of the time.
int32_t chains_at_once(int64_t num_tiles, bool has_documents) {
  constexpr int32_t kFewest = 4, kMost = 16;
  if (has_documents) return kMost;
  // On a Hopper; a CTA begins a hand-over, 1.3 times what a tile takes, behind the one before.
  constexpr int64_t kCtas = 132, kStartTiles = 117 * kCtas * kCtas;
  int32_t chains = kFewest;
  while (chains < kMost && chains * num_tiles < kStartTiles) chains *= 2;
  return chains;
}

/// The document that a tile is of: the one where its longest run begins. starts: of long documents;
/// short ones count as one with those before them.
size_t document_of(const OwnedTile& tile, const std::vector<int32_t>& starts,
                   const TileList& list) {
  if (tile.num_runs == 0) return 0;
  const auto first = list.runs.begin() + tile.first_run;
  const auto longest = std::max_element(
      first, first + tile.num_runs,
      [](const TileRun& a, const TileRun& b) { return a.end - a.begin < b.end - b.begin; });
  return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), longest->begin) -
                             starts.begin());
}

/// The tiles of `order` document by document, the one that comes first there first, `at_once` of
/// them in turns. starts: of long documents.
std::vector<int32_t> order_by_documents(std::span<const int32_t> order, size_t at_once,
                                        const std::vector<int32_t>& starts, const TileList& list) {
  std::vector<std::vector<int32_t>> tiles(starts.size() + 1);  // [document], the last one first
  std::vector<size_t> waiting;                                 // documents, the last one first
  std::vector<size_t> documents(order.size());                 // [place in order]
  for (size_t i = order.size(); i-- > 0;) {
    documents[i] = document_of(list.tiles[order[i]], starts, list);
    tiles[documents[i]].push_back(order[i]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    if (tiles[documents[i]].back() == order[i]) waiting.push_back(documents[i]);
  }
  std::vector<size_t> open;
  std::vector<int32_t> result;
  while (result.size() < order.size()) {
    for (; open.size() < at_once && !waiting.empty(); waiting.pop_back())
      open.push_back(waiting.back());
    for (const size_t d : open) {
      result.push_back(tiles[d].back());
      tiles[d].pop_back();
    }
    std::erase_if(open, [&](size_t d) { return tiles[d].empty(); });
  }
  return result;
}

/// Longest tiles first inside each section of heads; then, of all heads, the short ones. starts: of
/// long documents, by blocks.
void order_work(const HeadSections& heads, TileOwner owner, const std::vector<int32_t>& starts,
                TileList& list) {
  const std::vector<int64_t> cost = count_walked_tiles(list);
  for (const int64_t tiles : cost)
    list.visited_cells += tiles * list.shape.walked_rows * list.shape.rows_of_group();
  std::vector<int32_t> order(list.tiles.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return cost[a] > cost[b]; });
  const size_t kept = count_dealt_in_sections(order, cost);
  int32_t section = std::max(1, heads.heads_per_section);
  if (list.shape.by_blocks) {
    const int64_t num_tiles = std::accumulate(cost.begin(), cost.end(), int64_t{0}) *
                              heads.num_heads * heads.heads_walked;
    const int32_t chains = chains_at_once(num_tiles, !starts.empty() && starts.back() > 0);
    section = std::clamp(heads.num_heads, 1, chains);
    const int32_t documents = std::max(1, chains / (section * heads.heads_walked));
    const std::vector<int32_t> first = order_by_documents(
        std::span(order).first(kept), static_cast<size_t>(documents), starts, list);
    std::copy(first.begin(), first.end(), order.begin());
  }
  const auto deal = [&](size_t begin, size_t end, int32_t first_head, int32_t end_head) {
    for (size_t i = begin; i < end; ++i) {
      for (int32_t head = first_head; head < end_head; ++head)
        list.work.push_back({order[i], head});
    }
  };
  for (int32_t first = 0; first < heads.num_heads; first += section)
    deal(0, kept, first, std::min(heads.num_heads, first + section));
  deal(kept, order.size(), 0, heads.num_heads);
  if (!list.shape.by_blocks) return;
  BlockParts(owner, list).deal(order, list);
  collect_gaps(owner, list);
}

}  // namespace

TileList make_tile_list(std::span<const BandSlice> slices, int64_t q_rows, int64_t kv_rows,
                        const HeadSections& heads, TileShape shape, TileOwner owner) {
  TileList list;
  list.shape = shape;
  list.q_rows = static_cast<int32_t>(q_rows);
  list.kv_rows = static_cast<int32_t>(kv_rows);
  collect_ranges(slices, list);
  const bool owns_queries = owner == TileOwner::queries;
  // Groups of rows may rest where they do not meet the other document.
  const bool stops_at_documents = owns_queries ? shape.group_rows == 0 : shape.by_blocks;
  const std::vector<Stretch> long_documents =
      stops_at_documents ? find_long_documents(list) : std::vector<Stretch>{};
  std::vector<int32_t> starts;
  for (const Stretch& document : long_documents) starts.push_back(document.begin);
  owns_queries ? make_query_tiles(long_documents, list) : make_key_tiles(starts, list);
  order_work(heads, owner, starts, list);
  return list;
}

}  // namespace cpscope::kernels
