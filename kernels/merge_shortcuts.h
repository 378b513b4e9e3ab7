#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <vector>

namespace cpscope::kernels {

/// Merges and finishes of one direction that need no pass over memory of their own: the first merge
/// into an accumulator is a copy, which the compute item saves by writing there at once, and the
/// rounding of a finish can be done where its accumulator is last added to. Numbers stay the same,
/// bit for bit.
struct MergeShortcuts {
  /// [compute item]: the buffers that it writes, in place of its partials: {out, none} or {dq,
  /// dkv}.
  std::vector<std::array<BufferId, 2>> written;
  std::vector<bool> is_merged;    // [merge item] the compute item wrote there
  std::vector<bool> rounds;       // [merge item] what it adds up is rounded to the dtype
  std::vector<bool> is_finished;  // [finish item] a merge has rounded it
  /// [buffer] `out` that one compute item writes and nothing is merged into: it may hold the dtype.
  std::vector<bool> is_written_once;
};

/// A pass with every shortcut that the plan allows.
MergeShortcuts find_shortcuts(const Plan& plan, const Pass& pass);

/// The pass as planned.
MergeShortcuts no_shortcuts(const Plan& plan, const Pass& pass);

}  // namespace cpscope::kernels
