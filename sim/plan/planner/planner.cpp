#include "sim/plan/planner/planner.h"

#include "sim/plan/plan_size.h"
#include "sim/plan/planner/planner_parts.h"

#include <fmt/format.h>

namespace cpscope {
namespace {

std::optional<Error> refuse_by_size(int64_t items) {
  if (items > kMaxPlanItems) {
    return make_refusal(fmt::format("the plan would have about {} items, at most {} fit in memory",
                                    items, kMaxPlanItems),
                        "use fewer ranks, a2a+p2p with larger groups, or backward = false",
                        {"parallel.cp_size"});
  }
  return std::nullopt;
}

std::optional<Error> fill_whole(PlanBuilder& builder) {
  switch (builder.scenario().parallel.comm_type) {
    case CommType::p2p:
    case CommType::double_ring:
      return plan_rings(builder);
    case CommType::a2a:
      return plan_a2a(builder);
    case CommType::all_gather:
      return plan_all_gather(builder);
    case CommType::a2a_p2p:
    case CommType::a2a_double_ring:
      return plan_hierarchical(builder);
    case CommType::group_cast:
      return plan_group_cast(builder);
    case CommType::pass_q:
      return plan_pass_q(builder);
    case CommType::token_ring:
      return plan_token_ring(builder);
    case CommType::helper_ring:
      return plan_helper_ring(builder);
    case CommType::mesh:
      return plan_mesh(builder);
    case CommType::gather_q:
      return plan_gather_q(builder);
    case CommType::custom:
      return make_refusal("no planner makes a schedule of cp_comm_type custom",
                          "write its steps as a plan document, or with cpscope.Schedule in Python",
                          {"parallel.cp_comm_type"});
  }
  return std::nullopt;
}

std::optional<Error> fill(PlanBuilder& builder) {
  const Scenario& scenario = builder.scenario();
  if (!has_rounds(scenario.parallel)) return fill_whole(builder);
  int64_t items = 0;
  Scenario part = group_scenario(scenario, 1);
  for (const CpRound& round : builder.plan().layout.rounds) {
    for (const CpGroup& group : round.groups) {
      part.parallel.cp_size = group.size;
      items += estimate_plan_items(part);
    }
  }
  if (auto error = refuse_by_size(items)) return error;
  return plan_rounds(builder, fill_whole);
}

Result<Plan> build_plan(const Scenario& scenario, const FillPlan& fill_it) {
  Result<Layout> layout = make_layout(scenario);
  if (!layout) return layout.error();
  const int64_t mask_bands = count_mask_bands(scenario.attention, layout.value().slots.sequences);
  if (mask_bands > kMaxPlanSlices) return too_many_mask_bands(scenario.attention, mask_bands);
  PlanBuilder builder(scenario, std::move(layout).value());
  builder.add_home_buffers();
  if (auto error = fill_it(builder)) return *error;
  builder.plan().hash = hash_plan(builder.plan());
  return std::move(builder.plan());
}

}  // namespace

int64_t count_head_stages(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  if (!has_head_stages(parallel.comm_type) || parallel.heads_per_stage == 0) return 1;
  const auto divide_up = [](int64_t heads, int64_t parts) { return (heads + parts - 1) / parts; };
  return divide_up(parallel.comm_type == CommType::a2a
                       ? divide_up(scenario.attention.heads, parallel.cp_size)
                       : scenario.attention.kv_heads,
                   parallel.heads_per_stage);
}

int64_t estimate_plan_items(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const int64_t ranks = parallel.cp_size;
  const int64_t passes = scenario.numerics.backward ? 3 : 1;
  switch (parallel.comm_type) {
    case CommType::p2p:
    case CommType::double_ring:
      return ranks * ranks * (sends_queries_backward(scenario) ? 4 : 3) * passes;
    case CommType::all_gather:
      return ranks * ranks * passes * count_head_stages(scenario);
    case CommType::group_cast:
      return ranks * ranks * passes;
    case CommType::a2a:
      return ranks * ranks * 3 * passes * count_head_stages(scenario);
    case CommType::pass_q:
    case CommType::token_ring:
    case CommType::gather_q:
    case CommType::custom:
      return ranks * ranks * 4 * passes;
    case CommType::helper_ring:
      return ranks * ranks * 3 * passes;
    case CommType::mesh:
      return ranks * (2 * int64_t{ranks} + 3 * (parallel.mesh_q + ranks / parallel.mesh_q)) *
             passes;
    case CommType::a2a_p2p:
    case CommType::a2a_double_ring: {
      const int64_t ring = ranks / parallel.a2a_size;
      return ranks * 3 * (parallel.a2a_size + ring) * passes;
    }
  }
  return 0;
}

std::optional<Error> refuse_by_rule(const Scenario& scenario) {
  const Parallel& parallel = scenario.parallel;
  const int32_t heads = scenario.attention.heads;
  // What follows asks about cp_size; with cp_sizes it is asked for every group.
  if (has_rounds(parallel)) return refuse_round_schedule(scenario);
  if (parallel.kv_replicated > 0 && !may_replicate_keys(parallel.comm_type)) {
    return make_refusal(
        fmt::format(
            "{} requires kv_replicated = 0: keys that every rank holds are planned for p2p, "
            "a2a, a2a+p2p and all_gather only",
            to_name(parallel.comm_type)),
        "use one of these", {"parallel.kv_replicated", "parallel.cp_comm_type"});
  }
  if (parallel.kv_replicated > 0 && has_ring_backward(parallel.comm_type) &&
      parallel.ring_backward == RingBackward::q) {
    return make_refusal(
        "kv_replicated requires ring_backward = \"kv\": with q, gradients of keys stay on one rank",
        "use ring_backward = \"kv\"", {"parallel.ring_backward", "parallel.kv_replicated"});
  }
  if (owns_heads(parallel)) {
    const std::string_view owner = to_name(parallel.q_owner);
    if (scenario.numerics.backward)
      return make_refusal(
          fmt::format("q_owner = \"{}\" requires backward = false: it is a decoder's schedule",
                      owner),
          "set numerics.backward = false", {"parallel.q_owner", "numerics.backward"});
    if (heads < parallel.cp_size)
      return make_refusal(
          fmt::format("q_owner = \"{}\" requires heads >= cp_size: heads = {}, cp_size "
                      "= {}",
                      owner, heads, parallel.cp_size),
          "use fewer ranks, or q_owner = \"rows\"", {"parallel.q_owner", "attention.heads"});
  }
  if (parallel.comm_type == CommType::gather_q && parallel.combine == Combine::tree) {
    if (!owns_heads(parallel))
      return make_refusal(
          "combine = \"tree\" requires ranks that own heads: pairs of ranks exchange halves of "
          "them",
          "set q_owner = \"heads\" or \"heads_replicated\"",
          {"parallel.combine", "parallel.q_owner"});
    if ((parallel.cp_size & (parallel.cp_size - 1)) != 0)
      return make_refusal(
          fmt::format("combine = \"tree\" requires a power of two of ranks: cp_size = {}",
                      parallel.cp_size),
          "use another combine", {"parallel.combine", "parallel.cp_size"});
  }
  if (parallel.comm_type == CommType::a2a && heads < parallel.cp_size) {
    return make_refusal(fmt::format("a2a requires heads >= cp_size: heads = {}, cp_size = {}",
                                    heads, parallel.cp_size),
                        "use fewer ranks, a2a+p2p, or another cp_comm_type", {"attention.heads"});
  }
  if (has_head_groups(parallel.comm_type) && parallel.cp_size % parallel.a2a_size != 0) {
    return make_refusal(
        fmt::format("{} requires cp_size % a2a_size == 0: {} ranks, a2a_size {}",
                    to_name(parallel.comm_type), parallel.cp_size, parallel.a2a_size),
        "use an a2a_size that divides cp_size", {"parallel.a2a_size", "parallel.cp_comm_type"});
  }
  if (parallel.comm_type == CommType::mesh && parallel.cp_size % parallel.mesh_q != 0) {
    return make_refusal(fmt::format("mesh requires cp_size % mesh_q == 0: {} ranks, mesh_q {}",
                                    parallel.cp_size, parallel.mesh_q),
                        "use a mesh_q that divides cp_size",
                        {"parallel.mesh_q", "parallel.cp_comm_type"});
  }
  if (parallel.comm_type == CommType::double_ring && parallel.cp_size % parallel.ring_window != 0) {
    return make_refusal(
        fmt::format("double_ring requires cp_size % ring_window == 0: {} ranks, ring_window {}",
                    parallel.cp_size, parallel.ring_window),
        "use a ring_window that divides cp_size",
        {"parallel.ring_window", "parallel.cp_comm_type"});
  }
  if (has_head_groups(parallel.comm_type) && heads < parallel.a2a_size) {
    return make_refusal(fmt::format("{} requires heads >= a2a_size: heads = {}, a2a_size = {}",
                                    to_name(parallel.comm_type), heads, parallel.a2a_size),
                        "use a smaller a2a_size", {"attention.heads"});
  }
  if (parallel.comm_type == CommType::a2a_double_ring &&
      parallel.cp_size / parallel.a2a_size % parallel.ring_window != 0) {
    return make_refusal(
        fmt::format("a2a+double_ring requires cp_size / a2a_size % ring_window == 0: {} groups, "
                    "ring_window {}",
                    parallel.cp_size / parallel.a2a_size, parallel.ring_window),
        "use a ring_window that divides cp_size / a2a_size",
        {"parallel.ring_window", "parallel.cp_comm_type"});
  }
  return std::nullopt;
}

Result<Plan> make_plan(const Scenario& scenario) {
  if (auto error = refuse_by_rule(scenario)) return *error;
  // Rounds are asked about group by group, once they are known.
  const int64_t items = has_rounds(scenario.parallel) ? 0 : estimate_plan_items(scenario);
  if (auto error = refuse_by_size(items)) return *error;
  return build_plan(scenario, fill);
}

Result<Plan> make_custom_plan(const Scenario& scenario, const FillPlan& fill_it) {
  Result<Plan> plan = build_plan(scenario, fill_it);
  if (!plan) return plan;
  const Result<Plan> planned = make_plan(scenario);
  if (planned && planned.value().hash == plan.value().hash) return plan;
  plan.value().scenario.parallel.comm_type = CommType::custom;
  plan.value().hash = hash_plan(plan.value());
  return plan;
}

}  // namespace cpscope
