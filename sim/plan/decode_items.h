#pragma once

#include "sim/plan/band.h"

#include <cstdint>
#include <span>

/// Compute items of decode steps: each query row sees many keys, and few rows see a key. Their time
/// is that of reading K and V from memory, not that of the products.
namespace cpscope {

/// What slices say of the rows of an item.
struct SliceSums {
  int64_t pairs = 0;          // visible
  int64_t keys = 0;           // of every slice, from its first visible key to its last
  int64_t rows = 0;           // query rows of any slice
  int32_t rows_together = 0;  // most query rows of a slice; 0: unknown
  int64_t most_keys = 0;      // that a row sees in a slice

  friend bool operator==(const SliceSums&, const SliceSums&) = default;
};

SliceSums sum_slices(std::span<const BandSlice> slices);

/// Most query rows that may see keys together: the rows of a kernel's tile.
constexpr int32_t most_decode_rows(int32_t head_dim_qk, int32_t head_dim_v) {
  return head_dim_qk <= 128 && head_dim_v <= 128 ? 32 : 16;
}

/// True if rows see enough keys on average, and few enough see keys together. most_rows: of
/// most_decode_rows. Rows in an order of their own may see keys together although they are in
/// different slices, so the average over all keys, kv_rows, counts too.
bool is_for_decode(const SliceSums& sums, int64_t kv_rows, int32_t most_rows);

}  // namespace cpscope
