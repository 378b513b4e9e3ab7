#include "sim/plan/decode_items.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cpscope {
namespace {

constexpr int64_t kFewestKeys = 512;  // of a row: with fewer, kernels for many rows are as fast

/// Query rows that are in any slice.
int64_t count_rows(std::span<const BandSlice> slices) {
  std::vector<std::pair<int32_t, int32_t>> stretches;
  for (const BandSlice& slice : slices) stretches.emplace_back(slice.q0, slice.q1);
  std::sort(stretches.begin(), stretches.end());
  int64_t rows = 0;
  int32_t end = 0;
  for (const auto& [q0, q1] : stretches) {
    rows += std::max(0, q1 - std::max(q0, end));
    end = std::max(end, q1);
  }
  return rows;
}

/// Most keys that a row of the slice sees. Their number rises and then falls with the row, and is
/// linear in between: up to the row whose first key is no longer the slice's, or from the one whose
/// last key is the slice's.
int64_t most_keys_of(const BandSlice& slice) {
  const int64_t rows = slice.q1 - slice.q0;
  int64_t most = 0;
  for (const int64_t row :
       {int64_t{0}, -int64_t{slice.lo}, int64_t{slice.k1} - slice.k0 - 1 - slice.hi, rows - 1}) {
    const ColumnRange seen =
        columns_of_row(slice, slice.q0 + std::clamp<int64_t>(row, 0, rows - 1));
    most = std::max(most, seen.end - seen.begin);
  }
  return most;
}

}  // namespace

SliceSums sum_slices(std::span<const BandSlice> slices) {
  SliceSums sums;
  sums.rows = count_rows(slices);
  for (const BandSlice& slice : slices) {
    if (slice.q0 >= slice.q1) continue;
    sums.pairs += count_pairs(slice);
    // The ends of the keys of a row never decrease with the row.
    sums.keys += std::max<int64_t>(
        0, columns_of_row(slice, slice.q1 - 1).end - columns_of_row(slice, slice.q0).begin);
    sums.rows_together = std::max(sums.rows_together, slice.q1 - slice.q0);
    sums.most_keys = std::max(sums.most_keys, most_keys_of(slice));
  }
  return sums;
}

bool is_for_decode(const SliceSums& sums, int64_t kv_rows, int32_t most_rows) {
  return sums.rows_together > 0 && sums.rows_together <= most_rows &&
         sums.pairs >= kFewestKeys * sums.rows && sums.pairs <= most_rows * kv_rows;
}

}  // namespace cpscope
