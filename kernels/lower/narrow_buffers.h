#pragma once

#include "kernels/lower/landing_savings.h"
#include "kernels/lower/merge_shortcuts.h"
#include "kernels/lower/reorder_savings.h"
#include "sim/plan/plan.h"

#include <functional>
#include <vector>

namespace cpscope::kernels {

// Results that memory may hold in the dtype, where the plan has fp32 that is rounded later: results
// that a kernel writes once, and those derived from them on the way home. The results are the same,
// bit for bit.

/// [buffer] `out` that is written once, by a kernel that can write the dtype.
std::vector<bool> find_narrow_outs(const Plan& plan, const MergeShortcuts& shortcuts,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype);

/// Marks `out` buffers that are filled only from narrow ones as narrow too.
void spread_narrow_outs(const Plan& plan, std::vector<bool>& is_narrow);

/// Data about a backward pass at the time when its items are made.
struct GradientPass {
  const Plan& plan;
  const Pass& pass;
  const std::vector<TransferItem>& transfers;  // changed where reorders are saved
  const std::vector<ReorderSaving>& reorders;
  const MergeShortcuts& shortcuts;
  const LandingSavings& landings;
};

/// Marks gradients that may be narrow: they are written once by a kernel that can write the dtype,
/// or arrive rounded, or arrive rounded and are added to once; and every later use rounds them.
/// Gradients that are sent around a ring are an example.
void find_narrow_gradients(const GradientPass& pass,
                           const std::function<bool(const ComputeItem&)>& writes_dtype,
                           std::vector<bool>& is_narrow);

}  // namespace cpscope::kernels
