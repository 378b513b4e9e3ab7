#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cpscope::kernels {

/// Keys and values of a compute item that are an item of their own in the plan.
struct JoinedPart {
  int64_t origin = 0;  // the plan's compute item
  int64_t visible_pairs = 0;
  std::vector<TokenRun> kv_rows;  // where its rows of kv, and of dkv, are now, in their order
};

/// A plan whose ranks compute at once what it has them compute with their own keys and values and
/// then with received ones, as group_cast does: both stand in one buffer, one behind the other
/// with some rows between, and so do their gradients, of which the own ones go to their home as
/// those of other ranks come there. No partial is left to merge. Pairs and bytes are the plan's; of
/// numbers only roundings differ.
struct JoinedPlan {
  Plan plan;
  std::array<std::array<std::vector<int64_t>, 5>, 2> items;   // [direction][StageKind][item] the
                                                              // plan's; -1: none
  std::array<std::vector<std::vector<JoinedPart>>, 2> parts;  // [direction][compute item]
};

/// Nothing where no rank computes twice so, or where something stands in the way: kernels that
/// cannot (`can_join`), or another use of what was received.
std::optional<JoinedPlan> join_computes(const Plan& plan,
                                        const std::function<bool(const ComputeItem&)>& can_join);

}  // namespace cpscope::kernels
