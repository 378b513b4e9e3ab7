#include "gui/model/item_tiles.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

/// Tiles of one axis: all have `edge` rows except the last.
struct TileAxis {
  int64_t rows, edge;

  int64_t count() const { return (rows + edge - 1) / edge; }
  int64_t begin(int64_t tile) const { return tile * edge; }
  int64_t end(int64_t tile) const { return std::min(rows, (tile + 1) * edge); }
};

/// The pairs of one tile that belong to one band; bands have no pair in common, so shares add up.
struct Share {
  int64_t tile, pairs;
};

struct Counter {
  TileAxis q, k;
  ItemTiles tiles;
  std::vector<Share> rim;

  void add_full(int64_t row, int64_t first, int64_t end) {
    if (first >= end) return;
    const int64_t columns = k.end(end - 1) - k.begin(first);
    tiles.full += end - first;
    tiles.computed_pairs += columns * (q.end(row) - q.begin(row));
  }
  void add_rim(const Band& band, int64_t row, int64_t first, int64_t end) {
    for (int64_t column = first; column < end; ++column) {
      const int64_t pairs =
          count_pairs_in_tile(band, q.begin(row), q.end(row), k.begin(column), k.end(column));
      if (pairs > 0) rim.push_back({row * k.count() + column, pairs});
    }
  }
  /// Adds one row of tiles under one band.
  void add_row(const Band& band, int64_t row) {
    const int64_t q0 = std::max(band.q0, q.begin(row)), q1 = std::min(band.q1, q.end(row));
    // Columns that some of the rows see, and columns that all of the rows see.
    const int64_t first = std::max(band.k0, band.k0 + (q0 - band.q0) + band.lo);
    const int64_t last = std::min(band.k1, band.k0 + (q1 - 1 - band.q0) + band.hi + 1);
    if (first >= last) return;
    int64_t all_first = std::max(band.k0, band.k0 + (q1 - 1 - band.q0) + band.lo);
    int64_t all_last = std::min(band.k1, band.k0 + (q0 - band.q0) + band.hi + 1);
    if (q0 != q.begin(row) || q1 != q.end(row)) all_last = all_first = first;
    const int64_t touched = first / k.edge, touched_end = (last - 1) / k.edge + 1;
    int64_t full = (all_first + k.edge - 1) / k.edge;
    int64_t full_end = all_last == k.rows ? k.count() : all_last / k.edge;
    if (full >= full_end) full = full_end = touched;
    add_full(row, full, full_end);
    add_rim(band, row, touched, full);
    add_rim(band, row, full_end, touched_end);
  }
  void finish() {
    std::sort(rim.begin(), rim.end(),
              [](const Share& a, const Share& b) { return a.tile < b.tile; });
    for (size_t i = 0; i < rim.size();) {
      const int64_t tile = rim[i].tile, row = tile / k.count(), column = tile % k.count();
      int64_t pairs = 0;
      for (; i < rim.size() && rim[i].tile == tile; ++i) pairs += rim[i].pairs;
      const int64_t area = (q.end(row) - q.begin(row)) * (k.end(column) - k.begin(column));
      (pairs == area ? tiles.full : tiles.partial) += 1;
      tiles.computed_pairs += area;
    }
    tiles.empty = q.count() * k.count() - tiles.full - tiles.partial;
  }
};

}  // namespace

ItemTiles count_item_tiles(const Plan& plan, const ComputeItem& item, int64_t edge) {
  Counter counter{{plan.rows(item.q_tokens), edge}, {plan.rows(item.kv_tokens), edge}, {}, {}};
  counter.tiles.edge = edge;
  for (const BandSlice& slice : plan.slices_of(item)) {
    const Band band = slice;
    counter.tiles.visible_pairs += count_pairs(band);
    for (int64_t row = band.q0 / edge; row * edge < band.q1; ++row) {
      counter.add_row(band, row);
      if (static_cast<int64_t>(counter.rim.size()) > kMostItemRimTiles) return {};
    }
  }
  counter.finish();
  return counter.tiles;
}

}  // namespace cpscope::gui
