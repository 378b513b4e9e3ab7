// The executor `nccl` in one process that drives all GPUs of this host, with the real library.
#include "kernels/device/device.h"
#include "kernels/run/executor_cuda.h"
#include "kernels/run/executor_nccl.h"
#include "sim/run/run_inputs.h"
#include "tests/kernels/lower/piece_cases.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr uint64_t kGpuScenarios = 300;

TEST(NcclOnDevices, KeepsTheBudgetOnRandomScenarios) {
  const auto executor = kernels::make_executor_nccl();
  if (const auto absence = executor->absence()) {
    GTEST_SKIP() << "requires nccl: " << to_text(*absence);
  }
  int ran = 0;
  for (uint64_t seed = 7'500'000; seed < 7'500'000 + kGpuScenarios; ++seed) {
    const Scenario scenario = random_device_scenario(seed, kLongestSequence, seed % 3 == 0);
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

/// Number of ranks: as many as there are GPUs and as the scenarios of pieces allow.
int32_t num_ranks() {
  const auto count = kernels::count_devices();
  int32_t ranks = 1;
  while (count && 2 * ranks <= std::min(count.value(), 8)) ranks *= 2;
  return ranks;
}

TEST(NcclOnDevices, GivesTheBitsOfOneGpuInEveryRepeatAndInHoweverManyPieces) {
  const int32_t ranks = num_ranks();
  if (ranks < 2) GTEST_SKIP() << "requires multigpu: this host has no two GPUs";
  if (const auto absence = kernels::make_executor_nccl()->absence())
    GTEST_SKIP() << "requires nccl: " << to_text(*absence);
  const auto cuda = kernels::make_executor_cuda();
  // Long enough that pieces are in flight while the first ones are computed. The dense reference
  // would take minutes, so the answer is compared with that of one GPU, which other tests check.
  const std::string one = fmt::format("{}", 2048 * ranks);
  // Rows too scattered for copies.
  std::string many;
  for (const int32_t length : {352, 48, 208, 96, 720, 64, 416, 144})
    many += fmt::format("{}{}", many.empty() ? "" : ", ", 2 * ranks * length);
  for (const auto& [type, lengths] : {std::pair<std::string, std::string>{"a2a", one},
                                      {"all_gather", one},
                                      {"p2p", one},
                                      {"group_cast", one},
                                      {"a2a", many},
                                      {"all_gather", many},
                                      {"group_cast", kScatteredDocuments},
                                      {"pass_q", one},
                                      {"token_ring", one},
                                      {"helper_ring", one},
                                      {"mesh", one},
                                      {"gather_q", one},
                                      {"token_ring", many},
                                      {"mesh", many}}) {
    const bool is_long = lengths == kScatteredDocuments;
    const Scenario scenario = scenario_of_pieces(type.c_str(), ranks, 128, lengths);
    const auto plan = plan_unless_refused(scenario);
    ASSERT_TRUE(plan) << type;
    const RunInputs inputs = make_run_inputs(plan->plan(), true);
    const bool is_joined = type == "group_cast";
    std::optional<Answer> joined;
    const auto expected = cuda->run(*plan, inputs, {});
    ASSERT_TRUE(expected) << type << ": " << to_text(expected.error());
    for (const int32_t most_pieces : {1, 3, 8}) {
      auto settings = kernels::nccl_settings_of_environment();
      ASSERT_TRUE(settings) << to_text(settings.error());
      settings.value().most_pieces = most_pieces;
      const auto executor = kernels::make_executor_nccl(std::move(settings).value());
      // The first pass of a direction sends everything before it computes; later ones do both at
      // the same time.
      for (const int32_t repeats : {1, 12}) {
        if (is_long && (most_pieces < 8 || repeats == 1)) continue;  // takes seconds
        RunOptions options;
        options.poison = true;
        options.repeats = repeats;
        const auto output = executor->run(*plan, inputs, options);
        ASSERT_TRUE(output) << type << ": " << to_text(output.error());
        // One softmax over own and received keys, where one GPU merges two: different roundings.
        if (is_joined && most_pieces > 1 && !joined) {
          joined = output.value().answer;
          EXPECT_LE(compare(*joined, expected.value().answer).relative, 0.01) << type;
        }
        const Answer& wanted = is_joined && most_pieces > 1 ? *joined : expected.value().answer;
        EXPECT_TRUE(is_bitwise_equal(output.value().answer, wanted))
            << type << " of " << lengths << ", " << ranks << " ranks, " << most_pieces
            << " pieces, repeat " << repeats << "\n"
            << describe(compare(output.value().answer, wanted));
      }
    }
  }
}

// A rank that has a GPU for itself launches these kernels without the guarantee that their CTAs
// begin together.
TEST(NcclOnDevices, GivesTheBitsOfOneGpuWhereFewHeadsBeginAtDifferentBlocks) {
  if (const auto absence = kernels::make_executor_nccl()->absence())
    GTEST_SKIP() << "requires nccl: " << to_text(*absence);
  const auto cuda = kernels::make_executor_cuda();
  const int32_t ranks = num_ranks();
  for (const int32_t head_dim : {64, 128}) {
    Scenario scenario =
        scenario_of_pieces("p2p", ranks, head_dim, fmt::format("{}", 6144 * ranks), 4, 4);
    scenario.attention.mask_type = MaskType::no_mask;
    const auto plan = plan_unless_refused(scenario);
    ASSERT_TRUE(plan);
    const RunInputs inputs = make_run_inputs(plan->plan(), true);
    const auto expected = cuda->run(*plan, inputs, {});
    ASSERT_TRUE(expected) << to_text(expected.error());
    for (const kernels::Wire wire : {kernels::Wire::copies, kernels::Wire::nccl}) {
      auto settings = kernels::nccl_settings_of_environment();
      ASSERT_TRUE(settings) << to_text(settings.error());
      settings.value().wire = wire;
      RunOptions options;
      options.poison = true;
      options.repeats = 12;
      const auto output =
          kernels::make_executor_nccl(std::move(settings).value())->run(*plan, inputs, options);
      ASSERT_TRUE(output) << to_text(output.error());
      for (const std::string& name : output.value().item_kernels.backward)
        EXPECT_NE(name.find("shifted begins"), std::string::npos) << name;
      EXPECT_TRUE(is_bitwise_equal(output.value().answer, expected.value().answer))
          << "head_dim " << head_dim << ", " << ranks << " ranks\n"
          << describe(compare(output.value().answer, expected.value().answer));
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
