#include "sim/clock/validation.h"

#include "sim/clock/clock.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/scenario_file.h"
#include "tests/sim/clock/replaced_text.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

const std::string kFile = R"(schema = 1
[[groups]]
title = "made up"
source = "nobody"
unit = "tflops"
scenario = """
schema = 1
[attention]
heads = 8
head_dim = 128
[batch]
lengths = [{tokens}]
[parallel]
cp_size = {ranks}
cp_comm_type = "{comm}"
[numerics]
seed = {seed}
"""
[[groups.rows]]
name = "ring"
cluster = "h200x8"
values = { comm = "p2p" }
over = { tokens = [4096, 8192], ranks = [2, 4] }
measured = [100, 200.5]
fitted = [true, false]
[[groups.rows]]
name = "heads"
cluster = "h200x8"
pass = "both"
values = { comm = "a2a", tokens = 4096, ranks = 9 }
measured = 50
)";

Result<Validation> validate_text(const std::string& text) {
  return validate(text, "f.toml", CPSCOPE_CLUSTERS);
}

TEST(Validation, PredictsEveryPlaceOfARowAndCountsWhatWasNotFitted) {
  const Result<Validation> result = validate_text(kFile);
  ASSERT_TRUE(result.ok()) << to_text(result.error());
  const ValidationGroup& group = result.value().groups.at(0);
  ASSERT_EQ(group.rows.size(), 3U);
  EXPECT_EQ(group.rows[1].name, "ring, ranks 4, tokens 8192");
  EXPECT_EQ(group.rows[1].measured, 200.5);
  EXPECT_TRUE(group.rows[0].is_fitted);
  EXPECT_EQ(group.num_counted(), 1);
  EXPECT_DOUBLE_EQ(group.mean_error_percent(), std::abs(group.rows[1].error_percent()));
  EXPECT_NE(group.rows[2].failure.find("a2a"), std::string::npos)
      << "8 heads on 9 ranks are refused: " << group.rows[2].failure;

  const std::string text =
      "schema = 1\n[attention]\nheads = 8\nhead_dim = 128\n[batch]\nlengths = [8192]\n[parallel]\n"
      "cp_size = 4\ncp_comm_type = \"p2p\"\n[numerics]\nbackward = false\n";
  const Plan plan = make_plan(parse_scenario(text, "t.toml").value().scenario).value();
  const double us =
      predict(plan, load_cluster("h200x8", CPSCOPE_CLUSTERS).value()).value().forward.total_us;
  const double flops = 8192.0 * 8193 / 2 * 8 * 4 * 128 / 4;
  EXPECT_NEAR(group.rows[1].predicted, flops / us * 1e-6, 1e-6);
}

TEST(Validation, KnowsMillisecondsAndScaling) {
  const Validation ms = validate_text(replace_part(kFile, "\"tflops\"", "\"ms\"")).value();
  const Validation rate = validate_text(kFile).value();
  const double flops = 8192.0 * 8193 / 2 * 8 * 4 * 128 / 4;
  EXPECT_NEAR(ms.groups[0].rows[1].predicted * rate.groups[0].rows[1].predicted, flops * 1e-9,
              flops * 1e-15);
  const Validation share = validate_text(replace_part(kFile, "\"tflops\"", "\"scaling\"")).value();
  EXPECT_GT(share.groups[0].rows[1].predicted, 1);
  EXPECT_LT(share.groups[0].rows[1].predicted, 100);
}

TEST(Validation, KnowsWhatTheBusiestRankComputesInAStep) {
  std::string text = replace_part(kFile, "\"tflops\"", "\"step_us\"");
  text = replace_part(text, "{ comm = \"p2p\" }", "{ comm = \"p2p\", tokens = 8192, ranks = 4 }");
  text = replace_part(text, "{ tokens = [4096, 8192], ranks = [2, 4] }", "{ step = [0, 3] }");
  const Result<Validation> result = validate_text(text);
  ASSERT_TRUE(result.ok()) << to_text(result.error());
  const std::vector<ValidationRow>& rows = result.value().groups[0].rows;
  const std::string scenario =
      "schema = 1\n[attention]\nheads = 8\nhead_dim = 128\n[batch]\nlengths = [8192]\n[parallel]\n"
      "cp_size = 4\ncp_comm_type = \"p2p\"\n";
  const Plan plan = make_plan(parse_scenario(scenario, "t.toml").value().scenario).value();
  const Timeline timeline = predict(plan, load_cluster("h200x8", CPSCOPE_CLUSTERS).value()).value();
  for (const auto& [row, step] : {std::pair{0, 0}, std::pair{1, 3}}) {
    double most = 0;
    for (const ItemEvent& event : timeline.events) {
      if (event.item.kind == StageKind::compute && event.item.direction == Direction::forward &&
          to_index(event.step) == step)
        most = std::max(most, static_cast<double>(event.end_ns - event.start_ns) * 1e-3);
    }
    EXPECT_NEAR(rows[static_cast<size_t>(row)].predicted, most, 1e-9) << "step " << step;
  }
  EXPECT_NE(rows[2].failure, "") << "a row without a step";
}

TEST(Validation, SaysWhatIsWrongWithAFile) {
  struct Case {
    std::string from, to, what;
  };
  const std::vector<Case> cases = {
      {"unit = \"tflops\"", "unit = \"furlongs\"", "must be tflops, ms, scaling or step_us"},
      {"source = \"nobody\"\n", "", "a required key is missing: groups[0].source"},
      {"[100, 200.5]", "[100, -1]", "must be above 0"},
      {"ranks = [2, 4]", "ranks = [2]", "gives ranks for 2 measurements"},
      {"pass = \"both\"", "pass = \"sideways\"", "must be forward, backward or both"},
      {"fitted = [", "fited = [", "unknown key"},
      {"values = { comm = \"p2p\" }", "values = 3", "must be a table"},
  };
  for (const Case& wrong : cases) {
    const Result<Validation> result = validate_text(replace_part(kFile, wrong.from, wrong.to));
    ASSERT_FALSE(result.ok()) << wrong.to;
    EXPECT_EQ(result.error().kind, ErrorKind::bad_input);
    EXPECT_NE(to_text(result.error()).find(wrong.what), std::string::npos)
        << to_text(result.error());
  }
  // An error in the scenario or the cluster of one row does not affect the others.
  const Validation far = validate_text(replace_part(kFile, "\"h200x8\"", "\"h900\"")).value();
  EXPECT_NE(far.groups[0].rows[0].failure.find("h900"), std::string::npos);
  EXPECT_TRUE(validate_text(replace_part(kFile, "heads = 8", "heads = {heads}"))
                  .value()
                  .groups[0]
                  .rows[1]
                  .failure.find("f.toml") == std::string::npos);
}

}  // namespace
}  // namespace cpscope
