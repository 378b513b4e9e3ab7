#include "reference/dense_oracle.h"
#include "reference/plan_walker.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/grade.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/sweep.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// The stages of one scenario from plan to grade.
struct Graded {
  bool refused = false;
  Grade grade;
  RunOutput output;
};

Graded run_and_grade(const Scenario& scenario, int threads = 0) {
  Graded graded;
  Result<Plan> plan = make_plan(scenario);
  if (!plan) {
    EXPECT_EQ(plan.error().kind, ErrorKind::refused) << to_text(plan.error());
    graded.refused = true;
    return graded;
  }
  Result<CheckedPlan> checked = check_plan(std::move(plan).value());
  if (!checked) {
    ADD_FAILURE() << to_text(checked.error()) << "\n" << print_scenario(scenario);
    return graded;
  }
  const Plan& proved = checked.value().plan();
  const RunInputs inputs = make_run_inputs(proved, true);
  RunOptions options;
  options.poison = true;
  options.threads = threads;
  Result<RunOutput> output = reference::make_plan_walker()->run(checked.value(), inputs, options);
  EXPECT_TRUE(output.ok());
  graded.output = std::move(output).value();
  const Verdict verdict = reference::judge(scenario, inputs, count_hops(proved), {}).value();
  graded.grade = grade_answer(proved, inputs, graded.output.answer, verdict);
  return graded;
}

std::string describe_tensor(const Scenario& scenario, const TensorGrade& tensor) {
  std::ostringstream text;
  text << tensor.name << ": rel_l2 " << tensor.rel_l2 << ", budget " << tensor.budget << ", "
       << tensor.nan << " NaN; rank " << tensor.worst.rank << ", token " << tensor.worst.token
       << ", head " << tensor.worst.head << ": expected " << tensor.worst.expected << ", seen "
       << tensor.worst.seen << "\n"
       << print_scenario(scenario);
  return text.str();
}

/// True if a tensor is that of the oracle but for rounding in double precision. Where the exact
/// answer is zero, what is left has the size of its terms, which dropout divides by the share that
/// is kept.
bool agrees(const Scenario& scenario, const TensorGrade& tensor) {
  return tensor.rel_l2 <= 1e-11 || tensor.max_abs <= 1e-14 / (1 - scenario.attention.dropout);
}

const uint64_t kAgreeingScenarios = sweep(300, 2500);

TEST(WalkerAgreement, WithTheDenseOracleOnRandomScenariosInDoublePrecision) {
  uint64_t refused = 0;
  double worst = 0;
  for (uint64_t seed = 1; seed <= kAgreeingScenarios; ++seed) {
    const Scenario scenario = random_scenario(seed, {.has_rare = seed % 3 == 0});
    const Graded graded = run_and_grade(scenario);
    refused += graded.refused ? 1 : 0;
    for (const TensorGrade& tensor : graded.grade.tensors) {
      EXPECT_TRUE(tensor.passed) << "seed " << seed << " " << describe_tensor(scenario, tensor);
      // A zero tensor has no relative error.
      if (tensor.rel_l2 == std::numeric_limits<double>::infinity()) continue;
      worst = std::max(worst, tensor.rel_l2);
      EXPECT_TRUE(agrees(scenario, tensor))
          << "seed " << seed << " " << describe_tensor(scenario, tensor);
    }
    if (HasFailure()) break;
  }
  EXPECT_LT(refused, kAgreeingScenarios / 10);
  RecordProperty("worst_rel_l2", std::to_string(worst));
}

TEST(WalkerAgreement, KeepsTheBudgetOnRandomScenariosInLowPrecision) {
  RandomSpace space;
  space.any_dtype = true;
  for (uint64_t seed = 1; seed <= kAgreeingScenarios / 2; ++seed) {
    space.has_rare = seed % 3 == 0;
    const Scenario scenario = random_scenario(seed, space);
    const Graded graded = run_and_grade(scenario);
    for (const TensorGrade& tensor : graded.grade.tensors) {
      EXPECT_TRUE(tensor.passed) << "seed " << seed << " " << describe_tensor(scenario, tensor);
    }
    if (HasFailure()) break;
  }
}

TEST(WalkerAgreement, WithTheDenseOracleWhereQueriesMove) {
  for (const bool any_dtype : {false, true}) {
    const RandomSpace space{.any_dtype = any_dtype, .moves_queries = true, .has_rare = true};
    for (uint64_t seed = 1; seed <= kAgreeingScenarios / 2; ++seed) {
      const Scenario scenario = random_scenario(seed, space);
      const Graded graded = run_and_grade(scenario);
      for (const TensorGrade& tensor : graded.grade.tensors) {
        EXPECT_TRUE(tensor.passed) << "seed " << seed << " " << describe_tensor(scenario, tensor);
        if (any_dtype || tensor.rel_l2 == std::numeric_limits<double>::infinity()) continue;
        EXPECT_TRUE(agrees(scenario, tensor))
            << "seed " << seed << " " << describe_tensor(scenario, tensor);
      }
      if (HasFailure()) return;
    }
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

TEST(WalkerAgreement, DoesNotDependOnTheThreadCount) {
  RandomSpace space;
  space.any_dtype = true;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    space.moves_queries = seed % 4 == 0;
    const Scenario scenario = random_scenario(seed, space);
    const Graded one = run_and_grade(scenario, 1), two = run_and_grade(scenario, 2),
                 many = run_and_grade(scenario, 7);
    if (one.refused) continue;
    for (const auto member : {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv}) {
      EXPECT_TRUE(same_bits(one.output.answer.*member, two.output.answer.*member))
          << print_scenario(scenario);
      EXPECT_TRUE(same_bits(one.output.answer.*member, many.output.answer.*member))
          << print_scenario(scenario);
    }
    EXPECT_EQ(one.output.answer.d_sink, many.output.answer.d_sink);
  }
}

Scenario packed_batch(Dtype dtype) {
  Scenario scenario;
  scenario.attention.heads = 4;
  scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 16;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 1000;
  scenario.batch.lengths = {61, 0, 30, 97};
  scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots =
      scenario.batch.lengths;
  scenario.parallel.cp_size = 4;
  scenario.parallel.dispatch_chunk = 8;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// The rows of valid tokens, in batch order, independent of the padding of the layout.
std::vector<double> valid_rows(const Tensor& tensor, const Scenario& scenario,
                               int64_t slot_multiple) {
  std::vector<double> rows;
  const int64_t row = tensor.size() / tensor.shape[0];
  int64_t begin = 0;
  for (const int64_t length : scenario.batch.lengths) {
    rows.insert(rows.end(), tensor.values.begin() + begin * row,
                tensor.values.begin() + (begin + length) * row);
    begin += (length + slot_multiple - 1) / slot_multiple * slot_multiple;
  }
  return rows;
}

TEST(WalkerAgreement, GivesTheSameNumbersForEveryLayoutAndCommunicationType) {
  std::vector<double> first;
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::all_gather, CommType::a2a_p2p,
                              CommType::group_cast}) {
    for (const LayoutKind layout :
         {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
          LayoutKind::striped, LayoutKind::lpt, LayoutKind::lpt_local}) {
      Scenario scenario = packed_batch(Dtype::fp64);
      scenario.parallel.comm_type = comm;
      scenario.parallel.layout = layout;
      const Graded graded = run_and_grade(scenario);
      ASSERT_FALSE(graded.refused);
      const int64_t multiple = layout == LayoutKind::dual_chunk ? 8 : 1;
      std::vector<double> numbers = valid_rows(graded.output.answer.out, scenario, multiple);
      for (const auto member : {&Answer::dq, &Answer::dk, &Answer::dv}) {
        const std::vector<double> rows =
            valid_rows(graded.output.answer.*member, scenario, multiple);
        numbers.insert(numbers.end(), rows.begin(), rows.end());
      }
      if (first.empty()) first = numbers;
      ASSERT_EQ(numbers.size(), first.size());
      for (size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_NEAR(numbers[i], first[i], 1e-12)
            << to_name(comm) << " " << to_name(layout) << " value " << i;
      }
    }
  }
}

void expect_exactly_empty(const Scenario& scenario) {
  const Graded graded = run_and_grade(scenario);
  ASSERT_TRUE(graded.grade.passed);
  const Answer& answer = graded.output.answer;
  // Sequence 0 has 61 queries and 21 keys: queries 0..39 see nothing. Sequence 2 has no keys at
  // all.
  int64_t empty_rows = 0;
  for (int64_t row = 0; row < answer.lse.size(); ++row) {
    if (std::isfinite(answer.lse.values[row])) continue;
    ++empty_rows;
    EXPECT_EQ(answer.lse.values[row], -std::numeric_limits<double>::infinity());
    for (int64_t lane = 0; lane < 16; ++lane) {
      EXPECT_EQ(answer.out.values[row * 16 + lane], 0.0);
      EXPECT_EQ(answer.dq.values[row * 16 + lane], 0.0);
    }
  }
  // Per head: 40 empty rows and 3 padding rows of slot 64, 30 rows and 2 of padding, 97 rows padded
  // to 104.
  EXPECT_EQ(empty_rows, 4 * (40 + 3 + 32 + 7));
}

Scenario batch_with_empty_rows() {
  Scenario scenario = packed_batch(Dtype::bf16);
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.batch.kv_lengths = scenario.batch.kv_slots = {21, 5, 0, 97};
  scenario.batch.self_attention = false;
  return scenario;
}

TEST(WalkerAgreement, LeavesEmptyAndPaddingRowsExactlyEmpty) {
  expect_exactly_empty(batch_with_empty_rows());
}

TEST(WalkerAgreement, LeavesThemEmptyWhereOnlyOtherQueriesMove) {
  Scenario scenario = batch_with_empty_rows();
  scenario.parallel.comm_type = CommType::group_cast;
  scenario.parallel.dispatch = Dispatch::queries;
  expect_exactly_empty(scenario);
}

TEST(WalkerAgreement, TheSixteenBitMergeErrsMoreWithEveryRank) {
  Scenario scenario = packed_batch(Dtype::bf16);
  scenario.attention.softmax_type = SoftmaxType::vanilla;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.batch.lengths = {512};
  scenario.batch.kv_lengths = scenario.batch.slots = scenario.batch.kv_slots =
      scenario.batch.lengths;
  const auto out_error = [&](int32_t ranks, Accumulate accumulate) {
    scenario.parallel.cp_size = ranks;
    scenario.numerics.accumulate = accumulate;
    const Graded graded = run_and_grade(scenario);
    EXPECT_TRUE(graded.grade.passed);
    return graded.grade.tensors.front().rel_l2;
  };
  EXPECT_GT(out_error(32, Accumulate::dtype), 1.5 * out_error(2, Accumulate::dtype));
  EXPECT_LT(out_error(32, Accumulate::fp32), 1.2 * out_error(2, Accumulate::fp32));
}

/// The grade of a plan that is wrong on purpose.
Grade grade_faulty(const Scenario& scenario, void (*spoil)(Plan&)) {
  Plan plan = make_plan(scenario).value();
  spoil(plan);
  const CheckedPlan admitted = admit_faulty_plan(std::move(plan), "test");
  const RunInputs inputs = make_run_inputs(admitted.plan(), false);
  const Result<RunOutput> output = reference::make_plan_walker()->run(admitted, inputs, {});
  const Verdict verdict =
      reference::judge(scenario, inputs, count_hops(admitted.plan()), {}).value();
  return grade_answer(admitted.plan(), inputs, output.value().answer, verdict);
}

TEST(WalkerAgreement, AFaultyPlanFailsTheGrade) {
  const Scenario scenario = packed_batch(Dtype::bf16);
  EXPECT_TRUE(grade_faulty(scenario, [](Plan&) {}).passed);
  EXPECT_FALSE(
      grade_faulty(scenario, [](Plan& plan) { plan.forward.computes[5].num_slices = 0; }).passed)
      << "a step is dropped";
  EXPECT_FALSE(grade_faulty(scenario,
                            [](Plan& plan) {
                              const ComputeItem& item = plan.forward.computes[0];
                              plan.slices[static_cast<size_t>(item.first_slice)].hi -= 1;
                            })
                   .passed)
      << "a diagonal is off by one";
  EXPECT_FALSE(grade_faulty(scenario,
                            [](Plan& plan) {
                              for (TransferItem& item : plan.backward.transfers) {
                                if (item.payload != Payload::dkv) continue;
                                item.heads.end = item.heads.begin;
                                return;
                              }
                            })
                   .passed)
      << "a dKV hop carries nothing";
  EXPECT_FALSE(grade_faulty(scenario,
                            [](Plan& plan) {
                              plan.forward.merges.pop_back(),
                                  --plan.forward.stages[plan.forward.stages.size() - 2].end;
                            })
                   .passed)
      << "the last merge is forgotten";
}

}  // namespace
}  // namespace cpscope::tests
