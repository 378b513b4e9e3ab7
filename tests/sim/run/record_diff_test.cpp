#include "sim/run/grade/record_diff.h"

#include "tests/sim/run/special_numbers.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

RunRecord record_of(std::vector<int64_t> shape, std::vector<double> values) {
  RunRecord record;
  record.tensors = {{.name = "out",
                     .shape = std::move(shape),
                     .dtype = Dtype::fp64,
                     .values = std::move(values)}};
  return record;
}

TensorDiff diff_of(std::vector<int64_t> shape, std::vector<double> left,
                   std::vector<double> right) {
  const std::vector<TensorDiff> diffs =
      diff_records(record_of(shape, std::move(left)), record_of(shape, std::move(right)));
  EXPECT_EQ(diffs.size(), 1u);
  return diffs.at(0);
}

TEST(RecordDiff, FindsNothingBetweenEqualRecords) {
  const std::vector<double> values = {1.0, -kInfinity, kInfinity, 0.0};
  const TensorDiff diff = diff_of({2, 2}, values, values);
  EXPECT_TRUE(diff.is_equal());
  EXPECT_EQ(diff.count_different, 0);
  EXPECT_EQ(diff.max_abs, 0.0);
  EXPECT_EQ(diff.rel_l2, 0.0);
  EXPECT_EQ(diff.worst_row_rel_l2, 0.0);
  EXPECT_EQ(diff.worst_row, -1);
}

TEST(RecordDiff, LocatesTheWorstElementByTokenHeadAndLane) {
  std::vector<double> right(2 * 3 * 4, 1.0);
  std::vector<double> left = right;
  left[(1 * 3 + 2) * 4 + 1] = 1.5;  // token 1, head 2, element 1
  left[(0 * 3 + 1) * 4 + 3] = 0.75;
  const TensorDiff diff = diff_of({2, 3, 4}, left, right);
  EXPECT_EQ(diff.count_different, 2);
  EXPECT_EQ(diff.max_abs, 0.5);
  EXPECT_EQ(diff.worst_row, 1);
  EXPECT_EQ(diff.worst_head, 2);
  EXPECT_EQ(diff.worst_lane, 1);
  EXPECT_EQ(diff.left, 1.5);
  EXPECT_EQ(diff.right, 1.0);
  EXPECT_DOUBLE_EQ(diff.rel_l2, std::sqrt(0.25 + 0.0625) / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(diff.worst_row_rel_l2, 0.5 / 2.0);
}

TEST(RecordDiff, CallsTheLastDimensionOfLseTheHead) {
  const TensorDiff lse = diff_of({2, 3}, {0, 0, 0, 0, 9, 0}, {0, 0, 0, 0, 1, 0});
  EXPECT_EQ(lse.worst_row, 1);
  EXPECT_EQ(lse.worst_head, 1);
  EXPECT_EQ(lse.worst_lane, -1);
  const TensorDiff max_logit = diff_of({3}, {0, 0, 9}, {0, 0, 1});
  EXPECT_EQ(max_logit.worst_row, -1);
  EXPECT_EQ(max_logit.worst_head, 2);
}

TEST(RecordDiff, DividesByTheRightSide) {
  EXPECT_EQ(diff_of({1}, {3.0}, {1.0}).rel_l2, 2.0);
  EXPECT_EQ(diff_of({1}, {0.0}, {0.0}).rel_l2, 0.0);
  EXPECT_EQ(diff_of({1}, {1e-300}, {0.0}).rel_l2, kInfinity);
}

TEST(RecordDiff, SquaresLargeAndTinyNumbersWithoutOverflow) {
  EXPECT_DOUBLE_EQ(diff_of({2}, {2e300, 2e300}, {1e300, 1e300}).rel_l2, 1.0);
  EXPECT_DOUBLE_EQ(diff_of({2}, {2e-300, 2e-300}, {1e-300, 1e-300}).rel_l2, 1.0);
}

TEST(RecordDiff, TakesEqualInfinitiesAsEqualAndOthersAsInfinitelyFar) {
  const TensorDiff same = diff_of({2, 1}, {-kInfinity, 2.0}, {-kInfinity, 1.0});
  EXPECT_EQ(same.count_different, 1);
  EXPECT_EQ(same.rel_l2, 1.0);
  const TensorDiff other = diff_of({2, 1}, {-kInfinity, 2.0}, {5.0, 1.0});
  EXPECT_EQ(other.count_different, 2);
  EXPECT_EQ(other.max_abs, kInfinity);
  EXPECT_EQ(other.rel_l2, kInfinity);
  EXPECT_EQ(other.worst_row, 0);
  EXPECT_EQ(diff_of({1}, {kInfinity}, {-kInfinity}).count_different, 1);
}

TEST(RecordDiff, CountsEveryNaNAndTellsOneSidedOnesApart) {
  const TensorDiff diff = diff_of({4, 1}, {kNaN, 1.0, kNaN, 4.0}, {kNaN, kNaN, 2.0, 4.0});
  EXPECT_EQ(diff.count_different, 2);
  EXPECT_EQ(diff.nan_left, 2);
  EXPECT_EQ(diff.nan_right, 2);
  EXPECT_EQ(diff.max_abs, kInfinity);
  EXPECT_EQ(diff.rel_l2, kInfinity);
  EXPECT_EQ(diff.worst_row_rel_l2, kInfinity);
  EXPECT_EQ(diff.worst_row, 1);
}

TEST(RecordDiff, ReportsTensorsOfOneSideAndOtherShapes) {
  RunRecord left = record_of({2}, {1, 2});
  RunRecord right = record_of({2, 1}, {1, 2});
  left.tensors.push_back({.name = "dq", .shape = {1}, .dtype = Dtype::fp64, .values = {1}});
  right.tensors.push_back({.name = "dk", .shape = {1}, .dtype = Dtype::fp64, .values = {1}});
  const std::vector<TensorDiff> diffs = diff_records(left, right);
  ASSERT_EQ(diffs.size(), 3u);
  EXPECT_EQ(diffs[0].shape_mismatch, "shapes differ: [2] on the left, [2, 1] on the right");
  EXPECT_EQ(diffs[1].name, "dq");
  EXPECT_EQ(diffs[1].shape_mismatch, "only the left record has it");
  EXPECT_EQ(diffs[2].name, "dk");
  EXPECT_EQ(diffs[2].shape_mismatch, "only the right record has it");
  for (const TensorDiff& diff : diffs) EXPECT_FALSE(diff.is_equal());
}

TEST(RecordDiff, AcceptsEmptyTensorsAndScalars) {
  EXPECT_TRUE(diff_of({0, 4}, {}, {}).is_equal());
  EXPECT_TRUE(diff_of({4, 0}, {}, {}).is_equal());
  const TensorDiff scalar = diff_of({}, {2.0}, {1.0});
  EXPECT_EQ(scalar.rel_l2, 1.0);
  EXPECT_EQ(scalar.worst_row_rel_l2, 1.0);
  EXPECT_EQ(scalar.worst_row, -1);
}

}  // namespace
}  // namespace cpscope
