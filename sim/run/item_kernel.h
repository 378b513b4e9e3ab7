#pragma once

#include "sim/base/ids.h"
#include "sim/base/result.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/plan.h"

#include <bit>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace cpscope {

/// What a result holds until a kernel writes it: a NaN of its own, which is told from a NaN that
/// was written, also when it went through fp32.
inline constexpr uint64_t kUnwrittenBits = 0x7ff8'c0de'0000'0000;
inline const double kUnwritten = std::bit_cast<double>(kUnwrittenBits);
inline bool is_unwritten(double value) {
  return std::bit_cast<uint64_t>(value) == kUnwrittenBits;
}

/// One compute item, taken out of the plan for somebody else's kernel. Arrays are [row, head, lane]
/// with the item's rows and heads alone; values of inputs are held exactly.
struct ItemCall {
  const Plan* plan = nullptr;
  const ComputeItem* item = nullptr;
  bool is_backward = false;
  int64_t q_rows = 0, kv_rows = 0;
  HeadRange heads, kv_heads;

  std::vector<double> q, k, v;  // rotated and rounded to the dtype
  std::vector<double> out, lse,
      d_out;                       // out, lse: written forward; of the whole row, read backward
  std::vector<double> dq, dk, dv;  // written backward
  std::vector<double> max_logit;   // [head] written forward, or unwritten
};

/// Carries one item out. Errors: unavailable (it cannot do this), failed (it went wrong).
using ItemKernel = std::function<std::optional<Error>(ItemCall& call)>;

/// Rows of a buffer by sequence, as prefix sums: where each sequence's rows begin, and how many of
/// them are valid. Nothing where rows of a sequence do not stand together, in the order of the
/// sequences, valid ones first.
struct RowBoundaries {
  std::vector<int32_t> cu_seqlens;         // [sequence + 1] valid rows
  std::vector<int32_t> cu_seqlens_padded;  // [sequence + 1] all rows
};
std::optional<RowBoundaries> find_row_boundaries(std::span<const TokenRun> tokens,
                                                 const BatchSlots& slots, bool is_kv);

}  // namespace cpscope
