#pragma once

#include "gui/model/pair_map.h"
#include "gui/model/target.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The ranks and steps that compute the pairs of a cell.
struct CellWork {
  int32_t first_step = -1, last_step = -1;  // of the pass; -1: no pair of the cell is computed
  int32_t first_rank = -1, last_rank = -1;  // lowest and highest rank
  int64_t item = kNoItem;  // the compute item, if the pass has only one for this cell
  // Steps between first and last without work, the longest row of such: where a ring ends next to
  // where it begins, a cell has work in a few of the first and of the last steps.
  int32_t gap_begin = 0, gap_end = 0;

  static constexpr int64_t kNoItem = -1;
  static constexpr int64_t kManyItems = -2;

  bool has_work() const { return first_step >= 0; }
  bool has_one_rank() const { return first_rank == last_rank; }
  friend bool operator==(const CellWork&, const CellWork&) = default;
};

/// "computed by rank 2 in steps 1 to 3"; there must be work. Steps count from 1.
std::string describe_work(const CellWork& work, Direction direction);

/// The work of all cells, [row][column].
struct WorkMap {
  std::vector<CellWork> cells;
  /// 1: exact. More: blocks of this many x this many cells share their work, so the steps and ranks
  /// of a cell may be a superset of its own ("mixed").
  int64_t coarseness = 1;
};

/// Finds the work of the compute items of a pass on the cells of a grid, including strided runs: a
/// cell has an item if the item computes a pair of it. `counts` are the visible pairs of the cells.
/// Cells may be touched kMostTouches times in total; beyond that, the work is found on coarser
/// cells.
WorkMap find_work(const PlanIndex& index, const PairGrid& grid, const std::vector<int64_t>& counts,
                  Direction direction);

inline constexpr int64_t kMostTouches = 24'000'000;

/// A part of a compute item whose rows and columns are arithmetic runs of ids: query q.at(i) sees
/// key k.at(j) if and only if lo <= j - i <= hi.
struct WorkBand {
  TokenRun q, k;
  int64_t lo = 0, hi = 0;
};

/// The parts of one compute item that touch the rectangle of ids, at most `most` of them. Returns
/// true if those are all.
bool cut_item(const PlanIndex& index, const ComputeItem& item, const PairRange& inside, size_t most,
              std::vector<WorkBand>& bands);

}  // namespace cpscope::gui
