#pragma once

#include "kernels/lower/reorder_savings.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <vector>

namespace cpscope::kernels {

/// Roundings to the dtype by a transfer, in addition to that of its wire.
struct Rounding {
  bool values = false;  // the sent values
  bool sums = false;    // the values at the destination afterwards

  friend bool operator==(const Rounding&, const Rounding&) = default;
};

/// Merges and finishes of gradients that adjacent transfers can do. The first transfer into a
/// buffer need not add to zeros, and the last one can round the sums; a sum that is only sent on is
/// rounded by that transfer. The results are the same.
struct LandingSavings {
  std::vector<bool> replaces;       // [transfer item] replaces the destination instead of adding
  std::vector<Rounding> roundings;  // [transfer item]
  std::vector<bool> is_merged;      // [merge item] zeroing that is not needed
  std::vector<bool> is_finished;    // [finish item] rounding that transfers do
  std::vector<bool> is_sum;         // [buffer] only zeroed, added to, and rounded
};

/// transfers: the pass's, changed where reorders are saved. plan: has the lists of their rows.
LandingSavings find_landing_savings(const Plan& plan, const Pass& pass,
                                    const std::vector<TransferItem>& transfers,
                                    const std::vector<ReorderSaving>& reorders);

/// Number of rows of the sender's buffer that a transfer reads.
int64_t num_rows_of(const Plan& plan, const TransferItem& item);

}  // namespace cpscope::kernels
