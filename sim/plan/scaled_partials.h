#pragma once

#include "sim/plan/plan.h"

namespace cpscope {

/// True if ranks scale partial results by the lse of other ranks' results, or add results that were
/// scaled so.
bool adds_scaled_partials(const Plan& plan);

}  // namespace cpscope
