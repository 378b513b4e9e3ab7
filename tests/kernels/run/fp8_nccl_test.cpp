// The executor `nccl` in dtype fp8 on emulated devices: what travels in 8 bits, and that all ranks
// have one scale.
#include "kernels/run/executor_cuda.h"
#include "sim/run/run_inputs.h"
#include "tests/kernels/run/fp8_cases.h"
#include "tests/kernels/run/nccl_cases.h"
#include "tests/support/graded_run.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::emulator::NcclEmulated;

TEST(NcclFp8, SendsWhatThePlanCountsAndGivesTheBitsOfExecutorCuda) {
  const auto cuda = kernels::make_executor_cuda();
  size_t number = 0;
  for (const std::string type : {"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q"}) {
    const std::vector<Fp8> recipes = some_recipes(number++);
    const bool sends_like_others = type == "a2a+p2p" || type == "group_cast";
    if (sends_like_others && !is_wide_sweep()) continue;
    for (const Fp8& fp8 : recipes) {
      // Rows of an odd number of codes, and of whole groups of them.
      const Scenario scenario = fp8_scenario_of(type.c_str(), fp8, type[0] == 'p' ? 15 : 24);
      const auto expected = run_graded_on(*cuda, scenario);
      ASSERT_TRUE(expected && expected->output.ok()) << type;
      for (const bool has_copies : {false, true}) {
        // Copies know no types; one of two takes them.
        if (has_copies && number % 2 == 0 && !is_wide_sweep()) continue;
        const NcclEmulated nccl;
        const auto executor = kernels::make_executor_nccl(has_copies ? copying_settings(nccl, 4, 8)
                                                                     : settings_of(nccl, 4));
        const auto run = run_graded_on(*executor, scenario);
        ASSERT_TRUE(run->output.ok()) << type << ": " << to_text(run->output.error());
        EXPECT_TRUE(is_bitwise_equal(run->output.value().answer, expected->output.value().answer))
            << type << ", " << name_of(fp8) << (has_copies ? ", copies\n" : ", nccl\n")
            << describe(compare(run->output.value().answer, expected->output.value().answer));
        EXPECT_EQ(nccl.counts().bytes, has_copies ? 0 : wire_bytes(run->plan.plan())) << type;
      }
    }
  }
}

/// Only one process holds the largest value; the others scale by it too.
TEST(NcclFp8, AgreesOnTheLargestValueOverProcesses) {
  const Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::current});
  const auto plan = plan_unless_refused(scenario);
  RunInputs inputs = make_run_inputs(plan->plan(), true);
  const SequenceSlot& first = inputs.slots.sequences.front();
  inputs.q.values[static_cast<size_t>(first.q_begin * 4 * 40)] = 24.0;
  const auto cuda = kernels::make_executor_cuda();
  const Result<RunOutput> expected = cuda->run(*plan, inputs, {});
  ASSERT_TRUE(expected.ok()) << to_text(expected.error());
  const NcclEmulated nccl;
  const std::vector<std::string> reports =
      run_processes(nccl, 4, [&](int32_t process, Executor& executor) -> std::string {
        const Result<RunOutput> output = executor.run(*plan, inputs, {});
        if (!output) return to_text(output.error());
        if (process > 0) return "done";
        return is_bitwise_equal(output.value().answer, expected.value().answer)
                   ? "done"
                   : describe(compare(output.value().answer, expected.value().answer));
      });
  for (const std::string& report : reports) EXPECT_EQ(report, "done");
}

}  // namespace
}  // namespace cpscope::tests
