#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope {

/// Estimated number of items of the whole plan, before any is made.
int64_t estimate_plan_items(const Scenario& scenario);

}  // namespace cpscope
