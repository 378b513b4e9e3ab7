#include "gui/model/mask/work_map.h"

#include "gui/model/list_hits.h"
#include "sim/base/id_vector.h"

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace cpscope::gui {
namespace {

constexpr size_t kSampledItems = 4096;

/// Positions i of the run with ids in the range: [first, second).
IdRange places_in(const TokenRun& run, IdRange ids) {
  const auto place = [&](int64_t id) {
    if (id <= run.begin) return int64_t{0};
    const int64_t ahead = id - run.begin;
    const int64_t steps = run.stride == 1 ? ahead : (ahead + run.stride - 1) / run.stride;
    return std::min(run.count(), steps);
  };
  return {place(ids.begin), place(ids.end)};
}

/// The ids of the run at positions [from, to).
TokenRun places_of(const TokenRun& run, int64_t from, int64_t to) {
  return {run.at(from), run.at(to - 1) + 1, run.stride};
}

/// A run list with the first row of each run, and whether the axis shows any part of it.
struct ListRows {
  std::span<const TokenRun> runs;
  std::vector<int64_t> rows;  // [run + 1]
  bool is_seen = false;

  size_t run_of_row(int64_t row) const {
    if (runs.size() == 1) return 0;
    return static_cast<size_t>(std::upper_bound(rows.begin(), rows.end(), row) - rows.begin()) - 1;
  }
};

/// Caches run lists of the plan on one side; each is checked once.
class ListCache {
 public:
  ListCache(const Plan& plan, IdRange seen) : plan_(plan), seen_(seen) {}

  const ListRows& of(RunListId id) {
    if (id == first_id_) return first_;
    // The array for all lists is made when a second list comes: for one item it would be expensive.
    if (first_id_ == kNoTokens) {
      first_id_ = id;
      first_ = look(plan_.list(id));
      return first_;
    }
    if (places_.empty()) places_.assign(plan_.run_lists.size(), kUnknown);
    int32_t& place = places_[id];
    if (place == kUnknown) {
      ListRows rows = look(plan_.list(id));
      place = rows.is_seen ? static_cast<int32_t>(lists_.size()) : kUnseen;
      if (rows.is_seen) lists_.push_back(std::move(rows));
    }
    return place == kUnseen ? unseen_ : lists_[static_cast<size_t>(place)];
  }

 private:
  ListRows look(std::span<const TokenRun> runs) const {
    ListRows list;
    list.runs = runs;
    for (const TokenRun& run : runs) {
      const IdRange places = places_in(run, seen_);
      list.is_seen = list.is_seen || places.begin < places.end;
    }
    if (!list.is_seen) return list;
    list.rows.reserve(runs.size() + 1);
    list.rows.push_back(0);
    for (const TokenRun& run : runs) list.rows.push_back(list.rows.back() + run.count());
    return list;
  }

  const Plan& plan_;
  IdRange seen_;
  RunListId first_id_ = kNoTokens;  // the first list that was requested
  ListRows first_;
  static constexpr int32_t kUnknown = -1, kUnseen = -2;
  IdVector<RunListId, int32_t> places_;  // index in lists_
  std::deque<ListRows> lists_;  // lists in view; a deque, so that returned references stay valid
  ListRows unseen_;
};

/// Splits items into bands over pairs of runs, inside a rectangle of ids.
class ItemCutter {
 public:
  ItemCutter(const Plan& plan, IdRange q, IdRange k)
      : plan_(plan), q_(q), k_(k), q_lists_(plan, q), k_lists_(plan, k) {}

  /// False if item `i` of a pass cannot touch the rectangle. Checks only its packed keys: of a
  /// million items, few are in view.
  bool is_near(const ItemColumns& computes, size_t i) {
    const int32_t q = computes.q_key[i], k = computes.key[i];
    return q >= 0 && k >= 0 && q_lists_.of(RunListId{q / 2}).is_seen &&
           k_lists_.of(RunListId{k / 2}).is_seen;
  }
  /// Calls look(band) until it returns false; returns true if it never did.
  template <class Look>
  bool cut(const ComputeItem& item, Look look) {
    if (item.num_slices == 0) return true;
    const ListRows& q = q_lists_.of(item.q_tokens);
    const ListRows& k = k_lists_.of(item.kv_tokens);
    if (!q.is_seen || !k.is_seen) return true;
    for (const BandSlice& slice : plan_.slices_of(item)) {
      if (!cut_slice(q, k, slice, look)) return false;
    }
    return true;
  }

 private:
  template <class Look>
  bool cut_slice(const ListRows& q, const ListRows& k, const Band& slice, Look look) const {
    for (size_t a = q.run_of_row(slice.q0); a < q.runs.size() && q.rows[a] < slice.q1; ++a) {
      const IdRange rows = places_in(q.runs[a], q_);
      const int64_t q0 = q.rows[a] + rows.begin, q1 = q.rows[a] + rows.end;
      if (std::max(q0, slice.q0) >= std::min(q1, slice.q1)) continue;
      for (size_t b = k.run_of_row(slice.k0); b < k.runs.size() && k.rows[b] < slice.k1; ++b) {
        const IdRange columns = places_in(k.runs[b], k_);
        const Band part = clip(slice, q0, q1, k.rows[b] + columns.begin, k.rows[b] + columns.end);
        if (part.q1 == 0) continue;
        const WorkBand band{places_of(q.runs[a], part.q0 - q.rows[a], part.q1 - q.rows[a]),
                            places_of(k.runs[b], part.k0 - k.rows[b], part.k1 - k.rows[b]), part.lo,
                            part.hi};
        if (!look(band)) return false;
      }
    }
    return true;
  }

  const Plan& plan_;
  IdRange q_, k_;
  ListCache q_lists_, k_lists_;
};

/// Cells of a row that contain a run of keys.
struct TouchedCells {
  int64_t begin = 0, end = 0;
  bool is_every = true;  // false: only some of them, because the run's stride skips cells
};

/// Visits the cells that bands touch, row by row.
class CellWalk {
 public:
  explicit CellWalk(const PairGrid& grid) : grid_(grid), least_k_(grid.k.least_width()) {}

  /// Calls look(row, keys) with the rows of cells that a band touches and its keys there.
  template <class Look>
  void for_each_row(const WorkBand& band, Look look) const {
    const int64_t rows = band.q.count();
    for (int64_t i = 0; i < rows;) {
      const int64_t row = grid_.q.cell_of(band.q.at(i));
      const int64_t end = places_in(band.q, {0, grid_.q.edges[row + 1]}).end;
      // Neighbouring rows see columns that overlap or touch, so together they see one interval.
      const int64_t from = std::max<int64_t>(0, i + band.lo);
      const int64_t to = std::min(band.k.count(), end + band.hi);
      if (from < to) look(row, places_of(band.k, from, to));
      i = end;
    }
  }
  TouchedCells cells_of(const TokenRun& keys) const {
    return {grid_.k.cell_of(keys.begin), grid_.k.cell_of(keys.end - 1) + 1,
            keys.stride <= least_k_};
  }
  int64_t column_of(int64_t id) const { return grid_.k.cell_of(id); }

 private:
  const PairGrid& grid_;
  int64_t least_k_;
};

void touch(CellWork& cell, const CellWork& work) {
  if (!cell.has_work()) {
    cell = work;
    return;
  }
  // Items come by step, so that a gap is seen once, when it ends.
  if (work.first_step - cell.last_step - 1 > cell.gap_end - cell.gap_begin) {
    cell.gap_begin = cell.last_step + 1;
    cell.gap_end = work.first_step;
  }
  cell.first_step = std::min(cell.first_step, work.first_step);
  cell.last_step = std::max(cell.last_step, work.last_step);
  cell.first_rank = std::min(cell.first_rank, work.first_rank);
  cell.last_rank = std::max(cell.last_rank, work.last_rank);
  if (cell.item != work.item) cell.item = CellWork::kManyItems;
}

ItemCutter cutter_for(const PlanIndex& index, const PairGrid& grid) {
  return {index.plan(), {grid.q.begin(), grid.q.end()}, {grid.k.begin(), grid.k.end()}};
}

/// Estimates how often all items of a pass touch cells of the grid, from a sample of the items.
/// Stops counting when the number is certainly too large.
double estimate_touches(const PlanIndex& index, Direction direction, const PairGrid& grid) {
  const std::vector<ComputeItem>& items = index.pass(direction).computes;
  // Odd, so that all ranks of a ring with a power-of-two size are sampled.
  const size_t stride = (items.size() / kSampledItems) | 1;
  const double most = 2.0 * kMostTouches;
  ItemCutter cutter = cutter_for(index, grid);
  const CellWalk walk(grid);
  double touches = 0;
  const ItemColumns& columns = index.columns(direction, StageKind::compute);
  for (size_t i = 0; i < items.size() && touches <= most; i += stride) {
    if (!cutter.is_near(columns, i)) continue;
    cutter.cut(items[i], [&](const WorkBand& band) {
      walk.for_each_row(band, [&](int64_t, const TokenRun& keys) {
        const TouchedCells cells = walk.cells_of(keys);
        const int64_t count = cells.is_every ? cells.end - cells.begin : keys.count();
        touches += static_cast<double>(count) * static_cast<double>(stride);
      });
      return touches <= most;
    });
  }
  return touches;
}

/// Paints all items; returns false when cells are touched far more often than estimated.
bool paint_pass(const PlanIndex& index, Direction direction, const PairGrid& grid,
                std::vector<CellWork>& into) {
  into.assign(static_cast<size_t>(grid.cells()), {});
  ItemCutter cutter = cutter_for(index, grid);
  const CellWalk walk(grid);
  int64_t touches = 0;
  const std::vector<ComputeItem>& items = index.pass(direction).computes;
  const ItemColumns& columns = index.columns(direction, StageKind::compute);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!cutter.is_near(columns, i)) continue;
    const int32_t step = to_index(items[i].step), rank = to_index(items[i].rank);
    const CellWork work{step, step, rank, rank, static_cast<int64_t>(i)};
    const bool is_done = cutter.cut(items[i], [&](const WorkBand& band) {
      walk.for_each_row(band, [&](int64_t row, const TokenRun& keys) {
        CellWork* cells = into.data() + grid.at(row, 0);
        const TouchedCells touched = walk.cells_of(keys);
        touches += touched.is_every ? touched.end - touched.begin : keys.count();
        if (touched.is_every) {
          for (int64_t c = touched.begin; c < touched.end; ++c) touch(cells[c], work);
        } else {
          for (int64_t id = keys.begin; id < keys.end; id += keys.stride)
            touch(cells[walk.column_of(id)], work);
        }
      });
      return touches <= 4 * kMostTouches;
    });
    if (!is_done) return false;
  }
  return true;
}

/// Keeps every `by`-th edge, and the last.
CellAxis coarsen(const CellAxis& axis, int64_t by) {
  CellAxis coarse;
  for (int64_t c = 0; c < axis.count(); c += by) coarse.edges.push_back(axis.edges[c]);
  coarse.edges.push_back(axis.end());
  return coarse;
}

/// The answer without any search: any step, any rank.
CellWork anything(const PlanIndex& index, Direction direction) {
  return {0, std::max(0, index.pass(direction).num_steps - 1), 0, index.num_ranks() - 1,
          CellWork::kManyItems};
}

/// Gives cells with visible pairs the work of the block around them.
void spread_blocks(const PairGrid& grid, const std::vector<int64_t>& counts, const PairGrid& coarse,
                   const std::vector<CellWork>& blocks, WorkMap& map) {
  map.cells.assign(static_cast<size_t>(grid.cells()), {});
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      if (counts[grid.at(row, column)] > 0)
        map.cells[grid.at(row, column)] =
            blocks[coarse.at(row / map.coarseness, column / map.coarseness)];
    }
  }
}

}  // namespace

std::string describe_work(const CellWork& work, Direction direction) {
  const std::string ranks = work.has_one_rank()
                                ? fmt::format("rank {}", work.first_rank)
                                : fmt::format("ranks {} to {}", work.first_rank, work.last_rank);
  const std::string steps =
      work.first_step == work.last_step
          ? fmt::format("step {}", work.first_step + 1)
          : fmt::format("steps {} to {}", work.first_step + 1, work.last_step + 1);
  return fmt::format("computed by {} in {}{}", ranks, steps,
                     direction == Direction::backward ? " of the backward" : "");
}

WorkMap find_work(const PlanIndex& index, const PairGrid& grid, const std::vector<int64_t>& counts,
                  Direction direction) {
  WorkMap map;
  if (grid.cells() == 0) return map;
  const int64_t longest = std::max(grid.rows(), grid.columns());
  PairGrid coarse = grid;
  while (map.coarseness < longest && estimate_touches(index, direction, coarse) > kMostTouches) {
    map.coarseness *= 2;
    coarse = {coarsen(grid.q, map.coarseness), coarsen(grid.k, map.coarseness)};
  }
  std::vector<CellWork> blocks;
  if (!paint_pass(index, direction, coarse, blocks)) {
    map.coarseness = std::max<int64_t>(2, map.coarseness);
    coarse = {coarsen(grid.q, map.coarseness), coarsen(grid.k, map.coarseness)};
    blocks.assign(static_cast<size_t>(coarse.cells()), anything(index, direction));
  }
  if (map.coarseness == 1)
    map.cells = std::move(blocks);
  else
    spread_blocks(grid, counts, coarse, blocks, map);
  return map;
}

bool cut_item(const PlanIndex& index, const ComputeItem& item, const PairRange& inside, size_t most,
              std::vector<WorkBand>& bands) {
  ItemCutter cutter(index.plan(), {inside.q_begin, inside.q_end}, {inside.k_begin, inside.k_end});
  return cutter.cut(item, [&](const WorkBand& band) {
    if (bands.size() >= most) return false;
    bands.push_back(band);
    return true;
  });
}

}  // namespace cpscope::gui
