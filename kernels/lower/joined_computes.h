#pragma once

#include "sim/plan/plan.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cpscope::kernels {

/// Keys and values of a compute item that are a separate item in the plan.
struct JoinedPart {
  int64_t origin = 0;  // the plan's compute item
  int64_t visible_pairs = 0;
  std::vector<TokenRun> kv_rows;  // places of its rows of kv, and of dkv, in their order
};

/// A plan that joins each rank's two compute items, with its own keys and values and with received
/// ones, as group_cast plans them. Both are in one buffer, one after the other with some rows
/// between, and so are their gradients; the own gradients go home like those of other ranks. No
/// partial is left to merge. Pairs and bytes are those of the plan; numerically only roundings
/// differ.
struct JoinedPlan {
  Plan plan;
  std::array<std::array<std::vector<int64_t>, 5>, 2> items;   // [direction][StageKind][item] index
                                                              // in the plan; -1: none
  std::array<std::vector<std::vector<JoinedPart>>, 2> parts;  // [direction][compute item]
};

/// Returns nothing if no rank computes twice in this way, or if a condition fails: kernels do not
/// support it (`can_join`), or received rows have another use.
std::optional<JoinedPlan> join_computes(const Plan& plan,
                                        const std::function<bool(const ComputeItem&)>& can_join);

}  // namespace cpscope::kernels
