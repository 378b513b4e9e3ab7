#pragma once

#include "sim/plan/planner/draft_reader.h"
#include "sim/plan/planner/draft_routes.h"

#include <map>
#include <vector>

namespace cpscope {

/// Writes one pass of a draft whose steps have been read. `routes`: of gradients that travel with
/// the keys, in the backward.
void compile_pass(PlanBuilder& builder, const ScheduleDraft& draft, const ReadPass& read,
                  Direction direction, const std::map<BlockId, GradientRoute>& routes = {});

}  // namespace cpscope
