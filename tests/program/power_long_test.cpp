// The power of the verdict is a number that must not get worse without anybody noticing.
#include "tests/program/program_run.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

/// What one figure is about: everything but the figure.
std::string key_of(json entry) {
  for (const char* figure : {"error", "caught", "planted"}) entry.erase(figure);
  return entry.dump();
}

double error_of(const json& entry) {
  return entry["error"].is_null() ? HUGE_VAL : entry["error"].get<double>();
}

TEST(Power, OfTheVerdictIsWhatTheTablesSay) {
  const std::string golden = CPSCOPE_SOURCE_DIR "/tests/golden/power.json";
  const ProgramRun run = run_cpscope("power --json --markdown power.md");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  if (std::getenv("CPSCOPE_BLESS") != nullptr) std::ofstream(golden) << run.out;
  const json seen = json::parse(run.out), expected = json::parse(read_text(golden));
  for (const char* list : {"smallest", "lost_messages"}) {
    ASSERT_EQ(seen[list].size(), expected[list].size());
    for (size_t i = 0; i < seen[list].size(); ++i) {
      const json &now = seen[list][i], &before = expected[list][i];
      ASSERT_EQ(key_of(now), key_of(before));
      if (now.contains("error")) {
        EXPECT_LE(error_of(now), 1.2 * error_of(before)) << before;
      } else {
        EXPECT_GE(now["caught"].get<int>(), before["caught"].get<int>()) << before;
      }
    }
  }
  const std::string tables = read_text(work_folder() / "power.md"),
                    shown = read_text(CPSCOPE_SOURCE_DIR "/tests/README.md");
  const size_t begin = shown.find("<!-- power:begin -->"), end = shown.find("<!-- power:end -->");
  ASSERT_LT(begin, end);
  std::istringstream lines(shown.substr(begin, end - begin));
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) continue;
    ++rows;
    EXPECT_NE(tables.find(line + "\n"), std::string::npos) << "only tests/README has: " << line;
  }
  EXPECT_GT(rows, 25);
}

}  // namespace
}  // namespace cpscope::tests
