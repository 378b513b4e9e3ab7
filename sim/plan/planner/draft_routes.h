#pragma once

#include "sim/plan/planner/draft_reader.h"

#include <cstdint>
#include <map>
#include <vector>

namespace cpscope {

/// The way of one rank's keys from rank to rank, on which their gradient travels with them.
struct GradientRoute {
  std::vector<RankId> ranks;    // the owner first
  std::vector<int32_t> leaves;  // [rank] step after which the sum goes on, from the last one home
};

/// The routes of all keys that are sent. Error: keys that are sent in parts, before a step, on two
/// ways, or on before a rank has computed with them.
Result<std::map<BlockId, GradientRoute>> find_gradient_routes(const Plan& plan,
                                                              const ScheduleDraft& draft,
                                                              const std::vector<ReadStep>& steps);

}  // namespace cpscope
