#pragma once

#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <functional>
#include <optional>
#include <string>

namespace cpscope {

/// A mistake in a schedule, or in what an executor was given, that the search for causes carries
/// out.
struct PlanMistake {
  std::string cause;                            // its name; sim/app/causes.md lists them
  std::string text;                             // what happened, as a clause
  std::string layout = {};                      // other_layout only: which one
  bool is_of_backward = false;                  // out and lse are right
  std::optional<Plan> plan = std::nullopt;      // the wrong plan; nothing: the right one
  std::function<void(RunInputs&)> inputs = {};  // what makes the inputs wrong; may be empty
};

/// Gives `take` each mistake that this plan can have, one after another, until it returns false.
/// Every wrong plan can be run: it reads and writes rows of its own buffers alone.
using PlanMistakes =
    std::function<void(const Plan& plan, const std::function<bool(PlanMistake)>& take)>;

}  // namespace cpscope
