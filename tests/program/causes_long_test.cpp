#include "tests/program/judged_causes.h"

#include <map>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

class CauseRates : public testing::TestWithParam<PlantedMistake> {};

TEST_P(CauseRates, NameTheMistakeFirstInNearlyAllRandomScenarios) {
  constexpr int kScenarios = 200;
  int asked = 0, named = 0;
  std::map<std::string, int> instead;
  std::string example;
  for (uint64_t seed = 100; asked < kScenarios && seed < 600; ++seed) {
    const std::string text = random_scenario_of(GetParam(), seed % 2 == 0 ? "bf16" : "fp32", seed);
    const JudgedCauses judged = judge_planted(GetParam(), text);
    if (judged.grade.passed || !judged.changes_rows(0.05)) continue;
    ++asked;
    if (judged.first_cause() == GetParam().cause) {
      ++named;
      continue;
    }
    ++instead[judged.first_cause()];
    example = judged.describe() + '\n' + text;
  }
  std::string others;
  for (const auto& [cause, count] : instead) others += cause + " " + std::to_string(count) + "; ";
  RecordProperty("asked", asked);
  RecordProperty("named", named);
  std::printf("%-28s %3d of %3d named %s; %s\n", GetParam().name.c_str(), named, asked,
              GetParam().cause.c_str(), others.c_str());
  ASSERT_GT(asked, 20) << "the mistake changes too little";
  EXPECT_GE(named * 100, asked * 95) << others << '\n' << example;
}

INSTANTIATE_TEST_SUITE_P(Planted, CauseRates, testing::ValuesIn(planted_mistakes()),
                         name_of_mistake);

}  // namespace
}  // namespace cpscope::tests
