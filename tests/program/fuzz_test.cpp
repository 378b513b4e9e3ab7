// The fuzzer on an executor that is right, and on ones that are wrong in ways that it must find.
#include "sim/app/fuzz/fuzz.h"

#include "reference/plan_walker.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/walker_toolbox.h"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The walker, whose answer `harm` spoils.
class HarmedExecutor : public Executor {
 public:
  using Harm = void (*)(const Plan&, RunOutput&);
  explicit HarmedExecutor(Harm harm) : harm_(harm), walker_(reference::make_plan_walker()) {}
  std::string name() const override { return "cpu"; }
  int64_t memory_bytes(const CheckedPlan& plan) const override {
    return walker_->memory_bytes(plan);
  }
  Result<RunOutput> run(const CheckedPlan& plan, const RunInputs& inputs,
                        const RunOptions& options) override {
    Result<RunOutput> output = walker_->run(plan, inputs, options);
    if (output && harm_ != nullptr) harm_(plan.plan(), output.value());
    return output;
  }

 private:
  Harm harm_;
  std::unique_ptr<Executor> walker_;
};

Toolbox make_harmed_toolbox(HarmedExecutor::Harm harm) {
  Toolbox toolbox = make_walker_toolbox();
  toolbox.executors.front() = std::make_unique<HarmedExecutor>(harm);
  return toolbox;
}

std::string print_finding(const FuzzReport& report) {
  if (!report.finding) return "";
  return "draw " + std::to_string(report.failed_draw) + ", " + report.finding->check + ": " +
         report.finding->text + "\n" + print_scenario(report.failed);
}

TEST(Fuzz, FindsNothingWrongWithTheWalker) {
  Toolbox toolbox = make_harmed_toolbox(nullptr);
  const FuzzReport report = fuzz(toolbox, "", {.seed = 5, .count = 300, .seconds = 0}, {});
  EXPECT_FALSE(report.finding) << print_finding(report);
  EXPECT_EQ(report.drawn, 300);
  EXPECT_EQ(report.passed + report.refused, 300);
  // Most of the space is possible, and most of what ran was asked everything.
  EXPECT_GT(report.passed, 200);
  EXPECT_GT(report.probed, report.passed / 2);
  EXPECT_GT(report.equivalents, report.passed);
  EXPECT_EQ(report.passed_by_dtype.size(), 5U);
}

// The oracle of a sample runs out of memory: nothing is wrong, and nothing can be said.
TEST(Fuzz, TakesNoWantOfMemoryForAFinding) {
  Toolbox toolbox = make_harmed_toolbox(nullptr);
  toolbox.oracle.judge_rows = [](auto&&...) -> Result<Verdict> {
    return make_error(ErrorKind::unavailable, "no memory");
  };
  const FuzzReport report = fuzz(toolbox, "", {.seed = 5, .count = 100, .seconds = 0}, {});
  ASSERT_TRUE(report.finding);
  EXPECT_EQ(report.finding->check, "sample");
  ASSERT_TRUE(report.finding->obstacle);
  EXPECT_EQ(report.finding->obstacle->kind, ErrorKind::unavailable);
  const Scenario tried = shrink_scenario(toolbox, "", report.failed, *report.finding, 20);
  EXPECT_EQ(tried, report.failed) << "no scenario fails more than another";
}

// Logits of thousands in fp64: their roundings are larger than any other error, and a sample of few
// rows has no plain run that shows them all.
TEST(Fuzz, FindsNothingWrongWithAFewRowsOfLargeLogits) {
  Toolbox toolbox = make_harmed_toolbox(nullptr);
  const Scenario scenario = draw_fuzz_scenario(20261126, 10722);
  EXPECT_EQ(scenario.numerics.dtype, Dtype::fp64);
  EXPECT_GT(scenario.attention.softmax_scale, 100);
  const FuzzResult result = try_scenario(toolbox, "", scenario);
  EXPECT_FALSE(result.finding) << result.finding->check << ": " << result.finding->text;
  EXPECT_TRUE(result.refusal.empty()) << result.refusal;
}

// FP8 of a few values with recipe delayed: partial results beyond the largest value of an earlier
// step are cut off, and one cast of two gradients may by chance be far better than another.
TEST(Fuzz, FindsNothingWrongWithAFewValuesInFp8) {
  Toolbox toolbox = make_harmed_toolbox(nullptr);
  for (const auto& [seed, index] : {std::pair(4002, 56577), {4003, 3321}, {4003, 4406}}) {
    const Scenario scenario =
        draw_fuzz_scenario(static_cast<uint64_t>(seed), static_cast<uint64_t>(index));
    EXPECT_EQ(scenario.numerics.fp8->recipe, Fp8Recipe::delayed);
    const FuzzResult result = try_scenario(toolbox, "", scenario);
    EXPECT_FALSE(result.finding) << result.finding->check << ": " << result.finding->text;
    EXPECT_TRUE(result.refusal.empty()) << result.refusal;
  }
}

/// A bug that needs a window and more than two ranks: one value of out is lost.
void lose_a_value(const Plan& plan, RunOutput& output) {
  if (plan.scenario.attention.window_left < 0 || plan.layout.cp_size <= 2) return;
  Tensor& out = output.answer.out;
  for (const SequenceSlot& slot : plan.layout.slots.sequences) {
    const int64_t width = out.size() / std::max<int64_t>(1, out.shape[0]);
    if (slot.q_valid == 0) continue;
    const auto row = static_cast<size_t>(slot.q_valid_begin() * width);
    if (out.values[row] == 0.0) continue;
    out.values[row] = 0.0;
    return;
  }
}

TEST(Fuzz, ShrinksAFailureToWhatItNeeds) {
  Toolbox toolbox = make_harmed_toolbox(lose_a_value);
  const FuzzReport report = fuzz(toolbox, "", {.seed = 1, .count = 400, .seconds = 0}, {});
  ASSERT_TRUE(report.finding);
  const Scenario smallest = shrink_scenario(toolbox, "", report.failed, *report.finding, 2000);
  const std::string text = print_scenario(smallest);
  EXPECT_GE(smallest.attention.window_left, 0) << text;
  EXPECT_GE(smallest.parallel.cp_size, 3) << text;
  EXPECT_LE(smallest.parallel.cp_size, 4) << text;
  EXPECT_EQ(smallest.batch.lengths.size(), 1U) << text;
  EXPECT_LE(smallest.batch.lengths[0], 4) << text;
  EXPECT_EQ(smallest.attention.heads, 1) << text;
  EXPECT_EQ(smallest.attention.head_dim_qk, 1) << text;
  EXPECT_EQ(smallest.attention.head_dim_v, 1) << text;
  EXPECT_EQ(smallest.attention.chunk_size, 0) << text;
  EXPECT_EQ(smallest.attention.softmax_type, SoftmaxType::vanilla) << text;
  EXPECT_FALSE(smallest.numerics.backward) << text;
  const FuzzResult again = try_scenario(toolbox, "", smallest);
  ASSERT_TRUE(again.finding) << text;
  EXPECT_EQ(again.finding->check, report.finding->check);
}

TEST(Fuzz, DrawsOneDtypeAloneAndCountsAsWithoutThatWish) {
  Toolbox toolbox = make_harmed_toolbox(nullptr);
  const FuzzReport report =
      fuzz(toolbox, "", {.seed = 5, .count = 40, .seconds = 0, .dtype = "fp8"}, {});
  EXPECT_FALSE(report.finding) << print_finding(report);
  EXPECT_EQ(report.drawn, 40);
  ASSERT_EQ(report.passed_by_dtype.size(), 1U);
  EXPECT_EQ(report.passed_by_dtype[0].first, "fp8");

  toolbox = make_harmed_toolbox(lose_a_value);
  const FuzzReport failed =
      fuzz(toolbox, "", {.seed = 1, .count = 200, .seconds = 0, .dtype = "bf16"}, {});
  ASSERT_TRUE(failed.finding);
  EXPECT_EQ(failed.failed, draw_fuzz_scenario(1, failed.failed_draw));
  EXPECT_EQ(failed.failed.numerics.dtype, Dtype::bf16);
}

/// Wrong in a way that the budget of 16 bits forgives, and the equivalent splits of fp64 do not:
/// a hundred-thousandth of a budget, on striped layouts only.
void bend_striped(const Plan& plan, RunOutput& output) {
  if (plan.scenario.parallel.layout != LayoutKind::striped) return;
  for (double& value : output.answer.out.values) value *= 1 + 1e-10;
}

TEST(Fuzz, HoldsDoubleAnswersToEachOtherMoreTightlyThanToABudget) {
  Toolbox toolbox = make_harmed_toolbox(bend_striped);
  const FuzzReport report = fuzz(toolbox, "", {.seed = 3, .count = 400, .seconds = 0}, {});
  ASSERT_TRUE(report.finding);
  EXPECT_EQ(report.failed.numerics.dtype, Dtype::fp64) << print_finding(report);
}

/// A count that is off by one key, in the forward only where q is zero: nothing but a probe sees
/// it.
void add_a_key(const Plan& plan, RunOutput& output) {
  if (plan.scenario.numerics.backward || plan.layout.cp_size < 2) return;
  const bool is_probe = std::all_of(output.answer.max_logit.begin(), output.answer.max_logit.end(),
                                    [](double logit) { return logit == 0.0 || std::isinf(logit); });
  if (!is_probe) return;
  for (double& value : output.answer.lse.values)
    if (std::isfinite(value)) value = std::log(std::exp(value) + 1);
}

TEST(Fuzz, AsksTheProbeToo) {
  Toolbox toolbox = make_harmed_toolbox(add_a_key);
  const FuzzReport report = fuzz(toolbox, "", {.seed = 3, .count = 200, .seconds = 0}, {});
  ASSERT_TRUE(report.finding);
  EXPECT_EQ(report.finding->check, "probe") << print_finding(report);
}

TEST(Fuzz, DrawsTheSameForTheSameNumbersAndOthersForOthers) {
  EXPECT_EQ(draw_fuzz_scenario(9, 41), draw_fuzz_scenario(9, 41));
  EXPECT_NE(draw_fuzz_scenario(9, 41), draw_fuzz_scenario(9, 42));
  EXPECT_NE(draw_fuzz_scenario(9, 41), draw_fuzz_scenario(8, 41));
}

TEST(Fuzz, ReportsTheSameDrawHoweverManyThreadsLook) {
  Toolbox toolbox = make_harmed_toolbox(lose_a_value);
  const FuzzReport many = fuzz(toolbox, "", {.seed = 1, .count = 400, .seconds = 0}, {});
  setenv("CPSCOPE_THREADS", "1", 1);
  const FuzzReport one = fuzz(toolbox, "", {.seed = 1, .count = 400, .seconds = 0}, {});
  unsetenv("CPSCOPE_THREADS");
  EXPECT_EQ(many.failed_draw, one.failed_draw);
}

TEST(Fuzz, ReachesTheCornersOfTheSpace) {
  int64_t empty = 0, extreme = 0, odd = 0, many_ranks = 0, imported = 0, slices = 0, refused = 0;
  for (uint64_t index = 0; index < 2000; ++index) {
    const Scenario scenario = draw_fuzz_scenario(1, index);
    const auto& lengths = scenario.batch.lengths;
    empty += std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == 0 ? 1 : 0;
    extreme += scenario.attention.softmax_scale >= 30 ? 1 : 0;
    odd += scenario.attention.head_dim_qk % 2 == 1 ? 1 : 0;
    many_ranks += scenario.parallel.cp_size > 6 ? 1 : 0;
    imported += scenario.parallel.layout == LayoutKind::indices ? 1 : 0;
    slices += scenario.attention.mask_type == MaskType::slices ? 1 : 0;
    refused += parse_scenario(print_scenario(scenario), "a.toml").ok() ? 0 : 1;
  }
  for (const int64_t count : {empty, extreme, odd, many_ranks, imported, slices})
    EXPECT_GT(count, 20);
  // What cannot even be written down tests nothing.
  EXPECT_LT(refused, 2000 / 4);
}

}  // namespace
}  // namespace cpscope::tests
