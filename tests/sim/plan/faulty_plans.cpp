#include "tests/sim/plan/faulty_plans.h"

#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario with_heads(Scenario scenario, int32_t heads, int32_t kv_heads) {
  scenario.attention.heads = heads;
  scenario.attention.kv_heads = kv_heads;
  return scenario;
}

std::vector<Scenario> ring_scenarios() {
  std::vector<Scenario> scenarios;
  Scenario ring = with_heads(make_case({24, 9, 40}, 4), 2, 1);
  ring.numerics.dkv_wire = WireFormat::fp32;
  scenarios.push_back(ring);
  ring = with_heads(make_case({30, 21}, 3, LayoutKind::contiguous), 2, 2);
  ring.attention.window_left = 13;
  ring.numerics.dkv_hops = DkvHops::ring;
  scenarios.push_back(ring);
  ring = with_heads(make_cross_case({25, 14}, {33, 6}, 4, LayoutKind::dual_chunk_packed), 2, 1);
  ring.attention.mask_type = MaskType::no_mask;
  scenarios.push_back(ring);
  scenarios.push_back(with_heads(make_case({31}, 3, LayoutKind::striped), 1, 1));
  return scenarios;
}

std::vector<Scenario> exchange_scenarios() {
  std::vector<Scenario> scenarios;
  Scenario exchange = with_heads(make_case({24, 9, 40}, 4, LayoutKind::dual_chunk, CommType::a2a),
                                 4, 2);  // KV heads shared
  exchange.numerics.dkv_wire = WireFormat::fp32;
  scenarios.push_back(exchange);
  scenarios.push_back(with_heads(make_case({22, 17}, 2, LayoutKind::striped, CommType::a2a), 2, 2));
  scenarios.push_back(
      with_heads(make_case({24, 9, 40}, 4, LayoutKind::dual_chunk, CommType::a2a_p2p), 4, 4));
  Scenario both = with_heads(make_case({24, 35}, 4, LayoutKind::lpt, CommType::a2a_p2p), 4, 1);
  both.parallel.dispatch_chunk = 4;
  both.numerics.dkv_hops = DkvHops::ring;
  both.numerics.dkv_wire = WireFormat::fp32;
  scenarios.push_back(both);
  return scenarios;
}

std::vector<Scenario> fetch_scenarios() {
  std::vector<Scenario> scenarios;
  Scenario fetch =
      with_heads(make_case({24, 9, 40}, 3, LayoutKind::dual_chunk, CommType::all_gather), 4, 2);
  fetch.numerics.dkv_wire = WireFormat::fp32;
  scenarios.push_back(fetch);
  fetch = with_heads(make_case({31, 8}, 3, LayoutKind::striped, CommType::all_gather), 2, 1);
  fetch.parallel.backward_kv = BackwardKv::saved;
  scenarios.push_back(fetch);
  fetch = with_heads(make_case({24, 9, 40}, 4, LayoutKind::lpt, CommType::group_cast), 4, 2);
  fetch.parallel.dispatch_chunk = 4;
  scenarios.push_back(fetch);
  fetch = with_heads(make_case({30, 21}, 3, LayoutKind::contiguous, CommType::group_cast), 2, 1);
  fetch.parallel.dispatch = Dispatch::queries;
  fetch.parallel.backward_kv = BackwardKv::saved;
  scenarios.push_back(fetch);
  fetch = with_heads(
      make_cross_case({25, 14}, {33, 6}, 4, LayoutKind::dual_chunk, CommType::group_cast), 2, 1);
  fetch.attention.mask_type = MaskType::causal_bottom_right;
  fetch.parallel.dispatch = Dispatch::queries;
  scenarios.push_back(fetch);
  return scenarios;
}

std::vector<Scenario> moving_scenarios() {
  std::vector<Scenario> scenarios;
  for (const CommType comm :
       {CommType::pass_q, CommType::token_ring, CommType::mesh, CommType::gather_q})
    scenarios.push_back(with_heads(make_case({24, 9}, 4, LayoutKind::dual_chunk, comm), 2, 1));
  Scenario helped =
      with_heads(make_case({35}, 4, LayoutKind::contiguous, CommType::helper_ring), 2, 1);
  helped.parallel.partial_wire = WireFormat::fp32;
  helped.numerics.dkv_wire = WireFormat::fp32;
  scenarios.push_back(helped);
  for (const CommType comm : {CommType::double_ring, CommType::p2p}) {
    Scenario ring = with_heads(make_case({24, 9}, 4, LayoutKind::dual_chunk, comm), 2, 1);
    if (comm == CommType::p2p) ring.parallel.ring_backward = RingBackward::q;
    scenarios.push_back(ring);
  }
  Scenario scaled =
      with_heads(make_case({24, 9}, 4, LayoutKind::dual_chunk, CommType::gather_q), 2, 1);
  scaled.parallel.combine = Combine::reduce_scatter;
  scenarios.push_back(scaled);
  Scenario replicated =
      with_heads(make_case({24, 9}, 4, LayoutKind::dual_chunk, CommType::all_gather), 2, 1);
  replicated.parallel.kv_replicated = 3;
  scenarios.push_back(replicated);
  return scenarios;
}

std::string show_checks(const std::vector<CheckResult>& checks) {
  std::string text;
  for (const CheckResult& check : checks)
    text += "  " + check.name + (check.ok ? " holds: " : " BROKEN: ") + check.detail + "\n";
  return text;
}

bool names(const std::string& detail, const std::string& word, int32_t number) {
  const std::string exact = word + " " + std::to_string(number);
  const size_t at = detail.find(exact);
  return at != std::string::npos &&
         (at + exact.size() == detail.size() || !std::isdigit(detail[at + exact.size()]));
}

void expect_first_broken(const Plan& plan, const std::string& check, const Place& place,
                         const std::string& where) {
  const std::vector<CheckResult> checks = inspect_plan(plan);
  const auto broken =
      std::find_if(checks.begin(), checks.end(), [](const CheckResult& c) { return !c.ok; });
  if (broken == checks.end()) {
    ADD_FAILURE() << "nobody noticed the fault in " << where << "\n" << show_checks(checks);
    return;
  }
  if (!check.empty()) {
    EXPECT_EQ(broken->name, check) << where << "\n" << show_checks(checks);
  }
  if (place.rank >= 0) {
    EXPECT_TRUE(names(broken->detail, "rank", place.rank))
        << "rank " << place.rank << " is not named: " << broken->detail << "\n"
        << where;
  }
  if (place.step >= 0) {
    EXPECT_TRUE(names(broken->detail, "step", place.step))
        << "step " << place.step << " is not named: " << broken->detail << "\n"
        << where;
  }
}

template <class Edit>
void for_items(Pass& pass, StageKind kind, Edit edit) {
  switch (kind) {
    case StageKind::transfer:
      return edit(pass.transfers);
    case StageKind::reorder:
      return edit(pass.reorders);
    case StageKind::compute:
      return edit(pass.computes);
    case StageKind::merge:
      return edit(pass.merges);
    case StageKind::finish:
      return edit(pass.finishes);
  }
}

void move_stages(Pass& pass, StageKind kind, int64_t index, int64_t by) {
  for (Stage& stage : pass.stages) {
    if (stage.kind != kind) continue;
    if (stage.begin > index) stage.begin += by;
    if (stage.end > index) stage.end += by;
  }
  std::erase_if(pass.stages, [](const Stage& stage) { return stage.begin == stage.end; });
}

}  // namespace

namespace {

std::vector<GoodPlan> plan_all(std::initializer_list<std::vector<Scenario>> families) {
  std::vector<GoodPlan> made;
  for (const std::vector<Scenario>& family : families) {
    for (const Scenario& scenario : family) {
      made.push_back({std::string(to_name(scenario.parallel.comm_type)) + ", " +
                          std::string(to_name(scenario.parallel.layout)),
                      plan_of(scenario)});
    }
  }
  return made;
}

}  // namespace

const std::vector<GoodPlan>& good_plans() {
  static const std::vector<GoodPlan> kPlans =
      plan_all({ring_scenarios(), exchange_scenarios(), fetch_scenarios()});
  return kPlans;
}

const std::vector<GoodPlan>& moving_plans() {
  static const std::vector<GoodPlan> kPlans = plan_all({moving_scenarios()});
  return kPlans;
}

std::vector<GoodPlan> plans_of_every_type() {
  std::vector<GoodPlan> plans = good_plans();
  plans.insert(plans.end(), moving_plans().begin(), moving_plans().end());
  return plans;
}

void expect_caught(const std::string& check, const Fault& fault, int min_plans,
                   const std::string& said) {
  int planted = 0;
  for (const GoodPlan& good : good_plans()) {
    Plan plan = good.plan;
    const std::optional<Place> place = fault(plan);
    if (!place) continue;
    ++planted;
    expect_first_broken(plan, check, *place, good.name + "\n" + show(plan.scenario));
    for (const CheckResult& result : inspect_plan(plan)) {
      if (result.name != check || said.empty()) continue;
      EXPECT_NE(result.detail.find(said), std::string::npos) << good.name << ": " << result.detail;
    }
  }
  EXPECT_GE(planted, min_plans) << "too few plans had a place for the fault";
}

void erase_item(Pass& pass, StageKind kind, size_t index) {
  for_items(pass, kind,
            [&](auto& items) { items.erase(items.begin() + static_cast<int64_t>(index)); });
  move_stages(pass, kind, static_cast<int64_t>(index), -1);
}

void repeat_item(Pass& pass, StageKind kind, size_t index) {
  for_items(pass, kind, [&](auto& items) {
    const auto copy = items[index];
    items.insert(items.begin() + static_cast<int64_t>(index), copy);
  });
  move_stages(pass, kind, static_cast<int64_t>(index), 1);
}

std::vector<BandSlice> slices_of(const Plan& plan, const ComputeItem& item) {
  const auto bands = plan.slices_of(item);
  return {bands.begin(), bands.end()};
}

void set_slices(Plan& plan, ComputeItem& item, const std::vector<BandSlice>& bands) {
  item.first_slice = static_cast<int64_t>(plan.slices.size());
  item.num_slices = static_cast<int64_t>(bands.size());
  plan.slices.insert(plan.slices.end(), bands.begin(), bands.end());
}

int64_t pairs_of(const std::vector<BandSlice>& bands) {
  int64_t pairs = 0;
  for (const BandSlice& band : bands) pairs += count_pairs(band);
  return pairs;
}

void set_slices_everywhere(Plan& plan, const ComputeItem& item,
                           const std::vector<BandSlice>& bands) {
  const ComputeItem old = item;
  ComputeItem changed = item;
  set_slices(plan, changed, bands);
  for (Pass* pass : {&plan.forward, &plan.backward}) {
    for (ComputeItem& other : pass->computes) {
      if (other.first_slice != old.first_slice || other.num_slices != old.num_slices) continue;
      other.first_slice = changed.first_slice;
      other.num_slices = changed.num_slices;
      other.visible_pairs = pairs_of(bands) * other.heads.size();
    }
  }
}

}  // namespace cpscope::tests
