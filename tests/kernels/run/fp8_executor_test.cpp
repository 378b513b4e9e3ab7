// The executor `cuda` in dtype fp8: against the dense reference, and against the walker, which
// casts the same numbers. The same tests run on the CPU emulator and on a GPU.
#include "sim/run/grade/grade.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/score_terms.h"
#include "tests/kernels/device/source_lines.h"
#include "tests/kernels/run/fp8_cases.h"
#include "tests/kernels/run/needs_device.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"

#include <algorithm>
#include <memory>
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

// One number whose cast falls on the other side: E5M2 differs by an eighth, of 15000 numbers.
constexpr double kOneCast = 4e-3;
// Hopper's tensor cores keep 14 bits of a logit, so more casts fall on the other side; where the
// backward multiplies codes, of dP too. The emulator's keep all.
#ifdef CPSCOPE_EMULATED
constexpr double kNewest = kOneCast, kNewestOfCodes = kOneCast;
#else
constexpr double kNewest = 2e-2, kNewestOfCodes = 4e-2;
#endif

bool has_hopper() { return kernels::describe_device(0).compute_capability == 90; }

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

/// The executor with the newest kernels of the device, and the one with portable kernels.
std::vector<std::unique_ptr<Executor>> both_executors() {
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(kernels::make_executor_cuda());
  executors.push_back(kernels::make_executor_cuda(kernels::Generation::portable));
  return executors;
}

TEST(CudaFp8, KeepsTheBudgetInEverySchedule) {
  CPSCOPE_NEEDS_DEVICE(executor);
  size_t number = 0;
  for (const char* type : kCommTypes) {
    for (const Fp8& fp8 : some_recipes(number++)) {
      const Scenario scenario = fp8_scenario_of(type, fp8);
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << name_of(fp8) << "\n" << describe(scenario, run->grade);
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
  CPSCOPE_NEEDS_DEVICE(newest);
  EXPECT_EQ(newest.name(), "cuda");
  size_t number = 0;
  for (const auto& each : both_executors()) {
    for (const char* type : {"p2p", "pass_q", "double_ring", "a2a+p2p", "p2p"}) {
      for (const Fp8& fp8 : some_recipes(number++)) {
        // Hopper's backward multiplies codes above head_dim 64, values below.
        const bool has_codes = type == std::string("p2p");
        Scenario scenario = fp8_scenario_of(type, fp8, has_codes ? 72 : 40);
        scenario.parallel.layout = LayoutKind::contiguous;
        const auto run = run_graded_on(*each, scenario);
        ASSERT_TRUE(run && run->output.ok()) << type << ": " << to_text(run->output.error());
        const auto [relative, tensor] =
            apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots);
        const double newest_bound = has_codes ? kNewestOfCodes : kNewest;
        EXPECT_LT(relative, each->name() == "cuda" ? newest_bound : kOneCast)
            << each->name() << ", " << type << ", " << name_of(fp8) << ", " << tensor;
      }
    }
  }
}

/// Codes of one byte where one scale a tensor and the head_dim allow it, else their values as bf16.
TEST(CudaFp8, TakesTensorCores) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8& fp8 : fp8_recipes()) {
    for (const int32_t head_dim : {128, 136}) {
      const auto run = run_graded_on(executor, fp8_scenario_of("p2p", fp8, head_dim, "22, 9"));
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(run->plan.plan().scenario, run->grade);
      const bool is_wide = head_dim > 128, is_mx = fp8.recipe == Fp8Recipe::mxfp8;
      const auto& kernels = run->output.value().item_kernels;
      const std::string forward = kernels.forward.front(), backward = kernels.backward.front();
      if (!has_hopper()) {
        EXPECT_EQ(forward, "portable forward 64x64");
        EXPECT_EQ(backward.find("portable"), 0U) << backward;
        continue;
      }
      EXPECT_EQ(forward, is_wide ? "sm90 forward 128x80"
                         : is_mx ? "sm90 forward 128x128"
                                 : "sm90 forward 192x96");
      const std::string dq = is_mx     ? "sm90 dq 128x"
                             : is_wide ? "sm90 dq 128x64"
                                       : "sm90 dq dk dv 128x64";
      EXPECT_EQ(backward.find(is_mx ? dq + (is_wide ? "32" : "64") : dq), 0U) << backward;
      EXPECT_EQ(run->output.value().answer.has_short_sums, !is_wide && !is_mx);
    }
  }
}

TEST(CudaFp8, TakesTilesOfMoreKeysForShortHeads) {
  CPSCOPE_NEEDS_DEVICE(executor);
  Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::current}, 64, "22, 9");
  scenario.numerics.backward = false;
  const auto run = run_graded_on(executor, scenario);
  ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
  EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
  EXPECT_EQ(run->output.value().item_kernels.forward.front(),
            has_hopper() ? "sm90 forward 192x128" : "portable forward 64x64");
}

TEST(CudaFp8, KeepsTheBudgetWithEveryHeadDimAndFeature) {
  CPSCOPE_NEEDS_DEVICE(executor);
  size_t number = 0;
  for (const auto& [qk, v] : {std::pair{8, 16}, std::pair{64, 64}, std::pair{128, 72},
                              std::pair{192, 128}, std::pair{35, 200}}) {
    for (const Fp8& fp8 : some_recipes(number++)) {
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

/// Bias, ALiBi and dropout, latent attention, and both together.
std::vector<std::pair<const char*, Scenario>> scenarios_with_more(const Fp8& fp8) {
  const std::string lengths = "37, 22";
  Scenario terms = fp8_scenario_of("p2p", fp8, 40, lengths);
  terms.attention.alibi = true;
  terms.attention.bias = BiasShape::b_h;
  terms.attention.dropout = 0.3;
  Scenario latent = fp8_scenario_of("p2p", fp8, 40, lengths);
  latent.attention.kv_heads = 1;
  latent.attention.head_dim_qk = 80;
  latent.attention.head_dim_v = latent.attention.latent_dim = 72;
  Scenario both = latent;
  both.attention.alibi = true;
  both.attention.bias = BiasShape::one_h;
  both.attention.dropout = 0.3;
  if (fp8.recipe == Fp8Recipe::delayed)
    return {{"terms", terms}, {"latent", latent}, {"latent with terms", both}};
  Scenario largest = fp8_scenario_of("p2p", fp8, 64, "14, 9");
  largest.attention.kv_heads = 1;
  largest.attention.head_dim_qk = 576;
  largest.attention.head_dim_v = largest.attention.latent_dim = 512;
  return {{"terms", terms}, {"latent", latent}, {"latent with terms", both}, {"576", largest}};
}

TEST(CudaFp8, TakesBiasAlibiDropoutAndLatentRows) {
  CPSCOPE_NEEDS_DEVICE(newest);
  EXPECT_EQ(newest.name(), "cuda");
  size_t number = 0;
  for (const auto& each : both_executors()) {
    for (const Fp8& fp8 : some_recipes(number++)) {
      for (auto& [name, scenario] : scenarios_with_more(fp8)) {
        scenario.parallel.layout = LayoutKind::contiguous;
        const auto run = run_graded_on(*each, scenario);
        ASSERT_TRUE(run && run->output.ok()) << name << ": " << to_text(run->output.error());
        const RunOutput& output = run->output.value();
        EXPECT_TRUE(run->grade.passed) << each->name() << ", " << name_of(fp8) << "\n"
                                       << describe(scenario, run->grade);
        const auto [relative, tensor] =
            apart(output.answer, walk(run->plan, run->inputs), run->inputs.slots);
        // Few numbers in all: terms move a few casts. Hopper's forward of latent rows rounds
        // weights to bf16, where the walker casts them.
        const bool casts_weights = output.item_kernels.forward.front().find("sm90") != 0;
        EXPECT_LT(relative, casts_weights ? 3 * kOneCast : 0.06)
            << each->name() << ", " << name << ", " << name_of(fp8) << ", " << tensor;
        const bool has_own_forward = has_hopper() && each->name() == "cuda" &&
                                     fp8.recipe != Fp8Recipe::mxfp8 &&
                                     !has_score_terms(scenario.attention);
        EXPECT_EQ(casts_weights, !has_own_forward) << name;
      }
    }
  }
}

/// Small enough for compute-sanitizer.
TEST(CudaFp8, AddsTermsToFewLatentRows) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8Recipe recipe : {Fp8Recipe::current, Fp8Recipe::mxfp8}) {
    Scenario scenario = fp8_scenario_of("p2p", {.recipe = recipe}, 16, "22, 9");
    scenario.attention.kv_heads = 1;
    scenario.attention.head_dim_qk = 24;
    scenario.attention.head_dim_v = scenario.attention.latent_dim = 16;
    for (const bool has_terms : {false, true}) {
      scenario.attention.alibi = has_terms;
      scenario.attention.bias = has_terms ? BiasShape::one_h : BiasShape::none;
      scenario.attention.dropout = has_terms ? 0.3 : 0.0;
      const auto run = run_graded_on(executor, scenario);
      ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
      EXPECT_TRUE(run->grade.passed) << describe(scenario, run->grade);
    }
  }
}

/// Several tiles of keys and of queries; documents that begin in the middle of a block of MXFP8, of
/// a group of codes, of a tile.
TEST(CudaFp8, StaysNearTheWalkerOverManyTiles) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const Fp8& fp8 : fp8_recipes()) {
    const Scenario scenario = fp8_scenario_of("all_gather", fp8, 32, "203, 45, 301, 140");
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << name_of(fp8) << "\n" << describe(scenario, run->grade);
    // Casts relative to another running maximum differ by as much as a cast errs, no more.
    const auto [relative, tensor] =
        apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots);
    EXPECT_LT(relative, 0.05) << name_of(fp8) << ", " << tensor;
  }
}

/// Logits spread so far that a later tile's weights overflow fp32, relative to those before: Hopper
/// multiplies its codes again, in the warps that have such rows.
TEST(CudaFp8, KeepsTheBudgetWhereALaterKeyOutweighsAllOthersByFar) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const auto& [scale, head_dim] : {std::pair{1.0, 128}, std::pair{6.0, 64}}) {
    Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::current}, head_dim, "330, 90");
    scenario.attention.softmax_scale = scale;
    const auto run = run_graded_on(executor, scenario);
    ASSERT_TRUE(run && run->output.ok()) << to_text(run->output.error());
    EXPECT_TRUE(run->grade.passed) << scale << "\n" << describe(scenario, run->grade);
  }
}

TEST(CudaFp8, KeepsTheBudgetOnRandomScenarios) {
  CPSCOPE_NEEDS_DEVICE(executor);
  uint64_t ran = 0;
  for (uint64_t seed = 9'000'000; seed < 9'000'000 + kFp8Scenarios; ++seed) {
    const Scenario scenario = random_scenario(seed, {.max_length = kLongestSequence,
                                                     .any_dtype = true,
                                                     .moves_queries = seed % 3 == 0,
                                                     .has_fp8 = true,
                                                     .has_rare = true});
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
    const Scenario scenario = fp8_scenario_of("p2p", fp8, 24, "41, 9");
    const auto first = run_graded_on(executor, scenario),
               second = run_graded_on(executor, scenario, {.repeats = 2});
    ASSERT_TRUE(first && second && first->output.ok() && second->output.ok());
    EXPECT_TRUE(is_bitwise_equal(first->output.value().answer, second->output.value().answer))
        << name_of(fp8);
  }
}

TEST(CudaFp8, TimesItsCastsAsAPartOfAnItem) {
  CPSCOPE_NEEDS_DEVICE(executor);
  for (const char* dtype : {"bf16", "fp8"}) {
    Scenario scenario = fp8_scenario_of("p2p", {.recipe = Fp8Recipe::current}, 128, "200");
    if (std::string_view(dtype) == "bf16") scenario.numerics.fp8.reset();
    const auto plan = plan_unless_refused(scenario);
    ASSERT_TRUE(plan);
    const auto output =
        executor.run(*plan, make_run_inputs(plan->plan(), true), {.measures_items = true});
    ASSERT_TRUE(output.ok()) << to_text(output.error());
    int32_t computes = 0;
    for (const ItemEvent& event : output.value().events) {
      const bool casts = event.item.kind == StageKind::compute && scenario.numerics.fp8;
      computes += casts ? 1 : 0;
      EXPECT_EQ(event.cast_ns > 0, casts) << event.cast_ns;
      EXPECT_LT(event.cast_ns, event.end_ns - event.start_ns);
    }
    EXPECT_EQ(computes > 0, scenario.numerics.fp8.has_value());
  }
}

/// The grade of a run whose executor got a quarter of one largest value.
Grade grade_with_wrong(Executor& executor, double Fp8History::*member) {
  const CheckedPlan plan =
      *plan_unless_refused(fp8_scenario_of("p2p", {.recipe = Fp8Recipe::delayed}));
  RunInputs inputs = make_run_inputs(plan.plan(), true);
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

/// True if the answers of some order of threads are not the walker's.
bool is_seen(Executor& executor, const Fp8& fp8, kernels::emulator::Fault fault, int32_t line = 0,
             int32_t head_dim = 40) {
  // Of a fault all but one wait are seen in the first three orders, that one in the ninth.
  const uint64_t num_orders = fault == kernels::emulator::Fault::none ? 5 : 20;
  Scenario scenario = fp8_scenario_of("p2p", fp8, head_dim);
  scenario.parallel.layout = LayoutKind::contiguous;
  bool is_wrong = false;
  for (uint64_t seed = 1; seed <= num_orders && !is_wrong; ++seed) {
    kernels::emulator::settings() = {.seed = seed, .fault = fault, .fault_line = line};
    const auto run = run_graded_on(executor, scenario);
    kernels::emulator::settings() = {};
    is_wrong =
        !run->output.ok() ||
        !(apart(run->output.value().answer, walk(run->plan, run->inputs), run->inputs.slots).first <
          kOneCast);
  }
  return is_wrong;
}

/// A barrier that does not wait lets blocks of dS be cast before they are complete.
TEST(CudaFp8, FailsItsTestsWithAPlantedFault) {
  using kernels::emulator::Fault;
  CPSCOPE_NEEDS_DEVICE(executor);
  const Fp8 mx{.recipe = Fp8Recipe::mxfp8}, current{.recipe = Fp8Recipe::current};
  const auto portable = kernels::make_executor_cuda(kernels::Generation::portable);
  for (const Fp8& fp8 : {mx, current}) {
    EXPECT_FALSE(is_seen(executor, fp8, Fault::none));
    EXPECT_FALSE(is_seen(*portable, fp8, Fault::none));
  }
  const std::vector<int32_t> lines =
      lines_with(CPSCOPE_KERNELS "/attention/attention_fp8.cu", "__syncthreads();");
  ASSERT_FALSE(lines.empty());
  for (const int32_t line : lines)
    EXPECT_TRUE(is_seen(*portable, mx, Fault::skip_barrier, line)) << "line " << line;
  // Hopper's kernels.
  for (const Fault fault :
       {Fault::skip_product_wait, Fault::skip_swizzle, Fault::skip_transaction_wait})
    for (const Fp8& fp8 : {mx, current})
      EXPECT_TRUE(is_seen(executor, fp8, fault)) << name_of(fp8) << static_cast<int>(fault);
  const std::string codes = CPSCOPE_KERNELS "/hopper/hopper_code_consumer.h";
  for (const auto& [text, fault] : {std::pair{"mbarrier_wait(", Fault::skip_transaction_wait},
                                    std::pair{"wgmma_wait<", Fault::skip_product_wait}}) {
    const std::vector<int32_t> waits = lines_with(codes, text);
    EXPECT_GE(waits.size(), 4U) << text;
    for (const int32_t line : waits)
      EXPECT_TRUE(is_seen(executor, current, fault, line, 72)) << text << " line " << line;
  }
}

#endif

}  // namespace
}  // namespace cpscope::tests
