#include "sim/scenario/positions_file.h"

#include "sim/plan/layout.h"
#include "sim/plan/rotary_positions.h"
#include "sim/scenario/scenario_file.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

std::string refusal_of(const std::string& text, int64_t queries = 3, int64_t keys = 3) {
  const Result<RotaryPositions> positions = parse_positions(text, "pos.json", queries, keys);
  EXPECT_FALSE(positions.ok()) << text;
  return positions.ok() ? "" : to_text(positions.error());
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
}

TEST(PositionsFile, GivesOnePositionToEveryValidToken) {
  const Result<RotaryPositions> both =
      parse_positions(R"({"q": [5, 0, 2], "kv": [1, 1]})", "pos.json", 3, 2);
  ASSERT_TRUE(both.ok()) << to_text(both.error());
  EXPECT_EQ(both.value().q, (std::vector<int64_t>{5, 0, 2}));
  EXPECT_EQ(both.value().kv, (std::vector<int64_t>{1, 1}));
  const Result<RotaryPositions> same = parse_positions(R"({"q": [5, 0, 2]})", "pos.json", 3, 3);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same.value().kv, same.value().q);
}

TEST(PositionsFile, RejectsWhatIsNoListOfPositions) {
  expect_part(refusal_of("{"), "pos.json:1:2: not JSON");
  expect_part(refusal_of("[1, 2, 3]"), "write {\"q\"");
  expect_part(refusal_of(R"({"k": []})"), "unknown key: \"k\"");
  expect_part(refusal_of(R"({"q": [1, -1, 2]})"), "must not be negative: -1");
  expect_part(refusal_of(R"({"q": [1, 2.5, 2]})"), "only integers: 2.5");
  expect_part(refusal_of(R"({"q": [[1], 2, 3]})"), "write {\"q\"");
  expect_part(refusal_of(R"({"q": [1, 2]})"), "2 positions, 3 tokens");
  expect_part(refusal_of(R"({"kv": [1, 2, 3]})"), "missing: \"q\"");
  expect_part(refusal_of(R"({"q": [1, 2, 3]})", 3, 4), "missing: \"kv\"");
  expect_part(refusal_of(R"({"q": [1, 2, 3], "q": []})"), "given twice");
}

TEST(PositionsFile, TurnsQueriesAsTheLastRowsOfTheirKeysUnderABottomRightMask) {
  const auto positions = [](const std::string& lines) {
    const Result<LoadedScenario> loaded = parse_scenario(
        "schema = 1\n[attention]\nheads = 1\nhead_dim = 8\nrope_theta = 10.0\n" + lines +
            "[batch]\nlengths = [2, 1]\nkv_lengths = [5, 1]\nslots = [4, 4]\nkv_slots = [8, 4]\n"
            "[parallel]\ncp_size = 2\n",
        "x.toml");
    EXPECT_TRUE(loaded.ok()) << to_text(loaded.error());
    const Scenario& scenario = loaded.value().scenario;
    return rotary_positions(scenario, make_layout(scenario).value().slots, Side::q);
  };
  using Ids = std::vector<int64_t>;
  const std::string bottom = "attn_mask_type = \"causal_bottom_right\"\n";
  EXPECT_EQ(positions(bottom), (Ids{3, 4, 5, 6, 0, 1, 2, 3}));
  EXPECT_EQ(positions(bottom + "rope_q_position = \"start\"\n"), (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(positions(""), (Ids{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(positions("rope_q_position = \"end\"\n"), (Ids{3, 4, 5, 6, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace cpscope
