// What an edit leaves of a scenario's text.
#include "gui/app/document/scenario_rewrite.h"

#include "gui/app/document/document.h"
#include "sim/scenario/random_scenario.h"
#include "tests/gui/scenario_files.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

gui::Document open_zigzag() {
  gui::Document document;
  EXPECT_EQ(document.load_text(read_text(CPSCOPE_SCENARIOS "/zigzag.toml"), "zigzag.toml"),
            std::nullopt);
  return document;
}

TEST(ScenarioRewrite, ChangesOnlyTheLineOfTheKey) {
  gui::Document document = open_zigzag();
  std::string wanted = document.text();
  Scenario scenario = document.scenario();
  scenario.parallel.cp_size = 8;
  document.edit(scenario, "parallel.cp_size");
  wanted.replace(wanted.find("cp_size      = 4"), 16, "cp_size      = 8");
  EXPECT_EQ(document.text(), wanted) << "comments and keys at their default stay";
}

TEST(ScenarioRewrite, AddsAKeyToItsTable) {
  gui::Document document = open_zigzag();
  Scenario scenario = document.scenario();
  scenario.parallel.dispatch_chunk = 64;
  scenario.numerics.backward = false;
  document.edit(scenario, "parallel.dispatch_chunk");
  EXPECT_NE(document.text().find("layout       = \"dual_chunk\"\ndispatch_chunk = 64\n"),
            std::string::npos);
  EXPECT_NE(document.text().find("dtype = \"fp32\"\nbackward = false\n"), std::string::npos);
}

TEST(ScenarioRewrite, ReplacesKeysThatTheBatchNoLongerHas) {
  gui::Document document = open_zigzag();
  Scenario scenario = document.scenario();
  scenario.batch.lengths = {128, 64};
  document.edit(scenario, "batch.lengths");
  ASSERT_TRUE(document.is_valid());
  EXPECT_EQ(document.scenario().batch.lengths, (std::vector<int64_t>{128, 64}));
  EXPECT_NE(document.text().find("# The sequence of contiguous_idle"), std::string::npos);
}

TEST(ScenarioRewrite, ReadsBackAsTheEditedScenario) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Scenario from = random_scenario(seed), to = random_scenario(seed + 1000);
    const std::string text = "# one\n" + print_scenario(from) + "# two\n";
    const auto loaded = parse_scenario(text, "a.toml");
    if (!loaded) continue;
    const std::string made = gui::rewrite_scenario(text, loaded.value().scenario, to, "a.toml");
    const auto a = parse_scenario(made, "a.toml"), b = parse_scenario(print_scenario(to), "a.toml");
    ASSERT_EQ(a.ok(), b.ok()) << made;
    if (a) {
      EXPECT_EQ(a.value().scenario, b.value().scenario) << made;
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
