#include "tests/sim/plan/plan_cases.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"

#include <gtest/gtest.h>

namespace cpscope::tests {

Scenario make_case(std::vector<int64_t> lengths, int32_t cp_size, LayoutKind layout,
                   CommType comm) {
  Scenario scenario;
  scenario.attention.heads = 1;
  scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = 4;
  scenario.attention.head_dim_v = 4;
  scenario.batch.lengths = lengths;
  scenario.batch.kv_lengths = lengths;
  scenario.batch.slots = lengths;
  scenario.batch.kv_slots = lengths;
  scenario.parallel.cp_size = cp_size;
  scenario.parallel.layout = layout;
  scenario.parallel.comm_type = comm;
  return scenario;
}

Scenario make_cross_case(std::vector<int64_t> lengths, std::vector<int64_t> kv_lengths,
                         int32_t cp_size, LayoutKind layout, CommType comm) {
  Scenario scenario = make_case(std::move(lengths), cp_size, layout, comm);
  scenario.batch.kv_lengths = kv_lengths;
  scenario.batch.kv_slots = std::move(kv_lengths);
  scenario.batch.self_attention = false;
  return scenario;
}

std::string show(const Scenario& scenario) { return print_scenario(scenario); }

std::string show(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

Layout layout_of(const Scenario& scenario) { return make_layout(scenario).value(); }

Plan plan_of(const Scenario& scenario) { return make_plan(scenario).value(); }

void expect_proved(const Plan& plan) {
  for (const CheckResult& check : inspect_plan(plan))
    EXPECT_TRUE(check.ok) << check.name << ": " << check.detail << "\n" << show(plan.scenario);
}

Order query_order(const Layout& layout) {
  Order order;
  for (const std::vector<TokenRun>& runs : layout.q_runs) order.push_back(expand(runs));
  return order;
}

Order key_order(const Layout& layout) {
  Order order;
  for (const std::vector<TokenRun>& runs : layout.kv_runs) order.push_back(expand(runs));
  return order;
}

}  // namespace cpscope::tests
