#include "gui/model/pair_map.h"

#include "sim/base/check.h"

#include <algorithm>

namespace cpscope::gui {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Calls look(band) with every band of the mask, shifted to packed padded ids.
template <class Look>
void for_each_band(const PlanIndex& index, Look look) {
  const auto& sequences = index.plan().layout.slots.sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (Band band : index.mask().of_sequence(static_cast<int64_t>(s))) {
      band.q0 += sequences[s].q_valid_begin();
      band.q1 += sequences[s].q_valid_begin();
      band.k0 += sequences[s].kv_valid_begin();
      band.k1 += sequences[s].kv_valid_begin();
      look(band);
    }
  }
}

/// Cells of `edge` ids each; the last may be narrower.
CellAxis cut_by(int64_t edge, int64_t ids) {
  CellAxis axis;
  for (int64_t id = 0; id < ids; id += edge) axis.edges.push_back(id);
  if (ids > 0) axis.edges.push_back(ids);
  return axis;
}

/// A tile on the edge of a band, and how many of its pairs that band shows.
struct RimTile {
  int64_t row, column, pairs;
};

/// Visits full tiles and edge tiles of one band.
class TileWalk {
 public:
  TileWalk(const PlanIndex& index, int64_t edge)
      : edge_(edge), q_(index.tokens(Side::q)), k_(index.tokens(Side::kv)) {}

  void add(const Band& band) {
    const int64_t last = (band.q1 - 1) / edge_;
    for (int64_t row = band.q0 / edge_; row <= last && !is_too_much(); ++row) {
      const int64_t q0 = row * edge_, q1 = std::min(q_, q0 + edge_);
      const Band part = clip(band, q0, q1, band.k0, band.k1);
      if (part.q1 > 0) add_row(row, q1 - q0, part);
    }
  }
  bool is_too_much() const { return static_cast<int64_t>(rim_.size()) > kMostRimTiles; }
  int64_t full() const { return full_; }
  std::vector<RimTile>& rim() { return rim_; }

 private:
  void add_row(int64_t row, int64_t height, const Band& part) {
    const int64_t begin = part.k0 / edge_, end = ceil_div(part.k1, edge_);
    // Columns that all rows of the tile see: from the last row's first to the first row's last.
    int64_t full_begin = end, full_end = end;
    if (part.q1 - part.q0 == height) {
      const int64_t from = columns_of_row(part, part.q1 - 1).begin;
      const int64_t to = columns_of_row(part, part.q0).end;
      // The last tile of the square may be narrower.
      const int64_t whole = to == k_ ? ceil_div(k_, edge_) : to / edge_;
      full_begin = std::min(end, ceil_div(from, edge_));
      full_end = std::max(full_begin, whole);
    }
    full_ += full_end - full_begin;
    for (int64_t column = begin; column < end && !is_too_much(); ++column) {
      if (column == full_begin && full_end > full_begin) {
        column = full_end - 1;
        continue;
      }
      const int64_t k0 = column * edge_;
      const int64_t pairs = count_pairs_in_tile(part, part.q0, part.q1, k0, k0 + edge_);
      if (pairs > 0) rim_.push_back({row, column, pairs});
    }
  }

  int64_t edge_, q_, k_;
  int64_t full_ = 0;
  std::vector<RimTile> rim_;
};

}  // namespace

int64_t CellAxis::least_width() const {
  int64_t least = end() - begin();
  for (int64_t cell = 0; cell < count(); ++cell) least = std::min(least, width(cell));
  return least;
}

int64_t CellAxis::cell_of(int64_t id) const {
  const int64_t cells = count();
  // Nearly all axes are cut evenly: guess first, and search only when the guess is wrong.
  const int64_t guess =
      std::clamp<int64_t>((id - begin()) * cells / (end() - begin()), 0, cells - 1);
  for (int64_t cell = guess; cell <= guess + 1 && cell < cells; ++cell) {
    if (edges[cell] <= id && id < edges[cell + 1]) return cell;
  }
  return std::upper_bound(edges.begin(), edges.end(), id) - edges.begin() - 1;
}

CellAxis cut_evenly(int64_t begin, int64_t end, int64_t cells) {
  CellAxis axis;
  if (end <= begin || cells <= 0) return axis;
  cells = std::min(cells, end - begin);
  axis.edges.reserve(static_cast<size_t>(cells) + 1);
  for (int64_t c = 0; c <= cells; ++c) axis.edges.push_back(begin + (end - begin) * c / cells);
  return axis;
}

std::vector<int64_t> count_cells(const PlanIndex& index, const PairGrid& grid) {
  std::vector<int64_t> counts(static_cast<size_t>(grid.cells()), 0);
  if (counts.empty()) return counts;
  for_each_band(index, [&](const Band& whole) {
    const Band band = clip(whole, grid.q.begin(), grid.q.end(), grid.k.begin(), grid.k.end());
    if (band.q1 == 0) return;
    const int64_t last_row = grid.q.cell_of(band.q1 - 1);
    for (int64_t row = grid.q.cell_of(band.q0); row <= last_row; ++row) {
      const Band part = clip(band, grid.q.edges[row], grid.q.edges[row + 1], band.k0, band.k1);
      if (part.q1 == 0) continue;
      const int64_t last = grid.k.cell_of(part.k1 - 1);
      for (int64_t column = grid.k.cell_of(part.k0); column <= last; ++column)
        counts[grid.at(row, column)] += count_pairs_in_tile(
            part, part.q0, part.q1, grid.k.edges[column], grid.k.edges[column + 1]);
    }
  });
  return counts;
}

std::vector<int64_t> count_tokens(const PlanIndex& index, Side side, const CellAxis& axis) {
  std::vector<int64_t> tokens(static_cast<size_t>(axis.count()), 0);
  for (const SequenceSlot& slot : index.plan().layout.slots.sequences) {
    const int64_t begin = std::max(slot.side(side).valid_begin(), axis.begin());
    const int64_t end = std::min(slot.side(side).valid_end(), axis.end());
    if (begin >= end) continue;
    const int64_t last = axis.cell_of(end - 1);
    for (int64_t cell = axis.cell_of(begin); cell <= last; ++cell)
      tokens[cell] += std::min(end, axis.edges[cell + 1]) - std::max(begin, axis.edges[cell]);
  }
  return tokens;
}

std::vector<CellClass> classify_cells(const PlanIndex& index, const PairGrid& grid,
                                      const std::vector<int64_t>& counts) {
  const std::vector<int64_t> q_tokens = count_tokens(index, Side::q, grid.q);
  const std::vector<int64_t> k_tokens = count_tokens(index, Side::kv, grid.k);
  std::vector<CellClass> classes(counts.size(), CellClass::empty);
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      const int64_t count = counts[grid.at(row, column)];
      CellClass& into = classes[grid.at(row, column)];
      if (count > 0 && count == q_tokens[row] * k_tokens[column]) {
        into = CellClass::full;
      } else if (count > 0) {
        into = CellClass::partial;
      } else if (q_tokens[row] == 0 || k_tokens[column] == 0) {
        into = CellClass::padding;
      }
    }
  }
  return classes;
}

TileCount count_tiles(const PlanIndex& index, int64_t edge) {
  CPSCOPE_CHECK(edge > 0, "a tile has rows and columns", edge, 1);
  const int64_t q = index.tokens(Side::q), k = index.tokens(Side::kv);
  TileWalk walk(index, edge);
  for_each_band(index, [&](const Band& band) {
    if (!walk.is_too_much()) walk.add(tighten(band));
  });
  if (walk.is_too_much()) return {};
  TileCount tiles;
  tiles.edge = edge;
  tiles.full = walk.full();
  tiles.visible_pairs = index.count_visible(0, q, 0, k);
  std::vector<RimTile>& rim = walk.rim();
  std::sort(rim.begin(), rim.end(), [](const RimTile& a, const RimTile& b) {
    return a.row != b.row ? a.row < b.row : a.column < b.column;
  });
  const std::vector<int64_t> q_tokens = count_tokens(index, Side::q, cut_by(edge, q));
  const std::vector<int64_t> k_tokens = count_tokens(index, Side::kv, cut_by(edge, k));
  for (size_t i = 0; i < rim.size();) {
    const RimTile tile = rim[i];
    int64_t pairs = 0;
    // Several bands can share a tile, and together make it full.
    for (; i < rim.size() && rim[i].row == tile.row && rim[i].column == tile.column; ++i)
      pairs += rim[i].pairs;
    const int64_t area =
        std::min(edge, q - tile.row * edge) * std::min(edge, k - tile.column * edge);
    (pairs == area ? tiles.full : tiles.partial) += 1;
    tiles.wasted_pairs += area - pairs;
    tiles.padding_pairs += area - q_tokens[tile.row] * k_tokens[tile.column];
  }
  tiles.empty = ceil_div(q, edge) * ceil_div(k, edge) - tiles.full - tiles.partial;
  return tiles;
}

}  // namespace cpscope::gui
