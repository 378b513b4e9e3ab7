#include "tests/program/program_run.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

TEST(ForecastCommand, ComparesCpSizesForTheScenarioAndPublishedLengths) {
  const std::string file = write_file(
      "ways.toml",
      small_scenario("cp_size = 4", "generator = { name = \"wlb\", tokens = 16384, max = 8192 }",
                     "", "dtype = \"bf16\""));
  const std::string command = "forecast " + file + " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml";
  const std::string page = (work_folder() / "ways.md").string();
  const ProgramRun run =
      run_cpscope(command + " --windows 2 --published --json --markdown " + page);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json found = json::parse(run.out);
  ASSERT_EQ(found["distributions"].size(), 5U);
  EXPECT_EQ(found["max_tokens_per_rank"], 8192);
  for (const json& list : found["distributions"]) {
    const json& best = list["ways"][list["best"].get<size_t>()];
    EXPECT_TRUE(best["is_best"].get<bool>());
    EXPECT_EQ(
        list["explanation"].get<std::string>().find("Take " + best["name"].get<std::string>()), 0U);
    int64_t fixed = 0;
    for (const json& way : list["ways"]) {
      if (way["cp_sizes"] != "fixed") continue;
      ++fixed;
      EXPECT_GE(way["group_loss"].get<double>(), 0) << way.dump();
    }
    EXPECT_EQ(fixed, 2) << "1 and 2 of 4 ranks";
  }
  std::ifstream table(page);
  std::string line;
  while (std::getline(table, line) && line.find("| way |") != 0) continue;
  EXPECT_EQ(line, "| way | prolong | wlb | byted | wiki | magi |");
  const ProgramRun text = run_cpscope(command + " --windows 2 --ways");
  EXPECT_NE(text.out.find("waits; of"), std::string::npos) << text.out << text.err;
  EXPECT_NE(text.out.find("Take "), std::string::npos) << text.out;
  EXPECT_EQ(run_cpscope(command + " --ways --csv " + page).exit_code, 2);
}

}  // namespace
}  // namespace cpscope::tests
