#include "tests/sim/scenario/scenario_text.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

TEST(ScenarioPrint, LeavesDefaultsOut) {
  EXPECT_EQ(print_scenario(parse_valid({})),
            "schema = 1\n"
            "\n[attention]\nheads = 8\nhead_dim = 64\n"
            "\n[batch]\nlengths = [10, 20]\n"
            "\n[parallel]\ncp_size = 4\n");
}

TEST(ScenarioPrint, WritesTheGeneratorNotItsLengths) {
  ScenarioText text;
  text.batch = "generator = { name = \"wiki\", tokens = 5000, seed = 9 }\n";
  const std::string printed = print_scenario(parse_valid(text));
  expect_contains(printed, "[batch.generator]\nname = \"wiki\"\ntokens = 5000\nseed = 9\n");
  EXPECT_EQ(printed.find("lengths"), std::string::npos) << printed;
}

TEST(ScenarioPrint, WritesSeqlenForUniformBatches) {
  ScenarioText text;
  text.batch = "qkv_format = \"bshd\"\nlengths = [6, 6]\n";
  expect_contains(print_scenario(parse_valid(text)), "batch_size = 2\nseqlen = 6\n");
}

TEST(ScenarioPrint, EscapesText) {
  Scenario scenario = parse_valid({});
  scenario.title = "say \"no\" \\ line\nnext\ttab \x01\x7F \xE2\x86\x92";
  const auto again = parse_scenario(print_scenario(scenario), "lesson.toml");
  ASSERT_TRUE(again.ok()) << to_text(again.error());
  EXPECT_EQ(again.value().scenario.title, scenario.title);
}

TEST(ScenarioPrint, KeepsEveryBitOfANumber) {
  Scenario scenario = parse_valid({});
  for (const double number :
       {0.1, 1.0 / 3.0, 1e22, 1e-30, 1e30, 0x1.fffffffffffffp-90, 30.0, 123456789012345680.0}) {
    scenario.attention.softmax_scale = number;
    const auto again = parse_scenario(print_scenario(scenario), "lesson.toml");
    ASSERT_TRUE(again.ok()) << to_text(again.error());
    EXPECT_EQ(again.value().scenario.attention.softmax_scale, number);
  }
}

}  // namespace
}  // namespace cpscope
