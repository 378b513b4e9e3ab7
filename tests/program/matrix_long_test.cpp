#include "tests/program/program_run.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

std::string matrix_section(const std::string& readme) {
  const size_t begin = readme.find("<!-- matrix:begin -->"),
               end = readme.find("<!-- matrix:end -->");
  return begin < end && end != std::string::npos ? readme.substr(begin, end - begin) : "";
}

TEST(WholeMatrix, PassesEveryCellThatNoRuleRefusesAsThePageShows) {
  const ProgramRun run = run_cpscope("verify --matrix --json --markdown matrix.md");
  ASSERT_EQ(run.exit_code, 0) << run.out.substr(0, 4000) << run.err;
  const json document = json::parse(run.out);
  EXPECT_EQ(document["passed"], true);
  EXPECT_EQ(document["fail"], 0) << document["failures"];
  EXPECT_EQ(document["blind"], 0) << document["failures"];
  EXPECT_GT(document["pass"].get<int64_t>(), 11'000);
  for (const json& kind : document["faults"]) EXPECT_EQ(kind["caught"], kind["planted"]) << kind;

  const std::string table = read_text(work_folder() / "matrix.md");
  const std::string shown = matrix_section(read_text(CPSCOPE_SOURCE_DIR "/sim/app/support.md"));
  ASSERT_FALSE(shown.empty()) << "the page has lost its matrix marks";
  const std::string counts = table.substr(0, table.find(". ") + 1);
  EXPECT_NE(shown.find(counts), std::string::npos) << "the page counts otherwise: " << counts;
  // The README shows some of the tables.
  std::istringstream lines(shown);
  int64_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) continue;
    ++rows;
    EXPECT_NE(table.find(line + "\n"), std::string::npos) << "only the page has: " << line;
  }
  EXPECT_GT(rows, 30);
}

}  // namespace
}  // namespace cpscope::tests
