#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <functional>
#include <vector>

namespace cpscope::kernels {

/// What a compute item does with one of its results.
struct WrittenResult {
  BufferId buffer = kNoBuffer;  // where it goes, in place of its partial
  bool merges = false;          // with what stands there
  bool rounds = false;          // what is merged is rounded to the dtype
};

/// Merges and finishes of one direction that need no pass over memory of their own: the first merge
/// into an accumulator is a copy, which the compute item saves by writing there at once; a later
/// one can be the item's own, where its kernel merges and the accumulator waits for nothing else;
/// and the rounding of a finish can be done where its accumulator is last added to. Numbers stay
/// the same, bit for bit, but for dq: a kernel adds its tiles to the accumulator one by one.
struct MergeShortcuts {
  /// [compute item]: {out, none} or {dq, dkv}.
  std::vector<std::array<WrittenResult, 2>> written;
  std::vector<bool> is_merged;    // [merge item] the compute item does it
  std::vector<bool> rounds;       // [merge item] what it adds up is rounded to the dtype
  std::vector<bool> is_finished;  // [finish item] a merge has rounded it
  /// [buffer] `out` that one compute item writes and nothing is merged into: it may hold the dtype.
  std::vector<bool> is_written_once;
};

/// Can the kernel of an item merge its `out`, or its dq? None can where this is empty.
using MergingKernels = std::function<bool(const ComputeItem&)>;

/// A pass with every shortcut that the plan and its kernels allow.
MergeShortcuts find_shortcuts(const Plan& plan, const Pass& pass, const MergingKernels& can_merge);

/// The pass as planned.
MergeShortcuts no_shortcuts(const Plan& plan, const Pass& pass);

}  // namespace cpscope::kernels
