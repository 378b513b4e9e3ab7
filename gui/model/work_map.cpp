#include "gui/model/work_map.h"

#include <algorithm>
#include <optional>
#include <span>

namespace cpscope::gui {
namespace {

struct IdRange {
  int64_t begin, end;
};

/// Places i of the run with ids in the range: [first, second).
IdRange places_in(const TokenRun& run, IdRange ids) {
  const auto place = [&](int64_t id) {
    if (id <= run.begin) return int64_t{0};
    const int64_t ahead = id - run.begin;
    const int64_t steps = run.stride == 1 ? ahead : (ahead + run.stride - 1) / run.stride;
    return std::min(run.count(), steps);
  };
  return {place(ids.begin), place(ids.end)};
}

/// Ids of the run at places [from, to).
TokenRun places_of(const TokenRun& run, int64_t from, int64_t to) {
  return {run.at(from), run.at(to - 1) + 1, run.stride};
}

/// A run list, with the row at which each run begins, and whether the axis sees any of it.
struct ListRows {
  std::span<const TokenRun> runs;
  std::vector<int64_t> rows;  // [run + 1]
  bool is_seen = false;

  size_t run_of_row(int64_t row) const {
    if (runs.size() == 1) return 0;
    return static_cast<size_t>(std::upper_bound(rows.begin(), rows.end(), row) - rows.begin()) - 1;
  }
};

/// Run lists of the plan on one side, looked through once each.
class ListCache {
 public:
  ListCache(const Plan& plan, IdRange seen)
      : plan_(plan), seen_(seen), entries_(plan.run_lists.size()) {}

  const ListRows& of(RunListId id) {
    std::optional<ListRows>& entry = entries_[static_cast<size_t>(to_index(id))];
    if (!entry) entry = look(plan_.list(id));
    return *entry;
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
  std::vector<std::optional<ListRows>> entries_;
};

/// Cuts items into bands over pairs of runs, inside a rectangle of ids.
class ItemCutter {
 public:
  ItemCutter(const Plan& plan, IdRange q, IdRange k)
      : plan_(plan), q_(q), k_(k), q_lists_(plan, q), k_lists_(plan, k) {}

  /// Calls look(band) until it answers false; returns whether it never did.
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

/// Paints bands over cells and counts what that costs.
class Painter {
 public:
  Painter(const PairGrid& grid, std::vector<CellWork>& cells)
      : grid_(grid),
        cells_(cells),
        least_q_(grid.q.least_width()),
        least_k_(grid.k.least_width()) {}

  /// Whose pairs the next bands are.
  void begin_item(int32_t step, int32_t rank, int64_t item) {
    step_ = step;
    rank_ = rank;
    item_ = item;
  }

  bool paint(const WorkBand& band) {
    const int64_t rows = band.q.count();
    for (int64_t i = 0; i < rows;) {
      const int64_t row = grid_.q.cell_of(band.q.at(i));
      const int64_t end = places_in(band.q, {0, grid_.q.edges[row + 1]}).end;
      // Neighbouring rows see columns that overlap or touch: together they see one interval.
      const int64_t from = std::max<int64_t>(0, i + band.lo);
      const int64_t to = std::min(band.k.count(), end + band.hi);
      if (from < to) paint_row(row, places_of(band.k, from, to));
      i = end;
      if (touches_ > kMostTouches) return false;
    }
    return true;
  }

 private:
  void paint_row(int64_t row, const TokenRun& keys) {
    CellWork* cells = cells_.data() + grid_.at(row, 0);
    if (keys.stride <= least_k_) {
      // No cell between the first and the last is stepped over.
      const int64_t last = grid_.k.cell_of(keys.end - 1);
      for (int64_t c = grid_.k.cell_of(keys.begin); c <= last; ++c) touch(cells[c]);
      return;
    }
    for (int64_t id = keys.begin; id < keys.end; id += keys.stride)
      touch(cells[grid_.k.cell_of(id)]);
  }

  void touch(CellWork& cell) {
    ++touches_;
    if (!cell.has_work()) {
      cell = {step_, step_, rank_, rank_, item_};
      return;
    }
    cell.first_step = std::min(cell.first_step, step_);
    cell.last_step = std::max(cell.last_step, step_);
    cell.first_rank = std::min(cell.first_rank, rank_);
    cell.last_rank = std::max(cell.last_rank, rank_);
    if (cell.item != item_) cell.item = CellWork::kManyItems;
  }

  const PairGrid& grid_;
  std::vector<CellWork>& cells_;
  int64_t least_q_, least_k_;
  int64_t touches_ = 0;
  int32_t step_ = 0, rank_ = 0;
  int64_t item_ = 0;
};

/// Every `by`-th edge, and the last.
CellAxis coarsen(const CellAxis& axis, int64_t by) {
  CellAxis coarse;
  for (int64_t c = 0; c < axis.count(); c += by) coarse.edges.push_back(axis.edges[c]);
  coarse.edges.push_back(axis.end());
  return coarse;
}

/// The share of the items that was painted before the cells had been touched too often, 1 if all.
double paint_pass(const PlanIndex& index, bool is_backward, const PairGrid& grid,
                  std::vector<CellWork>& cells) {
  cells.assign(static_cast<size_t>(grid.cells()), {});
  ItemCutter cutter(index.plan(), {grid.q.begin(), grid.q.end()}, {grid.k.begin(), grid.k.end()});
  Painter painter(grid, cells);
  const std::vector<ComputeItem>& items = index.pass(is_backward).computes;
  for (size_t i = 0; i < items.size(); ++i) {
    painter.begin_item(to_index(items[i].step), to_index(items[i].rank), static_cast<int64_t>(i));
    if (!cutter.cut(items[i], [&](const WorkBand& band) { return painter.paint(band); }))
      return static_cast<double>(i) / static_cast<double>(items.size());
  }
  return 1.0;
}

/// So many cells to a side of a block that `touches` become kMostTouches, if work fills cells.
int64_t coarseness_for(double touches) {
  int64_t by = 2;
  while (touches / static_cast<double>(by * by) > 0.5 * kMostTouches) by *= 2;
  return by;
}

/// So many cells to a side of a block that `bands` bands cannot touch blocks kMostTouches times.
int64_t sure_coarseness(const PairGrid& grid, int64_t bands) {
  const int64_t longest = std::max(grid.rows(), grid.columns());
  int64_t by = 2;
  const auto blocks = [&] { return (longest + by - 1) / by; };
  while (by < longest && blocks() * blocks() * bands > kMostTouches) by *= 2;
  return by;
}

/// What is known without looking: any step, any rank.
CellWork anything(const PlanIndex& index, bool is_backward) {
  return {0, std::max(0, index.pass(is_backward).num_steps - 1), 0, index.num_ranks() - 1,
          CellWork::kManyItems};
}

}  // namespace

WorkMap find_work(const PlanIndex& index, const PairGrid& grid, const std::vector<int64_t>& counts,
                  bool is_backward) {
  WorkMap map;
  if (grid.cells() == 0) return map;
  const double painted = paint_pass(index, is_backward, grid, map.cells);
  if (painted >= 1.0) return map;
  // Once more over cells that a sample of the work says are wide enough, then over so few that
  // nothing can touch them too often.
  const int64_t likely = coarseness_for(kMostTouches / std::max(painted, 1e-9));
  const auto bands = static_cast<int64_t>(index.plan().slices.size());
  std::vector<CellWork> blocks;
  PairGrid coarse;
  bool is_painted = false;
  for (const int64_t by : {likely, sure_coarseness(grid, bands)}) {
    map.coarseness = by;
    coarse = {coarsen(grid.q, by), coarsen(grid.k, by)};
    is_painted = paint_pass(index, is_backward, coarse, blocks) >= 1.0;
    if (is_painted) break;
  }
  if (!is_painted) blocks.assign(blocks.size(), anything(index, is_backward));
  for (int64_t row = 0; row < grid.rows(); ++row) {
    for (int64_t column = 0; column < grid.columns(); ++column) {
      CellWork& cell = map.cells[grid.at(row, column)];
      cell = {};
      if (counts[grid.at(row, column)] > 0)
        cell = blocks[coarse.at(row / map.coarseness, column / map.coarseness)];
    }
  }
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
