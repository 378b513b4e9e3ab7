// The budget is wide enough for a correct run and too narrow for these wrong ones.

#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int32_t kLanes = 16;

Scenario long_case() {
  Scenario scenario = walker_case({kTokens}, 4);
  scenario.attention.heads = scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = kLanes;
  scenario.attention.window_left = 1000;
  scenario.numerics.dtype = Dtype::bf16;
  return scenario;
}

/// One correct run of 4096 tokens, shared by all cases.
class Budget : public testing::Test {
 protected:
  static void SetUpTestSuite() { run_ = new GradedRun(run_possible(long_case())); }
  static void TearDownTestSuite() {
    delete run_;
    run_ = nullptr;
  }

  static Answer correct() { return run_->answer; }

  /// Grades another answer to the same scenario and expects the tensor to fail.
  static void expect_failure(const Answer& answer, const std::string& name) {
    const Grade grade = grade_answer(run_->plan.plan(), run_->inputs, answer, run_->verdict);
    EXPECT_FALSE(grade.passed);
    for (const TensorGrade& tensor : grade.tensors)
      EXPECT_EQ(tensor.passed, tensor.name != name) << tensor.name;
  }

  static GradedRun* run_;
};
GradedRun* Budget::run_ = nullptr;

TEST_F(Budget, IsKeptByTheWalker) { EXPECT_TRUE(run_->grade.passed) << describe(*run_); }

TEST_F(Budget, IsTwiceThePlainErrorWhereRowsAreMany) {
  const Verdict& verdict = run_->verdict;
  for (const auto tensor : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
    const double twice = 2 * relative_error(verdict.plain.*tensor, verdict.exact.*tensor);
    const std::string& name = (verdict.exact.*tensor).name;
    const auto grade =
        std::find_if(run_->grade.tensors.begin(), run_->grade.tensors.end(),
                     [&](const TensorGrade& candidate) { return candidate.name == name; });
    ASSERT_NE(grade, run_->grade.tensors.end()) << name;
    // The rest comes from the accumulator, and from a random allowance: a few early keys, which
    // have large weights in the rows that see few others, hold most of dk and dv.
    EXPECT_GE(grade->budget, twice) << name;
    EXPECT_LE(grade->budget, (name == "dk" || name == "dv" ? 1.25 * twice : twice) + 1e-5) << name;
  }
}

TEST_F(Budget, FailsAnOutputOfZeros) {
  Answer answer = correct();
  std::fill(answer.out.values.begin(), answer.out.values.end(), 0.0);
  expect_failure(answer, "out");
}

TEST_F(Budget, FailsOneRowOfZerosAmongFourThousand) {
  for (const auto tensor : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
    // The very last keys have very small weights: their gradients are smaller than the bf16 error
    // of others.
    for (const int64_t row : {int64_t{1}, kTokens / 2, kTokens - 300}) {
      Answer answer = correct();
      std::fill_n((answer.*tensor).values.begin() + row * kLanes, kLanes, 0.0);
      expect_failure(answer, (answer.*tensor).name);
    }
  }
}

TEST_F(Budget, FailsAnyOneRowThatIsAFewPercentOff) {
  // Each is about the error that the least sensitive row tolerates. Late keys have small weights:
  // their rows are smaller than the average bf16 error.
  const std::pair<Tensor Answer::*, double> smallest_caught[] = {
      {&Answer::out, 0.05}, {&Answer::dq, 0.13}, {&Answer::dk, 0.25}, {&Answer::dv, 0.25}};
  for (const auto& [tensor, part] : smallest_caught) {
    for (int64_t row = 3; row < kTokens - 64; row += 137) {
      Answer answer = correct();
      for (int64_t lane = 0; lane < kLanes; ++lane)
        (answer.*tensor).values[row * kLanes + lane] *= 1 + part;
      expect_failure(answer, (answer.*tensor).name);
    }
  }
}

TEST_F(Budget, FailsOneRowThatMissesAKeyOfThreePercentWeight) {
  const RunInputs& inputs = run_->inputs;
  constexpr int64_t kRow = 29;
  int num_missed = 0;
  for (int64_t key = 0; key <= kRow; ++key) {
    double logit = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane)
      logit += inputs.q.values[kRow * kLanes + lane] * inputs.k.values[key * kLanes + lane] / 4;
    Answer answer = correct();
    const double weight = std::exp(logit - answer.lse.values[kRow]);
    if (weight < 0.03) continue;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      double& value = answer.out.values[kRow * kLanes + lane];
      value = (value - weight * inputs.v.values[key * kLanes + lane]) / (1 - weight);
    }
    expect_failure(answer, "out");
    ++num_missed;
  }
  EXPECT_GE(num_missed, 5);
}

TEST_F(Budget, FailsAScaleThatIsOnePercentOff) {
  Scenario scenario = long_case();
  scenario.attention.softmax_scale = 0.25 * 1.01;
  const CheckedPlan plan = plan_unless_refused(scenario).value();
  const Grade grade =
      grade_answer(run_->plan.plan(), run_->inputs, walk(plan, run_->inputs), run_->verdict);
  for (const TensorGrade& tensor : grade.tensors) {
    // dv is the sum of many weights, some of which become larger and some smaller.
    if (tensor.name == "dv") continue;
    EXPECT_FALSE(tensor.passed) << tensor.name << " " << tensor.rel_l2;
  }
}

TEST_F(Budget, FailsADoubledGradientOfOneToken) {
  Answer answer = correct();
  for (int64_t lane = 0; lane < kLanes; ++lane) answer.dk.values[777 * kLanes + lane] *= 2;
  expect_failure(answer, "dk");
}

TEST_F(Budget, FailsRowsOfTheNeighbouringRank) {
  // Dual chunks of 512: the first chunk of rank 0 is taken from rank 1.
  Answer answer = correct();
  std::copy_n(correct().out.values.begin() + 512 * kLanes, 512 * kLanes, answer.out.values.begin());
  expect_failure(answer, "out");
}

TEST_F(Budget, FailsOneRowTakenFromTheNextToken) {
  Answer answer = correct();
  std::copy_n(correct().out.values.begin() + 3001 * kLanes, kLanes,
              answer.out.values.begin() + 3000 * kLanes);
  expect_failure(answer, "out");
}

TEST_F(Budget, FailsALogSumOffByOneKeyInAThousand) {
  Answer answer = correct();
  answer.lse.values[2000] += std::log(1001.0 / 1000.0);
  expect_failure(answer, "lse");
}

TEST_F(Budget, FailsANaNAndAMisplacedInfinity) {
  Answer answer = correct();
  answer.dv.values[100] = std::nan("");
  expect_failure(answer, "dv");
  answer = correct();
  answer.lse.values[100] = -std::numeric_limits<double>::infinity();
  expect_failure(answer, "lse");
}

TEST_F(Budget, FailsALogitMaximumOfAnotherHead) {
  Answer answer = correct();
  answer.max_logit[0] += 0.01;
  expect_failure(answer, "max_logit");
}

TEST(BudgetOfMerges, FailsSixteenBitMergesWhereWideOnesWereAskedFor) {
  for (const QkvFormat format : {QkvFormat::bshd, QkvFormat::thd}) {
    Scenario scenario = walker_case({512}, 64);
    scenario.batch.qkv_format = format;
    scenario.attention.mask_type = MaskType::no_mask;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.backward = false;
    const GradedRun wide = run_possible(scenario);
    EXPECT_TRUE(wide.grade.passed) << describe(wide);
    scenario.numerics.accumulate = Accumulate::dtype;
    const GradedRun narrow = run_possible(scenario);
    EXPECT_TRUE(narrow.grade.passed) << describe(narrow);
    const Grade grade = grade_answer(wide.plan.plan(), wide.inputs, narrow.answer, wide.verdict);
    EXPECT_FALSE(grade.passed) << "out err " << grade.tensors.front().rel_l2 << " within budget "
                               << grade.tensors.front().budget;
  }
}

TEST(BudgetOfHops, IsKeptWhereStripesPutAllHopsInsideAWindow) {
  // Sixteen keys are visible, one on each rank: as many roundings as in a sequence of any length.
  for (const CommType comm : {CommType::p2p, CommType::all_gather, CommType::group_cast}) {
    for (const Accumulate accumulate : {Accumulate::fp32, Accumulate::dtype}) {
      Scenario scenario = walker_case({512}, 16);
      scenario.parallel.comm_type = comm;
      scenario.parallel.layout = LayoutKind::striped;
      scenario.attention.window_left = 15;
      scenario.numerics.dtype = Dtype::bf16;
      scenario.numerics.accumulate = accumulate;
      const GradedRun run = run_possible(scenario);
      EXPECT_TRUE(run.grade.passed) << describe(run);
    }
  }
}

TEST(BudgetOfHops, IsKeptWhereTheHeaviestQueriesAreTheLast) {
  // Late queries see few keys, and keys are seen by all queries up to their own and one more.
  for (const CommType comm : {CommType::p2p, CommType::all_gather, CommType::group_cast}) {
    for (const LayoutKind layout : {LayoutKind::striped, LayoutKind::dual_chunk}) {
      Scenario scenario = walker_case({1024}, 64);
      scenario.parallel.comm_type = comm;
      scenario.parallel.layout = layout;
      scenario.attention.mask_type = MaskType::no_mask;
      scenario.attention.window_left = 1;
      scenario.numerics.dtype = Dtype::bf16;
      scenario.numerics.accumulate = Accumulate::dtype;
      const GradedRun run = run_possible(scenario);
      EXPECT_TRUE(run.grade.passed) << describe(run);
    }
  }
}

TEST(BudgetOfHops, IsKeptWhereRanksAddHeadsOfTheOnlyQueryThatSeesAKey) {
  // Every query sees its own key alone, and the 12 heads of its KV head are on 7 ranks, whose
  // shares of dv are added in fp16.
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Scenario scenario = walker_case({10, 32, 10}, 7);
    scenario.attention.heads = 12;
    scenario.attention.kv_heads = 1;
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 2;
    scenario.attention.window_left = scenario.attention.window_right = 0;
    scenario.parallel.comm_type = CommType::a2a;
    scenario.numerics.dtype = Dtype::fp16;
    scenario.numerics.accumulate = Accumulate::dtype;
    scenario.numerics.seed = seed;
    GradedRun run = run_possible(scenario);
    const TensorGrade& dv = *run.grade.find("dv");
    EXPECT_LT(dv.rel_l2, 0.75 * dv.budget) << describe(run);
    EXPECT_GT(dv.rel_l2, 0.2 * dv.budget) << "a budget that is too wide";
  }
}

/// Logits differ by hundreds, so gradients of some keys are 1e-160, or 0 although a query sees the
/// key; in fp32 they are 0, or as small as an exponential that does not end at 0.
TEST(BudgetOfSmallWeights, IsKeptWhereNumbersEnd) {
  for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
    Scenario scenario = walker_case({700, 2, 3}, 2);
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 64;
    scenario.attention.softmax_scale = 30.0;
    scenario.numerics.dtype = dtype;
    const GradedRun run = run_possible(scenario);
    EXPECT_TRUE(run.grade.passed) << describe(run);
    const std::vector<double>& dk = run.verdict.exact.dk.values;
    EXPECT_TRUE(std::ranges::any_of(dk, [](double x) { return x != 0.0 && std::abs(x) < 1e-160; }));
  }
}

TEST(BudgetOfSmallWeights, IsNoneWhereDropoutLeavesAKeyNoWeight) {
  Scenario scenario = walker_case({9, 4}, 1);
  scenario.attention.dropout = 0.8;
  scenario.numerics.dtype = Dtype::bf16;
  GradedRun run = run_possible(scenario);
  EXPECT_TRUE(run.grade.passed) << describe(run);
  const TermLengths& terms = run.verdict.terms;
  size_t row = 0;
  while (row < terms.dv.size() && !(terms.dv[row] == 0.0 && terms.undropped[row] > 0.0)) ++row;
  ASSERT_LT(row, terms.dv.size()) << "every key keeps a weight";
  run.answer.dv.values[row * run.answer.dv.values.size() / terms.dv.size()] = 1e-20;
  EXPECT_FALSE(grade_answer(run.plan.plan(), run.inputs, run.answer, run.verdict).passed);
}

/// With even weights all queries have one output, and all keys one gradient of their value: they
/// are rounded to one number each, whose error in a plain run may be small by chance.
TEST(BudgetOfEqualRows, IsThatOfTheFewRowsThatDiffer) {
  for (const uint64_t seed :
       {uint64_t{5515333951781321622}, uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
    Scenario scenario = walker_case({9}, 3);
    scenario.batch.kv_lengths = scenario.batch.kv_slots = {18};
    scenario.attention.heads = 4;
    scenario.attention.kv_heads = 1;
    scenario.attention.head_dim_qk = 2;
    scenario.attention.head_dim_v = 1;
    scenario.attention.mask_type = MaskType::no_mask;
    scenario.attention.softmax_scale = 0.001;
    scenario.attention.softmax_type = SoftmaxType::off_by_one;
    scenario.parallel.comm_type = CommType::group_cast;
    scenario.parallel.layout = LayoutKind::contiguous;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.fp8 = Fp8{.recipe = Fp8Recipe::delayed};
    scenario.numerics.seed = seed;
    GradedRun run = run_possible(scenario);
    EXPECT_TRUE(run.grade.passed) << describe(run);
    EXPECT_LT(run.grade.find("out")->budget, 0.5) << describe(run);
  }
}

TEST(BudgetOfZeros, IsSaidToBeOneWhereAPlainRunIsAsFarOff) {
  const auto allows_zeros = [](double scale) {
    Scenario scenario = walker_case({512}, 4);
    scenario.attention.heads = scenario.attention.kv_heads = 2;
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 64;
    scenario.attention.softmax_scale = scale;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.inputs = InputKind::peaked;
    scenario.numerics.fp8 = Fp8{.recipe = Fp8Recipe::current};
    GradedRun run = run_possible(scenario);
    EXPECT_TRUE(run.grade.passed) << describe(run);
    return run.grade.find("dk")->allows_zeros;
  };
  EXPECT_FALSE(allows_zeros(0.125));
  // With logits that spread over 32 their rounding to 8 bits decides which key has the weight.
  EXPECT_TRUE(allows_zeros(4.0));
}

/// The error of Hopper's sums of codes, in parts of 2^-12 of a typical logit.
TEST(BudgetOfShortSums, IsThatOfTheLogitsThatCarryWeight) {
  const auto is_kept = [](double scale, double parts) {
    Scenario scenario = walker_case({700}, 2);
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 64;
    scenario.attention.softmax_scale = scale;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.fp8 = Fp8{.recipe = Fp8Recipe::current};
    GradedRun run = run_possible(scenario);
    run.answer.has_short_sums = true;
    for (double& lse : run.answer.lse.values) lse -= parts * 0x1p-12 * scale * 8.0;
    const Grade grade = grade_answer(run.plan.plan(), run.inputs, run.answer, run.verdict);
    for (const TensorGrade& tensor : grade.tensors)
      if (tensor.name == "lse") return tensor.passed;
    return false;
  };
  EXPECT_TRUE(is_kept(0.125, 0.25));
  EXPECT_FALSE(is_kept(0.125, 2.0));
  EXPECT_TRUE(is_kept(1.0, 2.0));
  EXPECT_FALSE(is_kept(1.0, 6.0));
}

TEST(BudgetOfSinks, FailsASinkThatEveryRankLetIn) {
  for (const Dtype dtype : {Dtype::fp64, Dtype::bf16}) {
    for (const int32_t cp_size : {2, 4}) {
      Scenario scenario = walker_case({256}, cp_size);
      scenario.attention.softmax_type = SoftmaxType::learnable;
      scenario.numerics.dtype = dtype;
      const GradedRun run = run_possible(scenario);
      EXPECT_TRUE(run.grade.passed) << describe(run);
      Answer answer = run.answer;
      for (int64_t row = 0; row < answer.lse.size(); ++row) {
        double& lse = answer.lse.values[row];
        const double again = (cp_size - 1) * std::exp(run.inputs.sink[row % 4]);
        const double counted_often = std::log(std::exp(lse) + again);
        for (int64_t lane = 0; lane < 8; ++lane)
          answer.out.values[row * 8 + lane] *= std::exp(lse - counted_often);
        lse = counted_often;
      }
      const Grade grade = grade_answer(run.plan.plan(), run.inputs, answer, run.verdict);
      EXPECT_FALSE(grade.tensors[0].passed) << "out, " << to_name(dtype) << ", " << cp_size;
      EXPECT_FALSE(grade.tensors[1].passed) << "lse, " << to_name(dtype) << ", " << cp_size;
      // The sink's gradient, summed over replicas.
      answer = run.answer;
      for (double& value : answer.d_sink) value *= cp_size;
      EXPECT_FALSE(grade_answer(run.plan.plan(), run.inputs, answer, run.verdict).passed);
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
