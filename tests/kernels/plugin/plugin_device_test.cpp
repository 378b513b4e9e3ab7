// Device memory for plugins, on the emulator: the tensors of a plugin are in allocations of the
// device, and only copies access them.
#include "kernels/plugin/plugin_library.h"
#include "reference/kernel_walker.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <cstdlib>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PluginOnDevice, IsGivenItsTensorsInDeviceMemory) {
  setenv("CPSCOPE_WRONG", "device", 1);
  Result<ItemKernel> kernel =
      kernels::open_plugin(CPSCOPE_WRONG_PLUGIN, kernels::device_plugin_memory);
  ASSERT_TRUE(kernel.ok()) << to_text(kernel.error());
  const auto executor = reference::make_kernel_walker("plugin", std::move(kernel).value());
  const auto run = run_graded_on(*executor, walker_case({37, 0, 21}, 4));
  ASSERT_TRUE(run->output.ok()) << to_text(run->output.error());
  EXPECT_TRUE(run->grade.passed) << describe(walker_case({37, 0, 21}, 4), run->grade);
}

}  // namespace
}  // namespace cpscope::tests
