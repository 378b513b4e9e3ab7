#include "sim/plan/check/plan_check.h"
#include "tests/sim/plan/plan_cases.h"

#include <functional>
#include <map>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PlanHash, IsEqualForEqualScenarios) {
  const Scenario scenario = make_case({24, 9, 40}, 4);
  EXPECT_EQ(plan_of(scenario).hash, plan_of(scenario).hash);
  EXPECT_EQ(hash_plan(plan_of(scenario)), plan_of(scenario).hash);
}

TEST(PlanHash, DiffersWhenTheScenarioDoes) {
  const std::vector<std::pair<std::string, std::function<void(Scenario&)>>> changes{
      {"nothing", [](Scenario&) {}},
      {"cp_size", [](Scenario& s) { s.parallel.cp_size = 2; }},
      {"layout", [](Scenario& s) { s.parallel.layout = LayoutKind::contiguous; }},
      {"mask", [](Scenario& s) { s.attention.mask_type = MaskType::no_mask; }},
      {"window", [](Scenario& s) { s.attention.window_left = 5; }},
      {"comm type", [](Scenario& s) { s.parallel.comm_type = CommType::all_gather; }},
      {"lengths",
       [](Scenario& s) {
         s.batch.lengths = s.batch.kv_lengths = {24, 9, 39};
       }},
      {"heads", [](Scenario& s) { s.attention.heads = 2; }},
      {"dkv_wire", [](Scenario& s) { s.numerics.dkv_wire = WireFormat::fp32; }},
      {"dkv_hops", [](Scenario& s) { s.numerics.dkv_hops = DkvHops::ring; }},
      {"backward", [](Scenario& s) { s.numerics.backward = false; }},
      {"inputs", [](Scenario& s) { s.numerics.inputs = InputKind::peaked; }},
      {"seed", [](Scenario& s) { s.numerics.seed = 2; }}};
  std::map<uint64_t, std::string> seen;
  for (const auto& [name, change] : changes) {
    Scenario scenario = make_case({24, 9, 40}, 4);
    change(scenario);
    const auto [known, is_new] = seen.emplace(plan_of(scenario).hash, name);
    EXPECT_TRUE(is_new) << name << " hashes as " << known->second;
  }
}

TEST(PlanHash, DiffersWhenAnyItemDoes) {
  const std::vector<std::pair<std::string, std::function<void(Plan&)>>> changes{
      {"nothing", [](Plan&) {}},
      {"run", [](Plan& p) { ++p.runs.back().end; }},
      {"slice", [](Plan& p) { ++p.slices.back().hi; }},
      {"buffer", [](Plan& p) { ++p.buffers.back().rows; }},
      {"compute d_out", [](Plan& p) { p.backward.computes.back().d_out = BufferId{0}; }},
      {"compute dq", [](Plan& p) { p.backward.computes.back().dq = BufferId{0}; }},
      {"compute pairs", [](Plan& p) { ++p.forward.computes.back().visible_pairs; }},
      {"transfer rows", [](Plan& p) { p.forward.transfers.back().to_rows = RunListId{0}; }},
      {"transfer bytes", [](Plan& p) { ++p.forward.transfers.back().bytes; }},
      {"transfer link", [](Plan& p) { p.forward.transfers.back().link = LinkClass::direct; }},
      {"transfer landing", [](Plan& p) { p.forward.transfers.back().landing = Landing::add; }},
      {"transfer wire", [](Plan& p) { p.forward.transfers.back().wire_fp32 = true; }},
      {"merge order", [](Plan& p) { ++p.forward.merges.back().order; }},
      {"merge partial", [](Plan& p) { p.forward.merges.back().partial = kNoBuffer; }},
      {"finish", [](Plan& p) { p.forward.finishes.back().buffer = BufferId{0}; }},
      {"stage", [](Plan& p) { p.forward.stages.back().kind = StageKind::merge; }},
      {"forward reorder", [](Plan& p) { p.forward.reorders.push_back({}); }},
      {"backward reorder", [](Plan& p) { p.backward.reorders.push_back({}); }}};
  std::map<uint64_t, std::string> seen;
  const Plan plan = plan_of(make_case({24, 9, 40}, 4));
  for (const auto& [name, change] : changes) {
    Plan changed = plan;
    change(changed);
    const auto [known, is_new] = seen.emplace(hash_plan(changed), name);
    EXPECT_TRUE(is_new) << name << " hashes as " << known->second;
  }
}

/// Lengths of many documents that fill 131072 tokens, from a few dozen to thousands each.
std::vector<int64_t> packed_documents() {
  std::vector<int64_t> lengths;
  int64_t left = 131072;
  for (int64_t length = 37; left > 0; length = length * 7 % 8191 + 32) {
    lengths.push_back(std::min(left, length));
    left -= lengths.back();
  }
  return lengths;
}

TEST(LargePlan, Of131072TokensOn64RanksIsBuiltAndChecked) {
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::all_gather, CommType::a2a_p2p,
                              CommType::group_cast}) {
    for (const LayoutKind layout :
         {LayoutKind::dual_chunk, LayoutKind::striped, LayoutKind::lpt, LayoutKind::lpt_local}) {
      Scenario scenario = make_case(packed_documents(), 64, layout, comm);
      scenario.attention.heads = 64;
      scenario.attention.kv_heads = 8;
      scenario.parallel.a2a_size = 8;
      const Result<CheckedPlan> checked = check_plan(plan_of(scenario));
      EXPECT_TRUE(checked.ok()) << to_name(comm) << ", " << to_name(layout) << ": "
                                << (checked.ok() ? "" : to_text(checked.error()));
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
