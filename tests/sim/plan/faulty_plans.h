#pragma once

#include "sim/plan/plan.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::tests {

/// A plan that is right, with the words that name it.
struct GoodPlan {
  std::string name;
  Plan plan;
};

/// Right plans of every communication type, all with a backward pass: between them replicated kv
/// heads, cross attention, padding, tails, windows, striped and dealt layouts, idle ranks, both
/// ways of bringing dKV home and both dispatches of group_cast.
const std::vector<GoodPlan>& good_plans();

/// Where a fault was planted; -1 = the message need not say.
struct Place {
  int32_t rank = -1;
  int32_t step = -1;
};

/// Where an item of one rank is.
template <class Item>
Place place_of(const Item& item) {
  return {to_index(item.rank), to_index(item.step)};
}

/// Plants one fault; empty when the plan has no place for it.
using Fault = std::function<std::optional<Place>(Plan&)>;

/// Plants the fault in every good plan that has a place for it (at least `min_plans` of them) and
/// demands that the first check that fails is `check` and that it names the place. An empty
/// `check` stands for any check.
void expect_caught(const std::string& check, const Fault& fault, int min_plans = 1);

/// Takes an item out of a pass, or puts a second copy behind it; the stages follow.
void erase_item(Pass& pass, StageKind kind, size_t index);
void repeat_item(Pass& pass, StageKind kind, size_t index);

/// Gives the item a list of slices of its own, so that changing it changes nobody else's.
std::vector<BandSlice> slices_of(const Plan& plan, const ComputeItem& item);
void set_slices(Plan& plan, ComputeItem& item, const std::vector<BandSlice>& bands);

/// Replaces the slices of every item that does the same work as `item`, forward and backward, and
/// corrects their pair counts: what a planner would do that believes in the fault.
void set_slices_everywhere(Plan& plan, const ComputeItem& item,
                           const std::vector<BandSlice>& bands);

int64_t pairs_of(const std::vector<BandSlice>& bands);

}  // namespace cpscope::tests
