#include "gui/model/error_field.h"

#include "sim/scenario/random_scenario.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::ErrorField;
using gui::ErrorHistogram;
using gui::MaxPyramid;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The order of errors, written differently than in the pyramid.
bool is_worse(float a, float b) {
  if (std::isnan(b)) return false;
  return std::isnan(a) || a > b;
}

TEST(MaxPyramid, FindsTheWorstOfAnyRows) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const int64_t rows = 1 + random() % 300;
    const int32_t columns = 1 + static_cast<int32_t>(random() % 5);
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) {
      const uint32_t kind = random() % 40;
      value = kind == 0   ? kNan
              : kind == 1 ? std::numeric_limits<float>::infinity()
              : kind < 6  ? MaxPyramid::kNothing
              : kind < 9  ? 0.0f
                          : std::ldexp(1.0f, static_cast<int>(random() % 60) - 40);
    }
    const MaxPyramid pyramid(values, rows, columns);
    for (int query = 0; query < 40; ++query) {
      const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 4)) - 2,
                    end = begin + static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 4));
      std::vector<float> worst(static_cast<size_t>(columns));
      pyramid.worst_of_rows(begin, end, worst);
      for (int32_t column = 0; column < columns; ++column) {
        float expected = MaxPyramid::kNothing;
        for (int64_t row = std::max<int64_t>(0, begin); row < std::min(rows, end); ++row) {
          const float value = values[static_cast<size_t>(row * columns + column)];
          if (is_worse(value, expected)) expected = value;
        }
        const float seen = worst[static_cast<size_t>(column)];
        EXPECT_TRUE(seen == expected || (std::isnan(seen) && std::isnan(expected)))
            << seen << " instead of " << expected << " in rows " << begin << " to " << end;
      }
    }
  }
}

TEST(MaxPyramid, HoldsAMillionTokensOfManyHeads) {
  const int64_t rows = 1 << 20;
  std::vector<float> values(static_cast<size_t>(rows * 32), 0.25f);
  values[777'777 * 32 + 5] = 2.0f;
  const MaxPyramid pyramid(std::move(values), rows, 32);
  std::vector<float> worst(32);
  pyramid.worst_of_rows(0, rows, worst);
  for (int32_t head = 0; head < 32; ++head) EXPECT_EQ(worst[head], head == 5 ? 2.0f : 0.25f);
  pyramid.worst_of_rows(0, 777'777, worst);
  EXPECT_EQ(worst[5], 0.25f);
}

/// A judged run of the walker, with the budget of every row.
struct Judged {
  GradedRun run;
  Grade grade;
};

Judged judge_random(uint64_t seed) {
  for (;; ++seed) {
    RandomSpace space;
    space.any_dtype = true;
    auto run = run_graded(random_scenario(seed, space));
    if (!run) continue;
    Grade grade = grade_answer(run->plan.plan(), run->inputs, run->answer, run->verdict,
                               {.keeps_row_budgets = true});
    return {std::move(*run), std::move(grade)};
  }
}

std::vector<const Tensor*> tensors_of(const Answer& answer) {
  return {&answer.out, &answer.lse, &answer.dq, &answer.dk, &answer.dv};
}

const TensorGrade* find_grade(const Grade& grade, std::string_view name) {
  for (const TensorGrade& tensor : grade.tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

TEST(ErrorField, MeasuresEveryRow) {
  for (uint64_t seed = 9100; seed < 9900; seed += 100) {
    const Judged judged = judge_random(seed);
    for (size_t t = 0; t < 5; ++t) {
      const Tensor& seen = *tensors_of(judged.run.answer)[t];
      const Tensor& exact = *tensors_of(judged.run.verdict.exact)[t];
      if (seen.values.empty()) continue;
      const TensorGrade* grade = find_grade(judged.grade, gui::kErrorTensors[t]);
      const ErrorField field = gui::measure_errors(seen, exact, grade->name, grade);
      EXPECT_NEAR(field.rel_l2, grade->rel_l2, 1e-12 + 1e-9 * grade->rel_l2);
      EXPECT_EQ(field.budget, grade->budget);
      EXPECT_EQ(field.rows_over, 0) << "the walker keeps its budgets";
      ASSERT_TRUE(field.has_row_budgets());
      double squares = 0;
      int64_t exact_rows = 0;
      const int64_t lanes = seen.shape.size() > 2 ? seen.shape[2] : 1;
      for (int64_t row = 0; row < field.tokens * field.heads; ++row) {
        double sum = 0;
        for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
          if (std::isinf(exact.values[i]) && seen.values[i] == exact.values[i]) continue;
          sum += (seen.values[i] - exact.values[i]) * (seen.values[i] - exact.values[i]);
        }
        squares += sum;
        exact_rows += sum == 0 ? 1 : 0;
        EXPECT_FLOAT_EQ(field.row_errors[row], static_cast<float>(std::sqrt(sum)));
      }
      EXPECT_EQ(field.histogram.exact, exact_rows);
      EXPECT_EQ(field.histogram.compared(), field.tokens * field.heads);
      // The worst row is the same as the one in the grade.
      if (grade->worst_row_excess > 0) {
        ASSERT_FALSE(field.worst.empty());
        EXPECT_NEAR(field.worst[0].share, grade->worst_row_excess, 1e-5 * grade->worst_row_excess);
        EXPECT_EQ(field.worst[0].token, grade->worst.token);
        EXPECT_EQ(field.worst[0].head, grade->worst.head);
        EXPECT_EQ(field.worst[0].seen, grade->worst.seen);
        EXPECT_EQ(field.worst[0].expected, grade->worst.expected);
      }
    }
  }
}

TEST(ErrorField, PutsOneWrongRowFirst) {
  for (uint64_t seed = 9150; seed < 9650; seed += 100) {
    Judged judged = judge_random(seed);
    Tensor& out = judged.run.answer.out;
    const int64_t heads = out.shape[1], lanes = out.shape[2];
    const int64_t token = out.shape[0] / 2, head = heads - 1;
    out.values[(token * heads + head) * lanes + lanes / 2] += 3.0;
    const Grade grade = grade_answer(judged.run.plan.plan(), judged.run.inputs, judged.run.answer,
                                     judged.run.verdict, {.keeps_row_budgets = true});
    const ErrorField field =
        gui::measure_errors(out, judged.run.verdict.exact.out, "out", find_grade(grade, "out"));
    EXPECT_FALSE(field.passed);
    EXPECT_EQ(field.rows_over, 1);
    ASSERT_FALSE(field.worst.empty());
    EXPECT_EQ(field.worst[0].token, token);
    EXPECT_EQ(field.worst[0].head, head);
    EXPECT_EQ(field.worst[0].lane, lanes / 2);
    EXPECT_GT(field.worst[0].share, 1);
    EXPECT_TRUE(field.is_over(field.worst[0].share));
  }
}

TEST(ErrorField, LetsNanWinAndInfinitiesAgree) {
  Tensor expected{"out", {6, 2, 3}, Dtype::fp64, std::vector<double>(36, 1.0)};
  expected.values[4] = -kInfinity;  // and seen has the same
  Tensor seen = expected;
  seen.values[7] = 4.0;                                        // row 2: off by 3
  seen.values[18] = std::numeric_limits<double>::quiet_NaN();  // row 6
  seen.values[19] = 1e300;       // in the row of the NaN, which takes precedence
  seen.values[30] = -kInfinity;  // row 10: expected 1
  const ErrorField field = gui::measure_errors(seen, expected, "out");
  EXPECT_EQ(field.row_errors[1], 0.0f);
  EXPECT_FLOAT_EQ(field.row_errors[2], 3.0f);
  EXPECT_TRUE(std::isnan(field.row_errors[6]));
  EXPECT_TRUE(std::isinf(field.row_errors[10]));
  EXPECT_EQ(field.nan, 1);
  EXPECT_EQ(field.rows_over, 2);
  EXPECT_EQ(field.histogram.broken, 2);
  EXPECT_EQ(field.histogram.exact, 9);
  EXPECT_TRUE(std::isinf(field.rel_l2));
  ASSERT_EQ(field.worst.size(), 3u);
  EXPECT_EQ(field.worst[0].token * 2 + field.worst[0].head, 6);
  EXPECT_EQ(field.worst[0].lane, 0);
  EXPECT_EQ(field.worst[1].token * 2 + field.worst[1].head, 10);
  EXPECT_EQ(field.worst[2].token * 2 + field.worst[2].head, 2);
  std::vector<float> worst(2);
  field.shares.worst_of_rows(0, 6, worst);
  EXPECT_TRUE(std::isnan(worst[0]));
}

TEST(ErrorField, LeavesOutWhatNobodyJudged) {
  const Tensor seen{"lse", {5, 2}, Dtype::fp64, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
  const Tensor expected{"lse", {2, 2}, Dtype::fp64, {2, 3, 8, 7}};
  const std::vector<int64_t> judged = {1, 4};
  const ErrorField field = gui::measure_sampled_errors(seen, expected, judged, "lse");
  EXPECT_EQ(field.histogram.left_out, 6);
  EXPECT_EQ(field.histogram.exact, 3);
  EXPECT_EQ(field.row_errors[0], MaxPyramid::kNothing);
  ASSERT_EQ(field.worst.size(), 1u);
  EXPECT_EQ(field.worst[0].token, 4);
  EXPECT_EQ(field.worst[0].head, 1);
  EXPECT_EQ(field.worst[0].expected, 7);
  EXPECT_EQ(field.worst[0].seen, 9);
}

TEST(ErrorHistogram, PutsSharesIntoTheirBins) {
  for (int32_t bin = 0; bin < ErrorHistogram::kDecades * ErrorHistogram::kBinsPerDecade; ++bin) {
    EXPECT_EQ(ErrorHistogram::bin_of(ErrorHistogram::begin_of(bin) * 1.001), bin);
  }
  EXPECT_EQ(ErrorHistogram::bin_of(1e-30), 0);
  EXPECT_EQ(ErrorHistogram::bin_of(1e30),
            ErrorHistogram::kDecades * ErrorHistogram::kBinsPerDecade - 1);
}

}  // namespace
}  // namespace cpscope::tests
