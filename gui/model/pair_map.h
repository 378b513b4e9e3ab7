#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// One axis cut into cells: cell c holds the ids [edges[c], edges[c + 1]). Ascending, at least two
/// edges unless the axis is empty.
struct CellAxis {
  std::vector<int64_t> edges;

  int64_t count() const { return edges.empty() ? 0 : static_cast<int64_t>(edges.size()) - 1; }
  int64_t begin() const { return edges.empty() ? 0 : edges.front(); }
  int64_t end() const { return edges.empty() ? 0 : edges.back(); }
  int64_t width(int64_t cell) const { return edges[cell + 1] - edges[cell]; }
  /// The smallest width of a cell.
  int64_t least_width() const;
  /// The cell that contains an id of [begin(), end()).
  int64_t cell_of(int64_t id) const;
};

/// Cuts [begin, end) into `cells` cells of nearly equal width, or into one for each id if there are
/// fewer ids.
CellAxis cut_evenly(int64_t begin, int64_t end, int64_t cells);

/// Query ids (rows) x key ids (columns), packed and padded, cut into cells.
struct PairGrid {
  CellAxis q, k;

  int64_t rows() const { return q.count(); }
  int64_t columns() const { return k.count(); }
  int64_t cells() const { return rows() * columns(); }
  int64_t at(int64_t row, int64_t column) const { return row * columns() + column; }
  int64_t area(int64_t row, int64_t column) const { return q.width(row) * k.width(column); }
};

/// Visible pairs of one head in each cell, [row][column], from the mask alone. Closed forms: the
/// work is proportional to bands x cells that they touch.
std::vector<int64_t> count_cells(const PlanIndex& index, const PairGrid& grid);

/// padding: no pair of the cell has a token on both sides. empty: no pair is visible. full: all
/// pairs of tokens are visible; padding beside them is left out of the work, not masked.
enum class CellClass : uint8_t { empty, partial, full, padding };

/// The number of valid tokens in each cell of one axis.
std::vector<int64_t> count_tokens(const PlanIndex& index, Side side, const CellAxis& axis);

/// Computes the classes of all cells from their counts.
std::vector<CellClass> classify_cells(const PlanIndex& index, const PairGrid& grid,
                                      const std::vector<int64_t>& counts);

/// The tiles of a kernel with edge x edge tiles over the packed padded ids, and their waste.
struct TileCount {
  int64_t edge = 0;
  int64_t full = 0, partial = 0, empty = 0;  // tiles
  int64_t visible_pairs = 0;                 // pairs of one head
  int64_t wasted_pairs = 0;                  // pairs of full and partial tiles that are not visible
  int64_t padding_pairs = 0;                 // wasted pairs with padding on a side

  double wasted_share() const {
    const int64_t computed = visible_pairs + wasted_pairs;
    return computed == 0 ? 0.0 : static_cast<double>(wasted_pairs) / static_cast<double>(computed);
  }
};

/// Counts the tiles of the whole square without visiting full or empty ones. Work and memory are
/// proportional to the tiles on the edges of bands; beyond kMostRimTiles of them it gives up (edge
/// = 0).
TileCount count_tiles(const PlanIndex& index, int64_t edge);

inline constexpr int64_t kMostRimTiles = 20'000'000;

}  // namespace cpscope::gui
