#include "sim/clock/forecast_ways.h"

#include "sim/documents/forecast_ways_text.h"
#include "sim/scenario/scenario_file.h"

#include <map>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

Scenario drawn_scenario(const std::string& generator, const std::string& parallel) {
  const Result<LoadedScenario> loaded = parse_scenario(
      fmt::format("schema = 1\n[attention]\nheads = 8\nkv_heads = 2\nhead_dim = 64\n"
                  "attn_mask_type = \"padding_causal\"\n[batch]\ngenerator = {{ {} }}\n"
                  "[parallel]\n{}\n",
                  generator, parallel),
      "t.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  return loaded.value().scenario;
}

Cluster h200x8_cluster() { return load_cluster("h200x8", CPSCOPE_CLUSTERS).value(); }

WaysForecast ways_of(const Scenario& scenario, bool has_published = false, int64_t windows = 3) {
  const Result<WaysForecast> found =
      forecast_ways(scenario, h200x8_cluster(), {.windows = windows}, has_published);
  EXPECT_TRUE(found.ok()) << (found ? "" : to_text(found.error()));
  return found.value();
}

const WayForecast& way_named(const DistributionForecast& list, const std::string& name) {
  for (const WayForecast& way : list.ways)
    if (way.name == name) return way;
  ADD_FAILURE() << name << " is not there";
  return list.ways.front();
}

const std::string kShort = "name = \"equal\", tokens = 32768, max = 4096, seed = 3";

TEST(ForecastOfWays, IsTheForecastOfEachWayWithTheSameWindows) {
  const Scenario scenario =
      drawn_scenario("name = \"wlb\", tokens = 32768, max = 8192, seed = 7", "cp_size = 8");
  const WaysForecast found = ways_of(scenario);
  EXPECT_EQ(found.max_tokens_per_rank, 8192) << "twice the share of 4096";
  ASSERT_EQ(found.lists.size(), 1U);
  std::set<std::string> names;
  for (const WayForecast& way : found.lists.front().ways) {
    SCOPED_TRACE(way.name);
    EXPECT_TRUE(names.insert(way.name).second);
    Scenario own = scenario;
    own.parallel = way.parallel;
    const Result<Forecast> alone = forecast_windows(own, h200x8_cluster(), {.windows = 3});
    ASSERT_EQ(alone.ok(), way.refusal.empty()) << way.refusal;
    if (!alone) continue;
    double sum = 0;
    for (const WindowForecast& window : alone.value().windows) sum += window.total_us();
    EXPECT_NEAR(way.total_us.mean, sum / 3, 1e-9 * sum);
    EXPECT_EQ(way.replicas.slowest_us, alone.value().replicas.back().slowest_us);
  }
  EXPECT_EQ(names, (std::set<std::string>{
                       "p2p, dual_chunk", "p2p, dual_chunk, fixed CP 1",
                       "p2p, dual_chunk, fixed CP 2", "p2p, dual_chunk, fixed CP 4",
                       "p2p, dual_chunk, hybrid of 8192", "p2p, dual_chunk, flexsp of 8192",
                       "p2p, dual_chunk, bytescale of 8192", "group_cast, lpt_local 512"}));
}

// Eight documents of 4096 tokens on 8 ranks: one rank each is the best, and no group waits.
TEST(ForecastOfWays, TakesOneRankForEachOfEqualDocumentsAndSaysWhy) {
  const DistributionForecast list = ways_of(drawn_scenario(kShort, "cp_size = 8")).lists.front();
  ASSERT_GE(list.best, 0);
  const WayForecast& best = list.ways[static_cast<size_t>(list.best)];
  const WayForecast& alone = way_named(list, "p2p, dual_chunk, fixed CP 1");
  EXPECT_EQ(best.total_us.mean, alone.total_us.mean);
  EXPECT_NEAR(alone.group_loss, 0, 1e-9);
  EXPECT_GT(way_named(list, "p2p, dual_chunk").total_us.mean, alone.total_us.mean);
  const std::string why = explain_choice(list);
  EXPECT_EQ(why.find("Take " + best.name), 0U) << why;
  EXPECT_NE(why.find("p2p, dual_chunk takes"), std::string::npos) << why;
  EXPECT_NE(why.find("group_cast, lpt_local 512 is as fast"), std::string::npos) << why;
}

// One document of 24576 tokens and short ones: with 4 ranks the group of the long one is the
// slowest, and the group that waits for it has less than half of its work.
TEST(ForecastOfWays, CountsTheTimeThatGroupsWaitForTheSlowestOne) {
  const Scenario scenario =
      drawn_scenario("name = \"magi\", tokens = 32768, max = 32768, seed = 2", "cp_size = 8");
  const DistributionForecast list = ways_of(scenario).lists.front();
  const WayForecast& one = way_named(list, "p2p, dual_chunk, fixed CP 1");
  ASSERT_EQ(one.refusal, "");
  EXPECT_GT(one.group_loss, 0.05);
  EXPECT_LT(one.group_loss, 1);
  EXPECT_NEAR(one.group_loss, one.mean.groups_us / one.total_us.mean, 1e-12);
  EXPECT_EQ(way_named(list, "p2p, dual_chunk").group_loss, 0);
}

TEST(ForecastOfWays, NamesTheWayThatDoesNotHoldADocumentAndGoesOn) {
  const DistributionForecast list =
      ways_of(drawn_scenario(kShort, "cp_size = 8\nmax_tokens_per_rank = 2048")).lists.front();
  EXPECT_EQ(way_named(list, "p2p, dual_chunk, fixed CP 1").refusal,
            "sequence 0 of 4096 tokens does not fit on 1 rank of 2048 tokens (window of "
            "generator.seed 3)");
  EXPECT_EQ(way_named(list, "p2p, dual_chunk, fixed CP 2").refusal, "");
  EXPECT_GE(list.best, 0);
  EXPECT_FALSE(list.ways.back().refusal.empty()) << "refused ways are last";
}

TEST(ForecastOfWays, DrawsEveryPublishedDistributionWithTheLimitsOfTheScenario) {
  const WaysForecast found =
      ways_of(drawn_scenario("name = \"equal\", tokens = 16384, max = 4096, seed = 3",
                             "cp_size = 4\ncp_comm_type = \"a2a\""),
              true, 2);
  ASSERT_EQ(found.lists.size(), kPublishedLengths.size());
  for (size_t i = 0; i < found.lists.size(); ++i) {
    EXPECT_EQ(found.lists[i].generator.name, kPublishedLengths[i]);
    EXPECT_EQ(found.lists[i].generator.max, 4096);
    EXPECT_EQ(way_named(found.lists[i], "a2a, dual_chunk, fixed CP 2").refusal, "");
  }
  std::ostringstream text;
  write_ways_text(found, text);
  EXPECT_NE(text.str().find("generator prolong, documents of at most 4096 tokens"),
            std::string::npos)
      << text.str();
  const std::string page = ways_markdown(found);
  EXPECT_NE(page.find("| way | prolong | wlb | byted | wiki | magi |\n"), std::string::npos)
      << page;
  EXPECT_NE(page.find("| a2a, dual_chunk, fixed CP 1 |"), std::string::npos) << page;
}

TEST(ForecastOfWays, RefusesABatchThatNoSeedChanges) {
  Scenario scenario = drawn_scenario(kShort, "cp_size = 8");
  scenario.batch.generator.reset();
  for (const bool has_published : {false, true}) {
    const Result<WaysForecast> found =
        forecast_ways(scenario, h200x8_cluster(), {.windows = 2}, has_published);
    ASSERT_FALSE(found.ok());
    EXPECT_NE(to_text(found.error()).find("the batch has fixed lengths"), std::string::npos);
  }
}

}  // namespace
}  // namespace cpscope
