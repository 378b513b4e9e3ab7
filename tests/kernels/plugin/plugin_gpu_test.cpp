// A plugin with its own kernels, on a device.
#include "kernels/device/device.h"
#include "kernels/plugin/plugin_library.h"
#include "reference/kernel_walker.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/score_terms.h"
#include "tests/support/graded_run.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PluginOnDevice, IsRightOnRandomScenarios) {
  if (!kernels::count_devices()) GTEST_SKIP() << "requires gpu: no CUDA device";
  Result<ItemKernel> kernel =
      kernels::open_plugin(CPSCOPE_DEVICE_PLUGIN, kernels::device_plugin_memory);
  ASSERT_TRUE(kernel.ok()) << to_text(kernel.error());
  const auto executor = reference::make_kernel_walker("plugin", std::move(kernel).value());
  int run_count = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Scenario scenario = without_score_terms(random_scenario(seed, {.any_dtype = true}));
    const std::optional<ExecutedRun> run = run_graded_on(*executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(scenario, run->grade);
    ++run_count;
  }
  EXPECT_GT(run_count, 40);
}

}  // namespace
}  // namespace cpscope::tests
