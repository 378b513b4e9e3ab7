// The executor `nccl` in one process that drives all GPUs of this host, with the real library.
#include "kernels/executor_nccl.h"
#include "sim/scenario/random_scenario.h"
#include "tests/support/graded_run.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr uint64_t kScenarios = 300;

TEST(NcclOnDevices, KeepsTheBudgetOnRandomScenarios) {
  const auto executor = kernels::make_executor_nccl();
  if (const auto absence = executor->absence()) {
    GTEST_SKIP() << "requires nccl: " << to_text(*absence);
  }
  int ran = 0;
  for (uint64_t seed = 7'500'000; seed < 7'500'000 + kScenarios; ++seed) {
    RandomSpace space;
    space.any_dtype = true;
    space.max_length = 400;
    Scenario scenario = random_scenario(seed, space);
    if (scenario.numerics.dtype == Dtype::fp64) scenario.numerics.dtype = Dtype::bf16;
    const auto run = run_graded_on(*executor, scenario);
    if (!run) continue;
    // More ranks than this host has GPUs.
    if (!run->output.ok() &&
        to_text(run->output.error()).find("one rank on each GPU") != std::string::npos)
      continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++ran;
    if (HasFailure()) return;
  }
  if (ran == 0) GTEST_SKIP() << "requires multigpu: no scenario has as few ranks as this host GPUs";
}

}  // namespace
}  // namespace cpscope::tests
