// Random scenarios over the whole space: the walker against the dense oracle, every padding row and
// every fresh buffer filled with NaN.

#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

const uint64_t kExactScenarios = sweep(250, 2'300);
const uint64_t kRoundedScenarios = sweep(150, 1'200);
const uint64_t kTinyScenarios = sweep(100, 1'500);

/// Runs seeds [first, first + count), calls look(seed, run) for those that are not refused, and
/// requires at least nine in ten of these. Stops at the first failure.
template <class Look>
void for_each_run(uint64_t first, uint64_t count, const RandomSpace& space, Look look) {
  uint64_t refused = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Scenario scenario = random_scenario(seed, space);
    const auto run = run_graded(scenario);
    if (!run) {
      ++refused;
      continue;
    }
    look(seed, *run);
    if (testing::Test::HasFailure()) return;
  }
  testing::Test::RecordProperty("refused", static_cast<int>(refused));
  EXPECT_LT(refused * 10, count) << refused << " of " << count << " scenarios were refused";
}

TEST(RandomScenarios, AgreeWithTheOracleToElevenDigitsInDouble) {
  double worst = 0;
  for_each_run(0, kExactScenarios, {}, [&](uint64_t seed, const GradedRun& run) {
    const Difference difference = compare(run.answer, run.verdict.exact);
    worst = std::max(worst, difference.relative);
    EXPECT_LE(difference.relative, 1e-11) << "seed " << seed << "\n"
                                          << describe(difference) << print_scenario(run.scenario());
    EXPECT_TRUE(run.grade.passed) << "seed " << seed << "\n" << describe(run);
  });
  RecordProperty("worst_relative_error", fmt::format("{:.3g}", worst));
}

TEST(RandomScenarios, KeepTheirBudgetInLowPrecision) {
  RandomSpace space;
  space.any_dtype = true;
  for_each_run(1'000'000, kRoundedScenarios, space, [](uint64_t seed, const GradedRun& run) {
    EXPECT_TRUE(run.grade.passed) << "seed " << seed << "\n" << describe(run);
  });
}

TEST(RandomScenarios, KeepTheirBudgetWhereThePlainRunWasLucky) {
  // Most of these: a row's gradient, or the sum over rows in a sink's, is a small difference of
  // large terms, and the plain run's roundings of out happen to leave it alone. 910'005'937: one
  // rounding of RoPE decides the largest logit of two heads. 20'006'150: a query sees one key, so
  // that dk is zero.
  RandomSpace space;
  space.any_dtype = true;
  for (const uint64_t seed :
       {4'144u, 1'004'144u, 500'002'565u, 500'019'324u, 500'021'272u, 500'021'646u, 500'025'522u,
        500'039'068u, 500'054'428u, 910'005'937u, 20'006'150u}) {
    const auto run = run_graded(random_scenario(seed, space));
    ASSERT_TRUE(run.has_value()) << "seed " << seed;
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(*run);
  }
  space.max_length = 200;
  space.max_ranks = 24;
  for (const uint64_t seed : {30'001'263u, 600'001'507u, 600'009'091u, 600'011'346u, 600'012'153u,
                              600'012'719u, 600'013'566u}) {
    const auto run = run_graded(random_scenario(seed, space));
    ASSERT_TRUE(run.has_value()) << "seed " << seed;
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(*run);
  }
}

/// Runs a scenario with seeds 1 to `seeds`: tensors with so few values that the error of one plain
/// run is mostly chance.
void expect_no_alarm(Scenario scenario, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    scenario.numerics.seed = seed;
    const GradedRun run = run_possible(scenario);
    ASSERT_TRUE(run.grade.passed) << "seed " << seed << "\n" << describe(run);
  }
}

TEST(RandomScenarios, KeepTheirBudgetWhereAFewSharesOfOneValueCancel) {
  Scenario scenario = walker_case({1}, 2);
  scenario.attention.heads = 4;
  scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 2;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.parallel.comm_type = CommType::a2a_p2p;
  scenario.numerics.dtype = Dtype::bf16;
  expect_no_alarm(scenario, kTinyScenarios);
}

TEST(RandomScenarios, KeepTheirBudgetWhereOneQueryRoundsTheRowsOfAllKeysAlike) {
  Scenario scenario = cross_case({1}, {96}, 3);
  scenario.attention.heads = 2;
  scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = 8;
  scenario.attention.head_dim_v = 4;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.softmax_scale = 0.7;
  scenario.numerics.dtype = Dtype::fp16;
  scenario.numerics.accumulate = Accumulate::dtype;
  expect_no_alarm(scenario, kTinyScenarios);
}

TEST(RandomScenarios, KeepTheirBudgetOverLongerSequencesAndMoreRanks) {
  RandomSpace space;
  space.any_dtype = true;
  space.max_length = 160;
  space.max_ranks = 16;
  for_each_run(2'000'000, kRoundedScenarios / 10, space, [](uint64_t seed, const GradedRun& run) {
    EXPECT_TRUE(run.grade.passed) << "seed " << seed << "\n" << describe(run);
  });
}

}  // namespace
}  // namespace cpscope::tests
