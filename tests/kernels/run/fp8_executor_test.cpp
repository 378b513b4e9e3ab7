// The executor `cuda` in dtype fp8: against the dense reference, and against the walker, which
// casts the same numbers. The same tests run on the CPU emulator and on a GPU.
#include "sim/run/grade/grade.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "tests/kernels/device/source_lines.h"
#include "tests/kernels/run/fp8_cases.h"
#include "tests/kernels/run/needs_device.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

#ifdef CPSCOPE_EMULATED
const uint64_t kFp8Scenarios = sweep(24, 120);
#else
constexpr uint64_t kFp8Scenarios = 600;
#endif

constexpr const char* kCommTypes[] = {"p2p",        "a2a",    "all_gather", "a2a+p2p",
                                      "group_cast", "pass_q", "mesh",       "double_ring"};

/// |seen - expected|2 / |expected|2 of the worst tensor, without padding.
std::pair<double, std::string> apart(const Answer& seen, const Answer& expected,
                                     const BatchSlots& slots) {
  const Answer a = without_padding(seen, slots), b = without_padding(expected, slots);
  std::pair<double, std::string> worst{0.0, ""};
  for (const auto tensor : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
    if ((b.*tensor).values.empty()) continue;
    const double relative = relative_error(a.*tensor, b.*tensor);
    if (!(relative <= worst.first)) worst = {relative, (b.*tensor).name};
  }
  return worst;
}

TEST(CudaFp8, KeepsTheBudgetInEverySchedule) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : kCommTypes) {
    for (const Fp8& fp8 : fp8_recipes()) {
      const Scenario scenario = fp8_scenario_of(type, fp8);
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << name_of(fp8) << "\n" << describe(scenario, run->grade);
      EXPECT_EQ(run->output.value().kernels, "portable");
      for (const TensorGrade& tensor : run->grade.tensors) {
        // Errors of 8 bits, not of 16, and no budget that zeros would pass.
        if (tensor.name == "lse" || tensor.name == "max_logit") continue;
        EXPECT_GT(tensor.rel_l2, 0.01) << type << ", " << name_of(fp8) << ", " << tensor.name;
        EXPECT_LT(tensor.budget, 0.5) << type << ", " << name_of(fp8) << ", " << tensor.name;
      }
    }
  }
}

/// Where each query sees one stretch of at most a tile of keys in an item, both cast the same
/// numbers; only the order of sums differs.
TEST(CudaFp8, GivesTheNumbersOfTheWalker) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* type : {"p2p", "pass_q", "double_ring", "a2a+p2p"}) {
    for (const Fp8& fp8 : fp8_recipes()) {
      Scenario scenario = fp8_scenario_of(type, fp8);
      scenario.parallel.layout = LayoutKind::contiguous;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
      const auto [relative, tensor] =
          apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots);
      EXPECT_LT(relative, 4e-3) << type << ", " << name_of(fp8) << ", " << tensor;
    }
  }
}

TEST(CudaFp8, KeepsTheBudgetWithEveryHeadDimAndFeature) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8& fp8 : fp8_recipes()) {
    for (const auto& [qk, v] : {std::pair{8, 16}, std::pair{64, 64}, std::pair{128, 72},
                                std::pair{192, 128}, std::pair{35, 200}}) {
      Scenario scenario = fp8_scenario_of("p2p", fp8);
      scenario.attention.head_dim_qk = qk;
      scenario.attention.head_dim_v = v;
      scenario.attention.softcap = qk == 64 ? 3.0 : 0.0;
      scenario.attention.softmax_type = qk == 128 ? SoftmaxType::learnable : SoftmaxType::vanilla;
      scenario.attention.rope_theta = qk == 192 ? 10000.0 : 0.0;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << qk << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << name_of(fp8) << "\n" << describe(scenario, run->grade);
    }
  }
}

/// Several tiles of keys and of queries, blocks of MXFP8 that tiles and documents cut.
TEST(CudaFp8, StaysNearTheWalkerOverManyTiles) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8& fp8 : fp8_recipes()) {
    const Scenario scenario = fp8_scenario_of("all_gather", fp8, 32, "203, 45, 140");
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << name_of(fp8) << "\n" << describe(scenario, run->grade);
    // Casts relative to another running maximum differ by as much as a cast errs, no more.
    const auto [relative, tensor] =
        apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots);
    EXPECT_LT(relative, 0.05) << name_of(fp8) << ", " << tensor;
  }
}

TEST(CudaFp8, KeepsTheBudgetOnRandomScenarios) {
  CPSCOPE_NEEDS_DEVICE(executor);
  uint64_t ran = 0;
  for (uint64_t seed = 9'000'000; seed < 9'000'000 + kFp8Scenarios; ++seed) {
    const Scenario scenario =
        without_rejected(random_scenario(seed, {.max_length = kLongestSequence,
                                                .any_dtype = true,
                                                .moves_queries = seed % 3 == 0,
                                                .has_fp8 = true}));
    const auto run = run_graded_on(executor, scenario);
    if (!run) continue;
    ASSERT_TRUE(run->output.ok()) << "seed " << seed << ": " << to_text(run->output.error());
    EXPECT_NE(run->grade.judgement(), Judgement::fail) << "seed " << seed << "\n"
                                                       << describe(scenario, run->grade);
    ++ran;
    if (HasFailure()) return;
  }
  EXPECT_GT(ran * 10, kFp8Scenarios * 7) << "most scenarios are to be possible";
}

TEST(CudaFp8, GivesTheSameBitsTwiceAndInTheNextRepeat) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8& fp8 : fp8_recipes()) {
    const Scenario scenario = fp8_scenario_of("p2p", fp8);
    const auto first = run_graded_on(executor, scenario),
               second = run_graded_on(executor, scenario, {.repeats = 2});
    ASSERT_TRUE(first && second && first->output.ok() && second->output.ok());
    EXPECT_TRUE(is_bitwise_equal(first->output.value().answer, second->output.value().answer))
        << name_of(fp8);
  }
}

/// The grade of a run whose executor got a quarter of one largest value.
Grade grade_with_wrong(Executor& executor, double Fp8History::*member) {
  const CheckedPlan plan =
      *plan_unless_refused(fp8_scenario_of("p2p", {.recipe = Fp8Recipe::delayed}));
  RunInputs inputs = make_run_inputs(plan.plan().scenario, plan.plan().layout.slots, true);
  const Verdict verdict = judge_plan(plan, inputs);
  inputs.fp8.*member /= 4;
  return grade_answer(plan.plan(), inputs, executor.run(plan, inputs, {}).value().answer, verdict);
}

TEST(CudaFp8, IsRejectedWithTheScalesOfAnotherStep) {
  CPSCOPE_NEEDS_DEVICE(executor);
  EXPECT_TRUE(run_graded_on(executor, fp8_scenario_of("p2p", {.recipe = Fp8Recipe::delayed}))
                  ->grade.passed);
  // Values beyond the scale's range clip.
  EXPECT_FALSE(grade_with_wrong(executor, &Fp8History::qkv).passed);
  EXPECT_FALSE(grade_with_wrong(executor, &Fp8History::d_out).passed);
}

#ifdef CPSCOPE_EMULATED

/// A barrier that does not wait lets blocks of dS be cast before they are complete.
TEST(CudaFp8, FailsItsTestsWithoutABarrier) {
  using kernels::emulator::Fault;
  using kernels::emulator::settings;
  CPSCOPE_NEEDS_DEVICE(executor);
  Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::mxfp8});
  scenario.parallel.layout = LayoutKind::contiguous;
  const std::vector<int32_t> lines =
      lines_with(CPSCOPE_KERNELS "/attention/attention_fp8.cu", "__syncthreads();");
  ASSERT_FALSE(lines.empty());
  for (const int32_t line : lines) {
    bool is_seen = false;
    for (uint64_t seed = 1; seed <= 5 && !is_seen; ++seed) {
      settings() = {.seed = seed, .fault = Fault::skip_barrier, .fault_line = line};
      const auto run = run_graded_on(executor, scenario);
      is_seen = !run->output.ok() ||
                !(apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots)
                      .first < 4e-3);
      settings() = {};
    }
    EXPECT_TRUE(is_seen) << "line " << line;
  }
}

#endif

}  // namespace
}  // namespace cpscope::tests
