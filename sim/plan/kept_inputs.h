#pragma once

#include "sim/plan/plan.h"

#include <vector>

namespace cpscope {

/// Buffers that a backward pass reads as the forward has left them and overwrites later: a ring's
/// keys and values. To repeat a backward pass, a caller has to restore them first.
std::vector<BufferId> find_kept_inputs(const Plan& plan);

}  // namespace cpscope
