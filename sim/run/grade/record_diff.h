#pragma once

#include "sim/run/grade/earned_tolerance.h"
#include "sim/run/record/run_record.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// How one tensor of two records differs. Two values are the same when they compare equal (so -inf
/// and -inf are, and 0 and -0). NaN equals only NaN, so that NaN in padding is not a difference; it
/// is counted.
struct TensorDiff {
  std::string name;
  std::string shape_mismatch;  // empty, or why the two cannot be compared

  int64_t count_different = 0;
  double l2 = 0.0;                // |left - right|2
  double max_abs = 0.0;           // largest |left - right|; infinite with a NaN or unequal infinity
  double rel_l2 = 0.0;            // |left - right|2 / |right|2; 0/0 is 0, x/0 is infinite
  double worst_row_rel_l2 = 0.0;  // the same for the worst row (all dimensions but the last)

  // The element of max_abs: first, middle (flattened) and last dimension of the tensor, so token,
  // head and element of [tokens, heads, head_dim]. -1 if nothing differs or there is no such
  // dimension; the last dimension is the head in [tokens, heads] and in [heads].
  int64_t worst_row = -1;
  int64_t worst_head = -1;
  int64_t worst_lane = -1;
  double left = 0.0;
  double right = 0.0;

  int64_t nan_left = 0;
  int64_t nan_right = 0;

  // The earned distance of the two runs, if requested; nothing without a budget.
  std::optional<EarnedDistance> earned;

  bool is_equal() const { return shape_mismatch.empty() && count_different == 0; }
};

/// One entry for each tensor of a, in a's order, then one for each that only b has. Pairs whose
/// difference is not finite (a NaN, an unequal infinity) make the rel_l2 infinite; equal infinities
/// are left out of it. Stored types are not compared, only values.
std::vector<TensorDiff> diff_records(const RunRecord& a, const RunRecord& b);

/// The same, with the distance that the budgets of both runs allow.
std::vector<TensorDiff> diff_runs(const RunRecord& a, const RunRecord& b);

/// The rule for equality.
struct DiffRule {
  bool is_earned = false;  // up to the earned distance; bit by bit without a budget
  double rel_l2 = 0.0;     // else: largest rel_l2 that passes
};
bool is_within(const TensorDiff& diff, const DiffRule& rule);

/// The first item in plan order that violates the rule; nothing when all satisfy it.
const TensorDiff* find_first_item(const std::vector<TensorDiff>& diffs, const DiffRule& rule);

}  // namespace cpscope
