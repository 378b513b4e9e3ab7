// The same properties as in random_scenarios_test.cpp over many more scenarios, and with
// RapidCheck, which shrinks the space of a failure: fewer ranks, shorter sequences.

#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"

#include <cstdint>
#include <cstdlib>

#include <gtest/gtest.h>

#ifdef CPSCOPE_HAS_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace cpscope::tests {
namespace {

constexpr uint64_t kScenariosOfASpace = 20'000;

/// Empty when the scenario is refused or its run agrees with the oracle.
std::string find_disagreement(const Scenario& scenario) {
  const auto run = run_graded(scenario);
  if (!run) return "";
  if (!run->grade.passed) return describe(*run);
  if (scenario.numerics.dtype != Dtype::fp64) return "";
  const Difference difference = compare(run->answer, run->verdict.exact);
  if (difference.relative <= 1e-11) return "";
  return describe(difference) + print_scenario(scenario);
}

void expect_agreement(uint64_t first_seed, uint64_t count, const RandomSpace& space) {
  int failures = 0;
  for (uint64_t seed = first_seed; seed < first_seed + count && failures < 5; ++seed) {
    const std::string disagreement = find_disagreement(random_scenario(seed, space));
    EXPECT_EQ(disagreement, "") << "seed " << seed;
    failures += disagreement.empty() ? 0 : 1;
  }
}

TEST(ManyRandomScenarios, AgreeWithTheOracleInDouble) {
  expect_agreement(10'000'000, kScenariosOfASpace, {});
}

TEST(ManyRandomScenarios, KeepTheirBudgetInLowPrecision) {
  RandomSpace space;
  space.any_dtype = true;
  expect_agreement(20'000'000, kScenariosOfASpace, space);
}

TEST(ManyRandomScenarios, KeepTheirBudgetOverLongerSequencesAndMoreRanks) {
  RandomSpace space;
  space.any_dtype = true;
  space.max_length = 200;
  space.max_ranks = 24;
  expect_agreement(30'000'000, kScenariosOfASpace / 10, space);
}

#ifdef CPSCOPE_HAS_RAPIDCHECK
/// Read by RapidCheck at its first property; a value set by the caller is kept.
const int kIsConfigured = setenv("RC_PARAMS", "max_success=3000", 0);

RC_GTEST_PROP(ManyRandomScenarios, AgreeWhateverTheirSpace, ()) {
  RandomSpace space;
  space.max_length = *rc::gen::inRange<int64_t>(1, 60);
  space.max_ranks = *rc::gen::inRange<int32_t>(1, 9);
  space.any_dtype = *rc::gen::arbitrary<bool>();
  const auto seed = *rc::gen::arbitrary<uint64_t>();
  const std::string disagreement = find_disagreement(random_scenario(seed, space));
  if (!disagreement.empty()) RC_FAIL("seed " + std::to_string(seed) + "\n" + disagreement);
}
#endif

}  // namespace
}  // namespace cpscope::tests
