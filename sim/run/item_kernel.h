#pragma once

#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/direction.h"
#include "sim/plan/plan.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace cpscope {

/// Initial content of a result before a kernel writes it: a special NaN, distinguishable from a NaN
/// that a kernel wrote, also after a conversion to fp32.
inline constexpr uint64_t kUnwrittenBits = 0x7ff8'c0de'0000'0000;
inline double unwritten() {
  double value;
  std::memcpy(&value, &kUnwrittenBits, sizeof value);
  return value;
}
inline bool is_unwritten(double value) {
  return std::memcmp(&value, &kUnwrittenBits, sizeof value) == 0;
}

/// One compute item, taken from the plan for an external kernel. Arrays are [row, head, element]
/// with only the item's rows and heads; values of inputs are held exactly.
struct ItemCall {
  const Plan* plan = nullptr;
  const ComputeItem* item = nullptr;
  Direction direction = Direction::forward;
  int64_t q_rows = 0, kv_rows = 0;
  HeadRange heads, kv_heads;

  std::vector<double> q, k, v;  // rotated and rounded to the dtype
  std::vector<double> out, lse,
      d_out;                       // out, lse: written forward; of the complete row, read backward
  std::vector<double> dq, dk, dv;  // written backward
  std::vector<double> max_logit;   // [head] written forward, or unwritten
};

/// Runs one item. Errors: unavailable (the kernel does not support it), failed (it went wrong).
using ItemKernel = std::function<std::optional<Error>(ItemCall& call)>;

/// Rows of a buffer by sequence, as prefix sums: the first row of each sequence, and its number of
/// valid rows. Nothing if the rows of a sequence are not consecutive, in the order of the
/// sequences, valid ones first.
struct RowBoundaries {
  std::vector<int32_t> cu_seqlens;         // [sequence + 1] valid rows
  std::vector<int32_t> cu_seqlens_padded;  // [sequence + 1] all rows
};
std::optional<RowBoundaries> find_row_boundaries(std::span<const TokenRun> tokens,
                                                 const BatchSlots& slots, Side side);

}  // namespace cpscope
