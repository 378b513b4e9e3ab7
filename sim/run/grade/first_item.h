#pragma once

#include "sim/plan/plan.h"
#include "sim/run/grade/record_diff.h"
#include "sim/run/record/item_tensors.h"

#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// The first item in which two recorded runs differ, and the token and head of its worst place if
/// the plan is known.
struct FirstItem {
  TensorDiff diff;
  ItemTensorName name;
  std::optional<ItemPlace> place;
};

/// True if a record holds results of items.
bool holds_items(const RunRecord& record);

/// The plan of a record; nothing when its text no longer gives the plan that was run (a file that
/// it names is missing, the planner has changed). `path` anchors relative file names.
std::optional<Plan> plan_again(const RunRecord& record, const std::string& path);

/// The first item in plan order that violates the rule. Nothing when all satisfy it, or when a side
/// holds no items.
std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const std::string& path);
/// The same with a plan that is already known; may be null.
std::optional<FirstItem> find_first_item(const RunRecord& a, const RunRecord& b,
                                         const std::vector<TensorDiff>& diffs, const DiffRule& rule,
                                         const Plan* plan);

/// "first diverging item: forward compute 12, rank 3, step 1, out: row 5 (token 69), head 2, ...".
std::string describe_first_item(const FirstItem& first, const DiffRule& rule);
/// A difference compared with the earned one: "; 0.1 apart, over the earned 0.05"; empty if the
/// rule does not use earned distances.
std::string describe_earned(const TensorDiff& diff, const DiffRule& rule);

}  // namespace cpscope
