#pragma once

#include "sim/plan/plan.h"
#include "sim/run/judge.h"

namespace cpscope {

/// The weights that the compute items of the forward keep (dropout_mode "framework"): each draws as
/// a call of a kernel that knows its own rows, columns and heads alone, with an offset of its own.
/// A weight is kept if its word is below the threshold of dropout_rule; the word is number
/// column mod 4 of philox(counter = {column / 4, row, head - the item's first, item}, key = seed).
/// The backward keeps the same ones, as frameworks save the offset of each call. Empty in other
/// modes.
KeptWeights draw_by_item(const Plan& plan);

}  // namespace cpscope
