#pragma once

#include "kernels/lower/reorder_savings.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <vector>

namespace cpscope::kernels {

/// What a transfer rounds to the dtype, past what its wire does.
struct Rounding {
  bool values = false;  // what it takes along
  bool sums = false;    // what stands where it lands

  friend bool operator==(const Rounding&, const Rounding&) = default;
};

/// Merges and finishes of gradients that transfers before or after them can do: what lands first
/// need not be added to zeros, and what lands last can be rounded then; a sum that is only sent on
/// is rounded on its way. Numbers stay the same.
struct LandingSavings {
  std::vector<bool> replaces;       // [transfer item] nothing stands where it would add
  std::vector<Rounding> roundings;  // [transfer item]
  std::vector<bool> is_merged;      // [merge item] zeros that nothing needs
  std::vector<bool> is_finished;    // [finish item] transfers round
  std::vector<bool> is_sum;         // [buffer] zeros, additions, a rounding, and nothing else
};

/// transfers: the pass's, as they go past reorders that are saved. plan: has the lists of their
/// rows.
LandingSavings find_landing_savings(const Plan& plan, const Pass& pass,
                                    const std::vector<TransferItem>& transfers,
                                    const std::vector<ReorderSaving>& reorders);

/// Rows of the sender's buffer that a transfer takes.
int64_t num_rows_of(const Plan& plan, const TransferItem& item);

}  // namespace cpscope::kernels
