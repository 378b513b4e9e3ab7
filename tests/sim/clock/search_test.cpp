#include "sim/clock/search.h"

#include "sim/clock/clock.h"
#include "sim/clock/order_search.h"
#include "sim/documents/comparison_text.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

Scenario scenario_to_search(const std::string& lengths = "3000, 700, 1200, 300",
                            const std::string& parallel = "cp_size = 4",
                            const std::string& batch = "") {
  const Result<LoadedScenario> loaded = parse_scenario(
      fmt::format("schema = 1\n[attention]\nheads = 8\nkv_heads = 2\nhead_dim = 64\n"
                  "attn_mask_type = \"padding_causal\"\n[batch]\nlengths = [{}]\n{}\n"
                  "[parallel]\n{}\n",
                  lengths, batch, parallel),
      "t.toml");
  EXPECT_TRUE(loaded.ok()) << (loaded ? "" : to_text(loaded.error()));
  return loaded.value().scenario;
}

Cluster cluster_named(const char* name) { return load_cluster(name, CPSCOPE_CLUSTERS).value(); }

/// No time limit: the same on every machine.
SearchOptions tries_of(int64_t tries) {
  SearchOptions options;
  options.candidates.dispatch_chunks = {128, 256};
  options.seconds = 1e6;
  options.tries = tries;
  return options;
}

const Candidate& best_of(const Candidates& all) {
  return all.candidates.at(static_cast<size_t>(all.best));
}

Candidates search(const Scenario& scenario, const Cluster& cluster, const SearchOptions& options) {
  return search_candidates(scenario, cluster, options).value();
}

TEST(Search, IsNeverWorseThanTheComparison) {
  for (const char* name : {"h200x8", "h200_ib"}) {
    const Cluster cluster = cluster_named(name);
    for (const int ranks : {2, 6, 16}) {
      if (ranks > cluster.num_gpus()) continue;
      const Scenario scenario =
          scenario_to_search("9000, 700, 1200, 300", fmt::format("cp_size = {}", ranks));
      const SearchOptions options = tries_of(200);
      const Candidates plain = compare_candidates(scenario, cluster, options.candidates).value();
      const Candidates searched = search(scenario, cluster, options);
      EXPECT_LE(std::llround(best_of(searched).total_us()), std::llround(best_of(plain).total_us()))
          << name << ", " << ranks << " ranks";
      // Every candidate of the comparison is among those of the search, with the same time.
      for (const Candidate& one : plain.candidates) {
        const auto same = std::find_if(
            searched.candidates.begin(), searched.candidates.end(),
            [&](const Candidate& other) { return is_same_way(one.parallel, other.parallel); });
        ASSERT_NE(same, searched.candidates.end()) << one.name;
        EXPECT_EQ(same->total_us(), one.total_us()) << one.name;
        EXPECT_FALSE(same->is_searched) << one.name;
      }
    }
  }
}

// Document ends and diagonals leave no layout even: an order that the search finds is faster.
TEST(Search, FindsAnOrderThatIsFasterThanEveryLayout) {
  const Scenario scenario =
      scenario_to_search("20000, 5000, 9000, 2500, 12000, 700", "cp_size = 8");
  const Cluster cluster = cluster_named("h200x8");
  const Candidates plain = compare_candidates(scenario, cluster, tries_of(1).candidates).value();
  const Candidates searched = search(scenario, cluster, tries_of(1500));
  EXPECT_LT(best_of(searched).total_us(), 0.99 * best_of(plain).total_us())
      << best_of(searched).name << " against " << best_of(plain).name;
  EXPECT_TRUE(best_of(searched).is_searched);
  const SearchReport& report = searched.search.value();
  EXPECT_GT(report.ways_tried, 100);
  EXPECT_GT(report.orders_tried, 100);
  EXPECT_LE(report.tries(), 1500);
  EXPECT_FALSE(report.starts.empty());
}

TEST(Search, GivesTheSameForTheSameTriesAndSeed) {
  const Scenario scenario = scenario_to_search();
  const Cluster cluster = cluster_named("h200x8");
  // Some tries end among the ways, others among the orders.
  for (const int64_t tries : {1, 50, 700}) {
    const std::string once = comparison_json(search(scenario, cluster, tries_of(tries)));
    EXPECT_EQ(once, comparison_json(search(scenario, cluster, tries_of(tries)))) << tries;
  }
  SearchOptions other = tries_of(700);
  other.seed = 2;
  EXPECT_NE(comparison_json(search(scenario, cluster, other)),
            comparison_json(search(scenario, cluster, tries_of(700))));
}

TEST(Search, EndsWithItsTimeAndSaysHowToRepeatIt) {
  const Scenario scenario = scenario_to_search();
  const Cluster cluster = cluster_named("h200x8");
  SearchOptions options = tries_of(0);
  options.seconds = 0;
  const Candidates none = search(scenario, cluster, options);
  const Candidates plain = compare_candidates(scenario, cluster, options.candidates).value();
  EXPECT_EQ(none.candidates.size(), plain.candidates.size());
  EXPECT_EQ(best_of(none).name, best_of(plain).name);
  EXPECT_EQ(none.search->end, SearchEnd::time);
  EXPECT_EQ(none.search->tries(), 0);
  EXPECT_NE(comparison_json(none).find("ended with the time"), std::string::npos);
}

TEST(Search, StaysWithinTheMemoryLimit) {
  const Scenario scenario = scenario_to_search("20000, 5000, 9000", "cp_size = 8");
  Cluster cluster = cluster_named("h200x8");
  const Candidates roomy = search(scenario, cluster, tries_of(400));
  cluster.device.memory_gib = static_cast<double>(best_of(roomy).memory_bytes - 1) / (1 << 30);
  const Candidates tight = search(scenario, cluster, tries_of(400));
  ASSERT_GE(tight.best, 0);
  EXPECT_LT(best_of(tight).memory_bytes, best_of(roomy).memory_bytes);
  EXPECT_GE(best_of(tight).total_us(), best_of(roomy).total_us());
  for (const Candidate& one : tight.candidates) {
    if (one.refusal.empty() && one.parallel.layout == LayoutKind::indices) {
      EXPECT_TRUE(one.fits) << one.name;
    }
  }
  cluster.device.memory_gib = 0;
  EXPECT_EQ(search(scenario, cluster, tries_of(40)).best, -1);
}

/// The scenario of the best candidate, printed and parsed; the order as its file would give it.
Scenario read_again(const Scenario& scenario, const Candidate& best) {
  Scenario taken = take_way(scenario, best, "found.json");
  ImportedOrder order = taken.parallel.imported;
  const LayoutKind layout = taken.parallel.layout;
  if (layout == LayoutKind::indices) taken.parallel.layout = LayoutKind::contiguous;
  taken.parallel.imported = {};
  taken.parallel.indices_file.clear();
  const Result<LoadedScenario> loaded = parse_scenario(print_scenario(taken), "again.toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
  EXPECT_TRUE(loaded.value().warnings.empty()) << loaded.value().warnings.front();
  Scenario again = loaded.value().scenario;
  again.parallel.layout = layout;
  again.parallel.imported = std::move(order);
  return again;
}

TEST(Search, GivesAScenarioWithThePredictedTimeThatIsProved) {
  const Cluster cluster = cluster_named("h200x8");
  for (const char* batch :
       {"", "pad_side = \"left\"", "slot_multiple = 96", "kv_lengths = [4000, 700, 1500, 300]"}) {
    const Scenario scenario = scenario_to_search("3000, 700, 1200, 300", "cp_size = 4", batch);
    const Candidates searched = search(scenario, cluster, tries_of(600));
    int orders = 0;
    for (const Candidate& one : searched.candidates) {
      const bool is_order =
          one.refusal.empty() && one.is_searched && one.parallel.layout == LayoutKind::indices;
      if (!is_order && &one != &best_of(searched)) continue;
      orders += is_order ? 1 : 0;
      const Scenario again = read_again(scenario, one);
      Result<Plan> plan = make_plan(again);
      ASSERT_TRUE(plan.ok()) << batch << to_text(plan.error());
      const Timeline times = predict(plan.value(), cluster).value();
      EXPECT_EQ(times.forward.total_us + times.backward.total_us, one.total_us())
          << batch << one.name;
      EXPECT_TRUE(check_plan(std::move(plan).value()).ok()) << batch << one.name;
    }
    EXPECT_GT(orders, 0) << batch;
  }
}

TEST(Search, GivesWaysWithACpSizeForEachSequenceAsTheyAre) {
  const Cluster cluster = cluster_named("h200x8");
  const Scenario scenario =
      scenario_to_search("4000, 100, 2000, 4000", "cp_size = 8\nmax_tokens_per_rank = 2000");
  const Candidates found = search(scenario, cluster, tries_of(1));
  // Groups of a fixed size are fast here.
  EXPECT_EQ(found.candidates.front().parallel.group_rule, GroupRule::fixed)
      << found.candidates.front().name;
  std::ostringstream text;
  write_comparison_text(found, false, text);
  EXPECT_NE(text.str().find("visible pairs / (8 ranks x"), std::string::npos) << text.str();
  int64_t ways = 0;
  for (const Candidate& candidate : found.candidates) {
    if (!has_rounds(candidate.parallel) || !candidate.refusal.empty()) continue;
    ++ways;
    const Scenario taken = take_way(scenario, candidate, "");
    EXPECT_EQ(taken.parallel.group_rule, candidate.parallel.group_rule) << candidate.name;
    EXPECT_EQ(taken.parallel.cp_sizes, candidate.parallel.cp_sizes) << candidate.name;
    const Result<Plan> plan = make_plan(taken);
    ASSERT_TRUE(plan.ok()) << candidate.name;
    const Timeline timeline = predict(plan.value(), cluster, {"", false}).value();
    EXPECT_NEAR(timeline.forward.total_us + timeline.backward.total_us, candidate.total_us(),
                1e-6 * candidate.total_us())
        << candidate.name;
  }
  EXPECT_GE(ways, 9) << "hybrid, flexsp and bytescale of three types";
}

TEST(Search, KeepsEveryRankWithinTheTokensOfTheFullestOne) {
  const Scenario scenario = scenario_to_search("3001, 700, 1200, 301", "cp_size = 4");
  const Candidates searched = search(scenario, cluster_named("h200x8"), tries_of(600));
  const size_t share = (3001 + 700 + 1200 + 301 + 3) / 4;
  for (const Candidate& one : searched.candidates) {
    if (one.parallel.layout != LayoutKind::indices) continue;
    std::set<int64_t> all;
    for (const std::vector<int64_t>& own : one.parallel.imported.ranks) {
      EXPECT_LE(own.size(), share + 2 * 256) << one.name << ": lpt's own chunks";
      EXPECT_FALSE(own.empty());
      all.insert(own.begin(), own.end());
    }
    EXPECT_EQ(all.size(), 3001 + 700 + 1200 + 301U) << one.name;
  }
}

// Both bounds by hand.
TEST(Search, SaysHowFarTheBestIsFromTheWorkAndTheWires) {
  const Scenario scenario = scenario_to_search("2048", "cp_size = 4");
  const Cluster cluster = cluster_named("h200x8");
  const Candidates searched = search(scenario, cluster, tries_of(100));
  const SearchReport& report = searched.search.value();
  EXPECT_EQ(report.pairs, int64_t{8} * 2048 * 2049 / 2);
  const KernelCost& cost = *find_kernel_cost(cluster.stacks.front(), scenario).value();
  const auto pair_us = [&](const TileCost& tiles) {
    return std::min(tiles.whole_us, tiles.masked_us) / (tiles.tile_rows * tiles.tile_keys) /
           cluster.device.multiprocessors;
  };
  EXPECT_NEAR(
      report.work_us,
      static_cast<double>(report.pairs) * (pair_us(cost.forward) + pair_us(cost.backward)) / 4,
      1e-9 * report.work_us);
  for (const Candidate& one : searched.candidates) {
    if (!one.refusal.empty()) continue;
    EXPECT_GE(one.total_us(), report.work_us) << one.name;
  }
  EXPECT_GT(report.wires.us(), 0);
  EXPECT_GE(best_of(searched).total_us(), report.wires.us());
  // A ring of one causal sequence in four parts: parts 0, 1 and 2 are seen by 3, 2 and 1 others.
  SearchOptions none = tries_of(0);
  none.seconds = 0;
  Scenario ring = scenario_to_search("2048", "cp_size = 4\nlayout = \"contiguous\"");
  ring.attention.kv_heads = 1;
  const Candidates compared = search(ring, cluster, none);
  if (best_of(compared).parallel.layout == LayoutKind::contiguous && compared.search->sends_least) {
    EXPECT_EQ(compared.search->wires.bytes, 2 * 6 * 512 * 128 * 2);
  }
}

// A bound that is too high would rule out the best.
TEST(Search, LeavesOutOnlyWaysThatAreSlower) {
  const Scenario scenario = scenario_to_search("60000, 300, 300", "cp_size = 8");
  const Cluster cluster = cluster_named("h200x8");
  const Candidates searched = search(scenario, cluster, tries_of(2000));
  const SearchReport& report = searched.search.value();
  ASSERT_GT(report.ways_too_slow, 0) << "contiguous parts of one long causal sequence";
  CandidateOptions options;
  int64_t slower = 0;
  for (const Parallel& way : list_search_ways(scenario, {128, 256})) {
    const bool was_tried =
        std::any_of(searched.candidates.begin(), searched.candidates.end(),
                    [&](const Candidate& one) { return is_same_way(one.parallel, way); });
    if (was_tried) continue;
    Candidate left_out;
    left_out.parallel = way;
    try_candidate(scenario, cluster, options, left_out);
    if (!left_out.refusal.empty()) continue;
    ++slower;
    EXPECT_GT(left_out.total_us(), best_of(searched).total_us()) << to_name(way.layout);
  }
  EXPECT_GT(slower, 0);
}

TEST(Search, TriesEveryTypeWithItsKeysOnce) {
  const Scenario scenario = scenario_to_search("4096", "cp_size = 8");
  const std::vector<Parallel> ways = list_search_ways(scenario, {128, 256});
  std::set<CommType> types;
  for (size_t a = 0; a < ways.size(); ++a) {
    types.insert(ways[a].comm_type);
    for (size_t b = 0; b < a; ++b)
      ASSERT_FALSE(is_same_way(ways[a], ways[b])) << to_name(ways[a].comm_type);
  }
  EXPECT_EQ(types.size(), 12U);
  const auto count = [&](CommType type) {
    return std::count_if(ways.begin(), ways.end(),
                         [&](const Parallel& way) { return way.comm_type == type; }) /
           10;  // layouts: three that cut, three stripes, twice two chunks
  };
  EXPECT_EQ(count(CommType::p2p), 2);              // what returns in the backward
  EXPECT_EQ(count(CommType::double_ring), 4);      // windows of 2 and 4
  EXPECT_EQ(count(CommType::mesh), 3);             // 2, 4, 8
  EXPECT_EQ(count(CommType::a2a), 1);              // one head a rank
  EXPECT_EQ(count(CommType::all_gather), 2);       // both KV heads or one
  EXPECT_EQ(count(CommType::a2a_p2p), 2);          // 2, 4
  EXPECT_EQ(count(CommType::a2a_double_ring), 1);  // 2 of 2 x 2
  EXPECT_EQ(count(CommType::group_cast), 2);
  EXPECT_EQ(count(CommType::gather_q), 2);
}

TEST(Search, ReturnsTheErrorsOfTheComparison) {
  const Scenario scenario = scenario_to_search("512", "cp_size = 16");
  EXPECT_FALSE(search_candidates(scenario, cluster_named("h200x8"), tries_of(1)).ok());
  SearchOptions options = tries_of(100);
  options.candidates.stack = "nobody";
  EXPECT_FALSE(search_candidates(scenario_to_search(), cluster_named("h200x8"), options).ok());
  std::atomic<int> asked = 0;
  SearchOptions cancelled = tries_of(1000);
  cancelled.candidates.control.is_cancelled = [&] { return ++asked > 120; };
  const Result<Candidates> ended =
      search_candidates(scenario_to_search(), cluster_named("h200x8"), cancelled);
  ASSERT_FALSE(ended.ok());
  EXPECT_NE(to_text(ended.error()).find("cancelled"), std::string::npos) << to_text(ended.error());
}

TEST(Search, SplitsBatchesThatHaveNothingToSplit) {
  const Cluster cluster = cluster_named("h200x8");
  for (const char* lengths : {"1", "0, 3", "7, 0, 5"}) {
    const Scenario scenario = scenario_to_search(lengths, "cp_size = 2");
    const Result<Candidates> searched = search_candidates(scenario, cluster, tries_of(300));
    ASSERT_TRUE(searched.ok()) << lengths << to_text(searched.error());
    EXPECT_GE(searched.value().best, 0) << lengths;
  }
  const Scenario alone = scenario_to_search("100", "cp_size = 1");
  EXPECT_TRUE(search_candidates(alone, cluster, tries_of(100)).ok());
}

}  // namespace
}  // namespace cpscope
