#include "sim/run/grade/earned_tolerance.h"

#include "sim/run/grade/record_diff.h"
#include "tests/sim/run/special_numbers.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

constexpr DiffRule kEarned{.is_earned = true, .rel_l2 = 0.0};
constexpr int64_t kLanes = 16;

Tensor rows_of(const std::string& name, int64_t rows, double value) {
  return {name,
          {rows, 1, kLanes},
          Dtype::fp32,
          std::vector<double>(static_cast<size_t>(rows * kLanes), value)};
}

std::string item_name(int64_t index, const std::string& array = "out") {
  return "forward.compute." + std::to_string(index) + ".rank0.step0." + array;
}

/// Answers of 100 rows of ones with a budget of 1 %, and items of ones with these numbers of rows.
RunRecord record_with(const std::vector<int64_t>& rows_of_items, double rel_l2 = 0.01) {
  RunRecord record;
  record.tensors.push_back(rows_of("out", 100, 1.0));
  record.budgets = {{"out", rel_l2, rel_l2 * std::sqrt(100.0 * kLanes)}};
  for (size_t i = 0; i < rows_of_items.size(); ++i)
    record.tensors.push_back(rows_of(item_name(static_cast<int64_t>(i)), rows_of_items[i], 1.0));
  return record;
}

/// The largest relative error that an item may have, equal in every row: found by bisection.
double earned_share(int64_t rows) {
  const RunRecord right = record_with({rows});
  double within = 0, over = 1;
  for (int i = 0; i < 40; ++i) {
    const double share = (within + over) / 2;
    RunRecord left = right;
    for (double& value : left.tensors[1].values) value *= 1 + share;
    (is_within(diff_runs(left, right)[1], kEarned) ? within : over) = share;
  }
  return within;
}

TEST(EarnedTolerance, OfAnAnswerIsTheSumOfBothBudgets) {
  const RunRecord right = record_with({}, 0.01);
  for (const auto& [share, is_inside] : {std::pair(0.0399, true), std::pair(0.0401, false)}) {
    RunRecord left = record_with({}, 0.03);
    for (double& value : left.tensors[0].values) value += share;
    EXPECT_EQ(is_within(diff_runs(left, right)[0], kEarned), is_inside) << share;
    EXPECT_EQ(is_within(diff_runs(right, left)[0], kEarned), is_inside) << share;
  }
}

TEST(EarnedTolerance, OfAnAnswerOfZerosIsAbsolute) {
  RunRecord left = record_with({}), right = left;
  for (RunRecord* record : {&left, &right}) {
    record->tensors[0] = rows_of("out", 4, 0.0);
    record->budgets = {{"out", kInfinity, 1e-6}};
  }
  left.tensors[0].values[0] = 1.9e-6;
  EXPECT_TRUE(is_within(diff_runs(left, right)[0], kEarned));
  left.tensors[0].values[0] = 2.1e-6;
  EXPECT_FALSE(is_within(diff_runs(left, right)[0], kEarned));
}

TEST(EarnedTolerance, OfAnItemOfManyRowsIsThatOfItsArray) {
  // 2 * 1 %, plus out's share of a typical row.
  EXPECT_NEAR(earned_share(18), 0.02 * 1.1, 1e-6);
  EXPECT_NEAR(earned_share(1000), 0.02 * 1.1, 1e-6);
}

TEST(EarnedTolerance, GrowsAsRowsGetFewAndAreMoreOftenUnlucky) {
  EXPECT_NEAR(earned_share(1), 0.02 * 1.1 * (1 + 6 / std::sqrt(2.0)) / 2, 1e-6);
  EXPECT_NEAR(earned_share(8), 0.02 * 1.1 * (1 + 6 / std::sqrt(16.0)) / 2, 1e-6);
}

TEST(EarnedTolerance, DoesNotLoseAWrongRowAmongThousandsOfRightOnes) {
  const RunRecord right = record_with({5000});
  RunRecord left = right;
  // Far below 2 % of the item, and 7 % of the row.
  for (int64_t lane = 0; lane < kLanes; ++lane) left.tensors[1].values[4321 * kLanes + lane] = 1.07;
  left.tensors[1].values[17] = 1.075;  // one element with a larger error, in a row that is right
  const TensorDiff diff = diff_runs(left, right)[1];
  EXPECT_LT(diff.l2, diff.earned->allowed_l2);
  EXPECT_FALSE(is_within(diff, kEarned));
  EXPECT_EQ(diff.worst_row, 4321);
  EXPECT_EQ(diff.left, 1.07);
}

TEST(EarnedTolerance, GivesShortRowsOfGradientsATypicalRowsError) {
  RunRecord right = record_with({});
  right.tensors[0].name = right.budgets[0].name = "dq";
  right.tensors.push_back(rows_of("backward.compute.0.rank0.step0.dq", 20, 1e-9));
  RunRecord left = right;
  for (double& value : left.tensors[1].values) value = 0.0199;
  EXPECT_TRUE(is_within(diff_runs(left, right)[1], kEarned));
  for (double& value : left.tensors[1].values) value = 0.0201;
  EXPECT_FALSE(is_within(diff_runs(left, right)[1], kEarned));
}

TEST(EarnedTolerance, CountsOnlyRowsThatSomebodySees) {
  RunRecord right = record_with({1});
  right.tensors[1] = rows_of(item_name(0), 50, 0.0);
  for (int64_t lane = 0; lane < kLanes; ++lane) right.tensors[1].values[lane] = 1.0;
  RunRecord left = right;
  for (int64_t lane = 0; lane < kLanes; ++lane)
    left.tensors[1].values[lane] = 1 + 0.99 * earned_share(1);
  EXPECT_TRUE(is_within(diff_runs(left, right)[1], kEarned));
}

TEST(EarnedTolerance, NeverExplainsWhatIsNoNumber) {
  const RunRecord right = record_with({30}, 1e9);
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    for (const size_t tensor : {0, 1}) {
      RunRecord left = right;
      left.tensors[tensor].values[5] = value;
      EXPECT_FALSE(is_within(diff_runs(left, right)[tensor], kEarned)) << value;
      EXPECT_FALSE(is_within(diff_runs(right, left)[tensor], kEarned)) << value;
      EXPECT_TRUE(is_within(diff_runs(left, left)[tensor], kEarned)) << value;
    }
  }
}

TEST(EarnedTolerance, TakesWhatHasNoBudgetBitByBit) {
  RunRecord right = record_with({});
  right.tensors.push_back(rows_of("q", 3, 1.0));
  RunRecord left = right;
  EXPECT_TRUE(is_within(diff_runs(left, right)[1], kEarned));
  left.tensors[1].values[0] = std::nextafter(1.0, 2.0);
  EXPECT_FALSE(is_within(diff_runs(left, right)[1], kEarned));
}

TEST(FirstItem, IsTheFirstInPlanOrderThatIsOver) {
  const RunRecord right = record_with({20, 20, 20, 20, 20});
  RunRecord left = right;
  EXPECT_EQ(find_first_item(diff_runs(left, right), kEarned), nullptr);
  for (double& value : left.tensors[0].values) value *= 2;  // an answer is not an item
  EXPECT_EQ(find_first_item(diff_runs(left, right), kEarned), nullptr);
  left.tensors[2].values[3] *= 1.001;  // differs, within its earned tolerance
  left.tensors[5].values[7] *= 100;
  left.tensors[4].values[35] *= 2;
  const auto diffs = diff_runs(left, right);
  const TensorDiff* first = find_first_item(diffs, kEarned);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->name, item_name(3));
  EXPECT_EQ(first->worst_row, 2);
  EXPECT_EQ(first->worst_lane, 3);
  const auto bitwise = diff_records(left, right);
  EXPECT_EQ(find_first_item(bitwise, {})->name, item_name(1));
  EXPECT_EQ(find_first_item(bitwise, {.is_earned = false, .rel_l2 = 0.5})->name, item_name(4));
}

}  // namespace
}  // namespace cpscope
