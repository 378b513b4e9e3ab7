#pragma once

#include "gui/model/plan_index.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cpscope::gui {

/// "p2p, dual_chunk, causal, 4 ranks, 256 tokens".
std::string describe_plan(const PlanIndex& plan);

/// A plan that is compared, with its predicted time; 0 when there is none.
struct ComparedPlan {
  const PlanIndex* plan = nullptr;  // never null
  int64_t predicted_ns = 0;
};

/// One figure of one plan.
struct ComparedValue {
  std::string text;
  std::string change;  // from the first plan: "+75 %", "=", "new" from nothing; empty for the first
  bool is_best = false;  // the least of a cost that not all plans have alike
};

/// One figure of all compared plans.
struct ComparedFigure {
  std::string name;                   // "all bytes sent"
  std::vector<ComparedValue> values;  // [plan]
};

/// The figures in which plans are compared: predicted time where all have one, balance, bytes,
/// transfers, steps, padding.
std::vector<ComparedFigure> compare_plans(std::span<const ComparedPlan> plans);

}  // namespace cpscope::gui
