#pragma once

#include "gui/model/plan_index.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// "p2p, dual_chunk, causal, 4 ranks, 256 tokens".
std::string describe_plan(const PlanIndex& plan);

/// One figure of two plans, for comparison.
struct ComparedFigure {
  std::string name;  // "bytes moved"
  std::string first, second;
  std::string change;  // from the first to the second: "+75 %", "=", "new" from nothing
  int32_t better = 0;  // -1: the first is better, 1: the second, 0: neither; less is better
};

/// The figures in which two plans are compared: bytes, balance, steps, padding, transfers.
std::vector<ComparedFigure> compare_plans(const PlanIndex& first, const PlanIndex& second);

}  // namespace cpscope::gui
