#pragma once

#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope {

/// Estimated number of items of the whole plan, before any is made.
int64_t estimate_plan_items(const Scenario& scenario);

/// Number of stages in which a2a exchanges, or all_gather gathers, heads: 1 unless heads_per_stage
/// is less than the heads of the fullest rank, or all KV heads.
int64_t count_head_stages(const Scenario& scenario);

}  // namespace cpscope
