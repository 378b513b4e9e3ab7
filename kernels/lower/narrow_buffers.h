#pragma once

#include "kernels/lower/landing_savings.h"
#include "kernels/lower/merge_shortcuts.h"
#include "kernels/lower/reorder_savings.h"
#include "sim/plan/plan.h"

#include <functional>
#include <vector>

namespace cpscope::kernels {

// Results that memory may hold in the dtype, where the plan sees fp32 that is rounded later: what a
// kernel writes once, and what it becomes on its way home. Numbers stay the same, bit for bit.

/// [buffer] `out` that is written once, by a kernel that can write the dtype.
std::vector<bool> find_narrow_outs(const Plan& plan, const MergeShortcuts& shortcuts,
                                   const std::function<bool(const ComputeItem&)>& writes_dtype);

/// `out` that is filled from narrow ones alone is narrow too.
void spread_narrow_outs(const Plan& plan, std::vector<bool>& is_narrow);

/// What is known of a backward pass when its items are made.
struct GradientPass {
  const Plan& plan;
  const Pass& pass;
  const std::vector<TransferItem>& transfers;  // past reorders that are saved, as they land
  const std::vector<ReorderSaving>& reorders;
  const MergeShortcuts& shortcuts;
  const LandingSavings& landings;
};

/// Adds gradients that are written once, by a kernel that can write the dtype, that come rounded,
/// or that come rounded and are added to once, and are rounded by all that becomes of them: what
/// travels around a ring, for one.
void find_narrow_gradients(const GradientPass& pass,
                           const std::function<bool(const ComputeItem&)>& writes_dtype,
                           std::vector<bool>& is_narrow);

}  // namespace cpscope::kernels
