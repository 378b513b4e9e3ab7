#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <functional>
#include <vector>

namespace cpscope::kernels {

/// Destination of one result of a compute item.
struct WrittenResult {
  BufferId buffer = kNoBuffer;  // destination, in place of its partial
  bool merges = false;          // with the stored values
  bool rounds = false;          // the merged values are rounded to the dtype
};

/// Merges and finishes of one direction that need no separate pass over memory. The first merge
/// into an accumulator is a copy: the compute item writes there directly. A later merge can be done
/// by the compute item, if its kernel can merge and the accumulator waits for nothing else. The
/// rounding of a finish can be done by the last addition to its accumulator. The results are the
/// same, bit for bit, except for dq: a kernel adds its tiles to the accumulator one by one.
struct MergeShortcuts {
  /// [compute item]: {out, none} or {dq, dkv}.
  std::vector<std::array<WrittenResult, 2>> written;
  std::vector<bool> is_merged;    // [merge item] the compute item does it
  std::vector<bool> rounds;       // [merge item] its sums are rounded to the dtype
  std::vector<bool> is_finished;  // [finish item] a merge has rounded it
  /// [buffer] `out` that one compute item writes and that is never merged into: it may hold the
  /// dtype.
  std::vector<bool> is_written_once;
};

/// Returns whether the kernel of an item can merge its `out`, or its dq. An empty function means
/// false.
using MergingKernels = std::function<bool(const ComputeItem&)>;

/// A pass with every shortcut that the plan and its kernels allow.
MergeShortcuts find_shortcuts(const Plan& plan, const Pass& pass, const MergingKernels& can_merge);

/// The pass as planned.
MergeShortcuts no_shortcuts(const Plan& plan, const Pass& pass);

}  // namespace cpscope::kernels
