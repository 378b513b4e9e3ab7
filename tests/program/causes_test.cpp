#include "tests/program/judged_causes.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

class Causes : public testing::TestWithParam<PlantedMistake> {};

TEST_P(Causes, AreNamedInBothTypes) {
  int failed = 0;
  for (const char* dtype : {"bf16", "fp32"}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const std::string text = random_scenario_of(GetParam(), dtype, seed);
      const JudgedCauses judged = judge_planted(GetParam(), text);
      if (judged.grade.passed) continue;  // the mistake changes nothing here
      ++failed;
      EXPECT_EQ(judged.first_cause(), GetParam().cause) << judged.describe() << '\n' << text;
    }
  }
  EXPECT_GT(failed, 0) << "the mistake changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Planted, Causes, testing::ValuesIn(planted_mistakes()), name_of_mistake);

TEST(Causes, OfRightAnswersAreNotLookedFor) {
  const PlantedMistake right{
      .name = "Right", .cause = "none", .plant = [](const Plan& plan, const RunInputs& inputs) {
        return compute_wrongly(plan, inputs, {});
      }};
  PlantedMistake turned = right;
  turned.attention = "attn_mask_type = \"causal_bottom_right\"\nrope_theta = 100.0\n";
  turned.batch = "lengths = [13, 9]\nkv_lengths = [29, 40]";
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      const std::string text = random_scenario_of(seed % 2 == 0 ? turned : right, dtype, seed);
      const JudgedCauses judged = judge_planted(right, text);
      EXPECT_TRUE(judged.grade.passed) << describe_first_failure(judged.grade) << text;
      EXPECT_EQ(judged.describe(), "") << text;
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
