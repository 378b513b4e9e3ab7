#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cpscope::kernels {

/// Which reorder items of a pass need no pass over memory of their own.
enum class ReorderSaving : uint8_t {
  none,
  landing,  // the transfers before it land in its order
  sending   // the transfers after it take their rows in its order
};

/// [pass: forward, backward][reorder item]. A buffer that is passed over is touched by nothing
/// else, in either pass.
std::array<std::vector<ReorderSaving>, 2> find_reorder_savings(const Plan& plan);

/// Rows of transfers that skip reorders: rows of the buffer between, as rows of the other one.
/// Lists that are asked for again are not made again.
class SkippedRows {
 public:
  explicit SkippedRows(const Plan& plan) : plan_(plan) {}

  /// `rows` (kAllRows: 0 to num_rows) of the buffer between.
  std::vector<TokenRun> find(const ReorderItem& skipped, ReorderSaving saving, RunListId rows,
                             int64_t num_rows);

 private:
  const std::vector<int64_t>& map_of(RunListId order, ReorderSaving saving);

  const Plan& plan_;
  std::map<std::pair<int32_t, ReorderSaving>, std::vector<int64_t>> maps_;  // [order, direction]
};

}  // namespace cpscope::kernels
