#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace cpscope::kernels {

/// Whether a reorder item of a pass needs a separate pass over memory, or which transfers replace
/// it.
enum class ReorderSaving : uint8_t {
  none,
  landing,  // the transfers before it write rows in its order
  sending   // the transfers after it read rows in its order
};

/// [pass: forward, backward][reorder item]. A buffer that is skipped is not touched by any other
/// item, in either pass.
std::array<std::vector<ReorderSaving>, 2> find_reorder_savings(const Plan& plan);

/// Rows of transfers that skip reorders: rows of the buffer between, as rows of the other buffer.
/// Lists are cached.
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
