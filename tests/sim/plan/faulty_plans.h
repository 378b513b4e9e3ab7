#pragma once

#include "sim/plan/plan.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::tests {

/// A correct plan, with its description.
struct GoodPlan {
  std::string name;
  Plan plan;
};

/// Correct plans of every communication type, all with a backward pass. Together they contain
/// replicated KV heads, cross attention, padding, tails, windows, striped and lpt layouts, idle
/// ranks, both values of dkv_hops and both dispatches of group_cast.
const std::vector<GoodPlan>& good_plans();

/// More of them: queries that move and partial results that return, double rings, replicated keys.
const std::vector<GoodPlan>& moving_plans();
/// Both.
std::vector<GoodPlan> plans_of_every_type();

/// The place of a planted fault; -1 = the message need not name it.
struct Place {
  int32_t rank = -1;
  int32_t step = -1;
};

/// The place of an item of one rank.
template <class Item>
Place place_of(const Item& item) {
  return {to_index(item.rank), to_index(item.step)};
}

/// Plants one fault; empty when the plan has no place for it.
using Fault = std::function<std::optional<Place>(Plan&)>;

/// Plants the fault in every good plan that has a place for it (at least `min_plans` of them) and
/// requires that the first check that fails is `check` and that it names the place. An empty
/// `check` stands for any check. `said`: part of its message.
void expect_caught(const std::string& check, const Fault& fault, int min_plans = 1,
                   const std::string& said = "");

/// Takes an item out of a pass, or inserts a copy after it; the stages are adjusted.
void erase_item(Pass& pass, StageKind kind, size_t index);
void repeat_item(Pass& pass, StageKind kind, size_t index);

/// Gives the item its own list of slices, so that changing it does not change other items.
std::vector<BandSlice> slices_of(const Plan& plan, const ComputeItem& item);
void set_slices(Plan& plan, ComputeItem& item, const std::vector<BandSlice>& bands);

/// Replaces the slices of every item that does the same work as `item`, forward and backward, and
/// corrects their pair counts: the plan of a planner that makes this mistake everywhere.
void set_slices_everywhere(Plan& plan, const ComputeItem& item,
                           const std::vector<BandSlice>& bands);

int64_t pairs_of(const std::vector<BandSlice>& bands);

}  // namespace cpscope::tests
