#pragma once

#include "kernels/device/device.h"
#include "kernels/rows/row_kernels.h"

#include <cstdint>

namespace cpscope::kernels {

/// Sums of rows from several sources, all at once: a row of `into` is the first share that has it,
/// plus the next one that has it, and so on, in fp32, then rounded to into.element. A row that no
/// share has is 0. All rows are aligned to 16 bytes.
struct RowSum {
  static constexpr int32_t kMostShares = 16, kLanesAtOnce = 8;
  RowBlock into;  // of 16-bit numbers; its rows are 0, 1, 2, ...
  /// rows, for each row of `into`: its row in the share; -1: the share does not have it.
  RowBlock shares[kMostShares];
  int32_t num_shares = 0;
  int32_t heads = 0;
  int32_t lanes = 0;  // a multiple of kLanesAtOnce
  int64_t num_rows = 0;
};

void launch_row_sum(const RowSum& sum, Stream stream);

}  // namespace cpscope::kernels
