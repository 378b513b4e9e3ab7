// Decode steps on the executor `cuda`: few queries of many keys, as every communication type moves
// them. The same tests run on the CPU emulator and on a GPU.
#include "sim/scenario/scenario_file.h"
#include "tests/kernels/run/needs_device.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Without a backward: lines of [numerics] and of tables behind it.
constexpr const char* kBf16 = "dtype = \"bf16\"\n";

struct DecodeStep {
  const char* name;
  const char* parallel;  // lines of the table
  bool has_parts = true;
  const char* attention = "";
};

/// A request with two drafts and one without, of 16 query heads and 2 KV heads.
Scenario scenario_of_step(const DecodeStep& step, int head_dim = 64,
                          const std::string& numerics = kBf16) {
  const std::string text = fmt::format(
      "schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\nheads = 16\nkv_heads = 2\n"
      "head_dim = {}\nattn_mask_type = \"causal_bottom_right\"\n{}[batch]\nlengths = [3, 1]\n"
      "kv_lengths = [2600, 1300]\n[parallel]\n{}[numerics]\nbackward = false\n{}",
      head_dim, step.attention, step.parallel, numerics);
  const auto loaded = parse_scenario(text, "decode.toml");
  EXPECT_TRUE(loaded.ok()) << to_text(loaded.error()) << text;
  return loaded.value().scenario;
}

const std::vector<DecodeStep>& decode_steps() {
  static const std::vector<DecodeStep> kSteps = {
      {"one rank", "cp_size = 1\n"},
      {"gather_q", "cp_size = 2\ncp_comm_type = \"gather_q\"\nlayout = \"striped\"\nstripe = 8\n",
       false},
      {"keys that pass by", "cp_size = 2\nlayout = \"contiguous\"\n"},
      {"gathered keys", "cp_size = 2\ncp_comm_type = \"all_gather\"\n"},
      {"heads", "cp_size = 2\ncp_comm_type = \"a2a\"\n"},
      {"queries that pass by", "cp_size = 2\ncp_comm_type = \"pass_q\"\nlayout = \"striped\"\n",
       false},
      {"keys that are needed",
       "cp_size = 2\ncp_comm_type = \"group_cast\"\nlayout = \"contiguous\"\n"},
      {"a cap and a sink", "cp_size = 1\n", true,
       "softcap = 20.0\nsoftmax_type = \"off_by_one\"\n"}};
  return kSteps;
}

TEST(CudaExecutor, CarriesOutDecodeSteps) {
  CPSCOPE_NEEDS_DEVICE(newest);
  const auto portable = kernels::make_executor_cuda(kernels::Generation::portable);
  for (const DecodeStep& step : decode_steps()) {
    for (Executor* executor : {&newest, portable.get()}) {
      const std::string where = fmt::format("{} on {}", step.name, executor->name());
      const auto run = run_graded_on(*executor, scenario_of_step(step));
      ASSERT_TRUE(run) << where;
      ASSERT_TRUE(run->output.ok()) << where << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << where << "\n"
                                     << describe(run->plan.plan().scenario, run->grade);
      const std::vector<std::string>& names = run->output.value().item_kernels.forward;
      const auto is_decode = [](const std::string& name) {
        return name.starts_with("decode forward");
      };
      EXPECT_TRUE(std::any_of(names.begin(), names.end(), is_decode))
          << where << ": " << names.front();
      const auto has_parts = [](const std::string& name) {
        return name.find("in parts of the keys") != std::string::npos;
      };
      EXPECT_EQ(std::any_of(names.begin(), names.end(), has_parts), step.has_parts)
          << where << ": " << names.front();
    }
  }
}

/// E4M3 codes of keys and values; with a cap, rows of other kernels.
TEST(CudaExecutor, CarriesOutDecodeStepsOfFp8) {
  CPSCOPE_NEEDS_DEVICE(newest);
  const auto portable = kernels::make_executor_cuda(kernels::Generation::portable);
  size_t number = 0;
  for (const DecodeStep& step : decode_steps()) {
    const bool is_capped = step.attention[0] != '\0';
    for (const char* recipe : {"current", "delayed"}) {
      const int head_dim = std::array{64, 128, 100}[number++ % 3];
      Executor& executor = number % 2 == 0 ? static_cast<Executor&>(newest) : *portable;
      const Scenario scenario = scenario_of_step(
          step, head_dim, fmt::format("dtype = \"fp8\"\n[fp8]\nrecipe = \"{}\"\n", recipe));
      const std::string where =
          fmt::format("{}, {}, head_dim {}, {}", step.name, recipe, head_dim, executor.name());
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run) << where;
      ASSERT_TRUE(run->output.ok()) << where << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << where << "\n" << describe(scenario, run->grade);
      const std::vector<std::string>& names = run->output.value().item_kernels.forward;
      const bool is_decode = std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name.starts_with("decode forward");
      });
      EXPECT_EQ(is_decode, !is_capped) << where << ": " << names.front();
    }
  }
}

/// The latent rows of a cache in 8 bits: one scale a tensor on tensor cores, in parts of the keys.
TEST(CudaExecutor, CarriesOutDecodeStepsOfLatentRowsInFp8) {
  CPSCOPE_NEEDS_DEVICE(newest);
  const auto portable = kernels::make_executor_cuda(kernels::Generation::portable);
  const bool has_hopper = kernels::describe_device(0).compute_capability == 90;
  const std::vector<DecodeStep> steps(decode_steps().begin(), decode_steps().begin() + 2);
  for (const char* recipe : {"current", "delayed", "mxfp8"}) {
    for (const DecodeStep& step : steps) {
      Scenario scenario = scenario_of_step(
          step, 64, fmt::format("dtype = \"fp8\"\n[fp8]\nrecipe = \"{}\"\n", recipe));
      scenario.attention.kv_heads = 1;
      scenario.attention.head_dim_qk = 72;
      scenario.attention.head_dim_v = scenario.attention.latent_dim = 64;
      for (Executor* executor : {&newest, portable.get()}) {
        // Portable kernels are slow on the emulator: one rank is enough.
        const bool is_portable = executor != &newest || recipe == std::string("mxfp8");
        if (is_portable && &step != steps.data()) continue;
        if (executor != &newest && recipe != std::string("current")) continue;
        const std::string where = fmt::format("{} {} on {}", step.name, recipe, executor->name());
        const auto run = run_graded_on(*executor, scenario);
        ASSERT_TRUE(run && run->output.ok()) << where;
        EXPECT_TRUE(run->grade.passed) << where << "\n" << describe(scenario, run->grade);
        const std::string kernel = run->output.value().item_kernels.forward.front();
        const bool is_on_tensor_cores =
            has_hopper && executor == &newest && recipe != std::string("mxfp8");
        EXPECT_EQ(kernel.starts_with("sm90"), is_on_tensor_cores) << where << ": " << kernel;
        const bool has_parts = kernel.find("in parts of the keys") != std::string::npos;
        EXPECT_EQ(has_parts, is_on_tensor_cores) << where << ": " << kernel;
      }
    }
  }
}

TEST(CudaExecutor, TakesOtherKernelsForTheGradientsOfDecodeSteps) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* dtype : {"bf16", "fp32"}) {
    const auto loaded = parse_scenario(
        fmt::format("schema = 1\ntitle = \"t\"\nquestion = \"q?\"\n[attention]\nheads = 2\n"
                    "kv_heads = 1\nhead_dim = 16\nattn_mask_type = \"causal_bottom_right\"\n"
                    "[batch]\nlengths = [1]\nkv_lengths = [600]\n[parallel]\ncp_size = 1\n"
                    "[numerics]\ndtype = \"{}\"\n",
                    dtype),
        "decode.toml");
    ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
    const auto run = run_graded_on(executor, loaded.value().scenario);
    ASSERT_TRUE(run);
    ASSERT_TRUE(run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << describe(run->plan.plan().scenario, run->grade);
    const std::string& name = run->output.value().item_kernels.forward.front();
    EXPECT_EQ(name.starts_with("decode"), dtype == std::string("bf16")) << name;
  }
}

TEST(CudaExecutor, GivesTheSameBitsInEveryRepeatOfADecodeStep) {
  CPSCOPE_NEEDS_DEVICE(executor);
  const Scenario scenario = scenario_of_step(decode_steps()[1]);
  const auto once = run_graded_on(executor, scenario);
  const auto again = run_graded_on(executor, scenario, {.repeats = 3});
  ASSERT_TRUE(once && again && once->output.ok() && again->output.ok());
  EXPECT_TRUE(is_bitwise_equal(once->output.value().answer, again->output.value().answer));
  // Codes of a rank's own keys are made once.
  const Scenario codes =
      scenario_of_step(decode_steps()[1], 64, "dtype = \"fp8\"\n[fp8]\nrecipe = \"current\"\n");
  const auto first = run_graded_on(executor, codes),
             third = run_graded_on(executor, codes, {.repeats = 3});
  ASSERT_TRUE(first && third && first->output.ok() && third->output.ok());
  EXPECT_TRUE(third->grade.passed);
  EXPECT_TRUE(is_bitwise_equal(first->output.value().answer, third->output.value().answer));
}

}  // namespace
}  // namespace cpscope::tests
