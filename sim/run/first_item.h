#pragma once

#include "sim/plan/plan.h"
#include "sim/run/item_tensors.h"
#include "sim/run/record_diff.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// The item at which two recorded runs part, and what its worst place stands for where the plan is
/// known.
struct FirstItem {
  TensorDiff diff;
  ItemTensorName name;
  std::optional<ItemPlace> place;
};

/// Does a record hold results of items?
bool holds_items(const RunRecord& record);

/// The plan of a record; nothing when its text no longer gives the plan that was run (a file that
/// it names is gone, the planner has changed). `path` anchors relative file names.
std::optional<Plan> plan_again(const RunRecord& record, const std::string& path);

/// The first item in plan order that is not within the rule. Nothing when all are, or when a side
/// holds no items: then none of them diverges first.
std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const std::string& path);
/// The same with a plan that is known already; may be null.
std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const Plan* plan);

/// "first diverging item: forward compute 12, rank 3, step 1, out: row 5 (token 69), head 2, ...".
std::string describe_first_item(const FirstItem& first, const DiffRule& rule);
/// How a difference stands to what is earned: "; 0.1 apart, over the earned 0.05"; empty where the
/// rule asks for something else.
std::string describe_earned(const TensorDiff& diff, const DiffRule& rule);

}  // namespace cpscope
