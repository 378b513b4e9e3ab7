#include "sim/clock/crossover.h"

#include "sim/clock/clock.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

Scenario prefix_scenario(const std::string& mask = "causal") {
  const Result<LoadedScenario> loaded = parse_scenario(
      "schema = 1\n[attention]\nheads = 32\nkv_heads = 8\nhead_dim = 128\nattn_mask_type = \"" +
          mask + "\"\n[batch]\nlengths = [131072]\n[parallel]\ncp_size = 8\n",
      "prefix.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  return loaded.value().scenario;
}

Cluster cluster_of_crossover() { return load_cluster("h200x8", CPSCOPE_CLUSTERS).value(); }

/// The predicted forward of so many queries that end the batch's keys.
double forward_of(Scenario scenario, CommType type, LayoutKind layout, int64_t queries) {
  scenario.numerics.backward = false;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.batch.lengths = {queries};
  scenario.batch.slots = {(queries + 15) / 16 * 16};
  scenario.parallel.comm_type = type;
  scenario.parallel.layout = layout;
  const Result<Plan> plan = make_plan(scenario);
  EXPECT_TRUE(plan.ok());
  return predict(plan.value(), cluster_of_crossover(), {"", false}).value().forward.total_us;
}

TEST(Crossover, StandsWhereTheFastestOfBothKindsOfWaysAreEquallyFast) {
  const Scenario scenario = prefix_scenario();
  const Crossover found = find_crossover(scenario, cluster_of_crossover()).value();
  EXPECT_EQ(found.keys, 131072);
  ASSERT_GT(found.points.size(), 10u);
  EXPECT_EQ(found.points.front().queries, 1);
  EXPECT_EQ(found.points.back().queries, 131072);
  EXPECT_FALSE(found.points.front().keys_are_faster());
  EXPECT_TRUE(found.points.back().keys_are_faster());
  const auto queries_us = [&](int64_t queries) {
    return std::min({forward_of(scenario, CommType::pass_q, LayoutKind::contiguous, queries),
                     forward_of(scenario, CommType::token_ring, LayoutKind::contiguous, queries),
                     forward_of(scenario, CommType::token_ring, LayoutKind::dual_chunk, queries),
                     forward_of(scenario, CommType::gather_q, LayoutKind::contiguous, queries)});
  };
  const auto keys_us = [&](int64_t queries) {
    return std::min({forward_of(scenario, CommType::p2p, LayoutKind::dual_chunk, queries),
                     forward_of(scenario, CommType::all_gather, LayoutKind::dual_chunk, queries),
                     forward_of(scenario, CommType::group_cast, LayoutKind::contiguous, queries),
                     forward_of(scenario, CommType::group_cast, LayoutKind::dual_chunk, queries)});
  };
  ASSERT_GT(found.queries, 0);
  EXPECT_LT(keys_us(found.queries), queries_us(found.queries));
  EXPECT_GT(keys_us(found.queries * 96 / 100), queries_us(found.queries * 96 / 100));
}

TEST(Crossover, GivesEverySequenceQueriesInProportionToItsKeys) {
  Scenario scenario = prefix_scenario("padding_causal");
  scenario.batch.lengths = scenario.batch.kv_lengths = {4000, 1000};
  scenario.batch.slots = scenario.batch.kv_slots = {4000, 1008};
  const Crossover found = find_crossover(scenario, cluster_of_crossover()).value();
  EXPECT_EQ(found.keys, 5000);
  for (const CrossoverPoint& point : found.points)
    EXPECT_FALSE(point.keys_way.empty() && point.queries_way.empty()) << point.queries;
  EXPECT_EQ(found.points.back().queries, 5000);
}

TEST(Crossover, OfAStripedCacheLeavesItsKeysInTheirStripes) {
  Scenario scenario = prefix_scenario("padding_causal_bottom_right");
  scenario.batch.lengths = scenario.batch.slots = {4, 1};
  scenario.batch.kv_lengths = scenario.batch.kv_slots = {32768, 16384};
  scenario.batch.self_attention = false;
  scenario.parallel.layout = LayoutKind::striped;
  scenario.parallel.stripe = 16;
  const Crossover found = find_crossover(scenario, cluster_of_crossover()).value();
  EXPECT_EQ(found.keys, 49152);
  ASSERT_GT(found.points.size(), 10u);
  EXPECT_LE(found.points.front().queries, 3);
  for (const CrossoverPoint& point : found.points) {
    EXPECT_TRUE(point.queries_way.ends_with("striped of 16")) << point.queries_way;
    EXPECT_TRUE(point.keys_way.ends_with("striped of 16")) << point.keys_way;
  }
  EXPECT_EQ(found.points.front().queries_way, "gather_q, striped of 16");
  EXPECT_LT(2 * found.points.front().queries_us, found.points.front().keys_us);
  EXPECT_GT(found.queries, 1024);
  EXPECT_LT(found.queries, found.keys);
}

TEST(Crossover, RefusesMasksOfFixedCellsAndClustersThatAreTooSmall) {
  Scenario scenario = prefix_scenario();
  scenario.attention.bias = BiasShape::one_h;
  const Result<Crossover> of_bias = find_crossover(scenario, cluster_of_crossover());
  ASSERT_FALSE(of_bias.ok());
  EXPECT_EQ(of_bias.error().kind, ErrorKind::refused);
  EXPECT_NE(to_text(of_bias.error()).find("a bias does not"), std::string::npos);
  scenario = prefix_scenario();
  scenario.parallel.cp_size = 1024;
  EXPECT_FALSE(find_crossover(scenario, cluster_of_crossover()).ok());
}

}  // namespace
}  // namespace cpscope
