#pragma once

#include "sim/faults/rank_posts.h"
#include "sim/plan/item_event.h"
#include "sim/plan/plan.h"
#include "sim/run/executor_fault.h"
#include "sim/run/judge.h"

#include <functional>
#include <optional>
#include <string>

namespace cpscope {

/// A place in a schedule: an item of one pass, or the inputs that a rank has loaded before its
/// first step.
struct FaultSite {
  ItemId item;
  RankId rank{};
  StepId step{};
  bool is_load = false;  // the rank's own input rows; item is then unused

  friend bool operator==(const FaultSite&, const FaultSite&) = default;
};
/// "forward step 1, rank 2, compute 5".
std::string describe(const FaultSite& site);

/// One fault in one plan. Empty fields mean no change.
struct PlantedFault {
  FaultSite site;    // the first item with a wrong result, or with a surplus transfer, work or post
  std::string what;  // one sentence
  std::optional<Plan> plan = std::nullopt;
  std::optional<ExecutorFault> mistake = std::nullopt;
  std::function<void(RunInputs&)> inputs = {};
  std::function<void(RankPosts&)> posts = {};
};

}  // namespace cpscope
