#include "tests/program/program_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

TEST(CompareCommand, ListsEveryWayAndRecommendsOne) {
  const std::string file =
      write_file("compare.toml",
                 small_scenario("cp_size = 4", "lengths = [370, 0, 210]", "", "dtype = \"bf16\""));
  const std::string csv = (work_folder() / "compare.csv").string();
  const ProgramRun run = run_cpscope("compare " + file + " --json --csv " + csv +
                                     " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json comparison = json::parse(run.out);
  std::set<std::string> ways, best, own;
  for (const json& candidate : comparison["candidates"]) {
    ways.insert(candidate["cp_comm_type"].get<std::string>() + "/" +
                candidate["layout"].get<std::string>());
    if (candidate["status"] == "refused") continue;
    if (candidate["is_best"]) best.insert(candidate["name"].get<std::string>());
    if (candidate["is_own"]) own.insert(candidate["name"].get<std::string>());
  }
  EXPECT_EQ(ways.size(), 5 * 6U);
  ASSERT_EQ(best.size(), 1U);
  EXPECT_EQ(own, std::set<std::string>{"p2p, dual_chunk"});
  EXPECT_NE(comparison["recommendation"].get<std::string>().find("Take " + *best.begin()),
            std::string::npos);
  std::ifstream table(csv);
  int64_t lines = 0;
  for (std::string line; std::getline(table, line);) ++lines;
  EXPECT_EQ(lines, static_cast<int64_t>(comparison["candidates"].size()) + 1);
  EXPECT_EQ(run_cpscope("compare " + file +
                        " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml --csv /no/such/folder/a.csv")
                .exit_code,
            2);
}

TEST(CompareCommand, SaysFromHowManyQueriesOnSendingKeysIsFaster) {
  const std::string command = "compare " CPSCOPE_SOURCE_DIR
                              "/scenarios"
                              "/pass_q.toml --crossover --cluster " CPSCOPE_CLUSTERS "/h200x8.toml";
  const ProgramRun run = run_cpscope(command + " --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json crossover = json::parse(run.out)["crossover"];
  EXPECT_EQ(crossover["keys"], 4096);
  EXPECT_EQ(crossover["points"].size(), 13U);  // 1, 2, ... 4096 queries
  for (const json& point : crossover["points"]) {
    EXPECT_GT(point["queries_travel"]["forward_us"], 0);
    EXPECT_GT(point["keys_travel"]["forward_us"], 0);
  }
  const std::string words = crossover["text"].get<std::string>();
  EXPECT_NE(run_cpscope(command).out.find(words), std::string::npos) << words;
  EXPECT_FALSE(
      json::parse(run_cpscope("compare " CPSCOPE_SOURCE_DIR "/scenarios"
                              "/pass_q.toml --json --cluster " CPSCOPE_CLUSTERS "/h200x8.toml")
                      .out)
          .contains("crossover"));
}

/// The candidates that are possible, by name.
std::map<std::string, json> candidates_of(const std::string& arguments) {
  const ProgramRun run =
      run_cpscope("compare " + arguments + " --json --cluster " CPSCOPE_CLUSTERS "/h200x8.toml");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::map<std::string, json> found;
  const json comparison = json::parse(run.out);
  for (const json& candidate : comparison["candidates"]) {
    if (candidate["status"] != "refused") found[candidate["name"]] = candidate;
  }
  return found;
}

TEST(CompareCommand, PricesChangesToConsecutiveOrderInBothPasses) {
  const std::string file =
      write_file("reshards.toml",
                 small_scenario("cp_size = 4", "lengths = [370, 0, 210]", "", "dtype = \"bf16\""));
  const auto plain = candidates_of(file), changed = candidates_of(file + " --reshards 2");
  const double once = changed.at("p2p, dual_chunk")["reshard_us"].get<double>();
  EXPECT_GT(once, 0);
  EXPECT_DOUBLE_EQ(changed.at("p2p, dual_chunk")["total_us"].get<double>(),
                   plain.at("p2p, dual_chunk")["total_us"].get<double>() + once);
  EXPECT_GT(changed.at("p2p, dual_chunk")["bytes_sent_by_busiest_rank"].get<int64_t>(),
            plain.at("p2p, dual_chunk")["bytes_sent_by_busiest_rank"].get<int64_t>());
  EXPECT_EQ(changed.at("p2p, contiguous")["reshard_us"].get<double>(), 0);
  EXPECT_EQ(changed.at("p2p, contiguous")["total_us"], plain.at("p2p, contiguous")["total_us"]);
  EXPECT_NEAR(
      candidates_of(file + " --reshards 4").at("p2p, dual_chunk")["reshard_us"].get<double>(),
      2 * once, 1e-9 * once);
}

TEST(CompareCommand, TriesASizeForEachSequenceNextToAllRanks) {
  const std::string file = write_file(
      "sizes.toml", small_scenario("cp_size = 4\nmax_tokens_per_rank = 128",
                                   "lengths = [370, 100, 90, 80, 210]", "", "dtype = \"bf16\""));
  const auto found = candidates_of(file);
  const json &whole = found.at("p2p, dual_chunk"),
             &sized = found.at("p2p, dual_chunk, hybrid of 128");
  EXPECT_EQ(sized["cp_sizes"], "hybrid");
  EXPECT_EQ(whole["cp_sizes"], "all_ranks");
  EXPECT_LT(sized["bytes_sent_by_busiest_rank"].get<int64_t>(),
            whole["bytes_sent_by_busiest_rank"].get<int64_t>());
  EXPECT_TRUE(found.contains("all_gather, striped, hybrid of 128"));
  EXPECT_EQ(found.at("p2p, dual_chunk, flexsp of 128")["cp_sizes"], "flexsp");
  EXPECT_EQ(found.at("a2a, contiguous, bytescale of 128")["cp_sizes"], "bytescale");
  EXPECT_FALSE(found.contains("group_cast, lpt 256, hybrid of 128"));
}

// What the table says of groups of one size is what a scenario with them takes.
TEST(CompareCommand, GivesGroupsOfOneSizeTheTimeOfTheirScenario) {
  const std::string lengths = "lengths = [370, 100, 90, 80, 210]";
  const auto found = candidates_of(write_file(
      "sizes.toml",
      small_scenario("cp_size = 4\nmax_tokens_per_rank = 256", lengths, "", "dtype = \"bf16\"")));
  const std::string fixed = write_file(
      "fixed.toml", small_scenario("cp_size = 4\ncp_sizes = 2", lengths, "", "dtype = \"bf16\""));
  const auto own = candidates_of(fixed);
  ASSERT_TRUE(own.contains("p2p, dual_chunk, fixed CP 2"));
  const json& of_a2a = found.at("a2a, dual_chunk, fixed CP 2");
  EXPECT_EQ(of_a2a["cp_sizes"], "fixed");
  EXPECT_EQ(of_a2a["group_size"], 2);
  EXPECT_GT(of_a2a["group_loss"].get<double>(), 0);
  EXPECT_TRUE(own.at("p2p, dual_chunk, fixed CP 2")["is_own"].get<bool>());
  EXPECT_EQ(own.at("p2p, dual_chunk, fixed CP 2")["total_us"],
            found.at("p2p, dual_chunk, fixed CP 2")["total_us"]);
  EXPECT_EQ(run_cpscope("run " + fixed).exit_code, 0);
  EXPECT_EQ(run_cpscope("probe " + fixed).exit_code, 0);
  const ProgramRun wrong = run_cpscope(
      "plan " + write_file("wrong.toml", small_scenario("cp_size = 4\ncp_sizes = 3", lengths, "",
                                                        "dtype = \"bf16\"")));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("3 does not divide 4"), std::string::npos) << wrong.err;
}

TEST(CompareCommand, SearchesAndWritesTheBestWay) {
  const std::string folder = (work_folder() / "searched").string();
  std::filesystem::create_directories(folder);
  const std::string cluster = " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml";
  // A file that the scenario names stays valid from the folder of the best way.
  write_file("lengths.csv", "3000\n700\n1200\n300\n");
  const std::string file = write_file(
      "search.toml", small_scenario("cp_size = 4",
                                    "generator = { name = \"csv\", file = \"lengths.csv\", "
                                    "tokens = 5200 }",
                                    "", "dtype = \"bf16\""));
  const std::string out = folder + "/best.toml";
  const ProgramRun run = run_cpscope("compare " + file + cluster +
                                     " --search --seconds 1000 --tries 700 --json --out " + out);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json comparison = json::parse(run.out);
  EXPECT_EQ(comparison["search"]["ended_by"], "tries");
  EXPECT_EQ(comparison["search"]["tries"], 700);
  EXPECT_GT(comparison["search"]["work_bound"]["us"].get<double>(), 0);
  json best;
  for (const json& candidate : comparison["candidates"])
    if (candidate["status"] == "predicted" && candidate["is_best"]) best = candidate;
  ASSERT_TRUE(best.is_object());
  const ProgramRun timeline = run_cpscope("timeline " + out + cluster + " --json");
  ASSERT_EQ(timeline.exit_code, 0) << timeline.err;
  const json times = json::parse(timeline.out);
  EXPECT_EQ(
      times["forward"]["total_us"].get<double>() + times["backward"]["total_us"].get<double>(),
      best["total_us"].get<double>());
  EXPECT_EQ(run_cpscope("plan " + out + " --summary").exit_code, 0);
  const ProgramRun compared = run_cpscope("compare " + out + cluster + " --json");
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const json again = json::parse(compared.out);
  int num_own = 0;
  for (const json& candidate : again["candidates"]) {
    if (!candidate["is_own"]) continue;
    EXPECT_EQ(candidate["total_us"], best["total_us"]);
    ++num_own;
  }
  EXPECT_EQ(num_own, 1);
}

TEST(CompareCommand, RejectsASearchThatMakesNoSense) {
  const std::string file = write_file(
      "search.toml", small_scenario("cp_size = 2", "lengths = [64]", "", "dtype = \"bf16\""));
  const std::string compare = "compare " + file + " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml ";
  for (const char* options :
       {"--seconds 5", "--tries 3", "--seed 2", "--search --seconds -1", "--search --tries 0",
        "--search --seconds x", "--memory -1", "--memory nan", "--search --out "}) {
    EXPECT_EQ(run_cpscope(compare + options).exit_code, 2) << options;
  }
  // Nothing fits: exit code 2, and no file.
  const std::string none = (work_folder() / "none.toml").string();
  const ProgramRun run = run_cpscope(compare + "--memory 0 --search --tries 10 --out " + none);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_NE(run.out.find("No candidate"), std::string::npos) << run.out;
  EXPECT_FALSE(std::filesystem::exists(none));
}

}  // namespace
}  // namespace cpscope::tests
