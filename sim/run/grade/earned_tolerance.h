#pragma once

#include "sim/run/record/run_record.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// The allowed distance of two tensors.
struct EarnedDistance {
  double allowed_l2 = 0.0;  // |left - right|2 at most
  double row_excess = 0.0;  // items: worst row's distance over its allowed one; above 1 fails
  int64_t row_begin = -1;   // first element of that row
};

/// The distances between two runs of one scenario that the budgets of both explain. The exact
/// answer is the same for both runs, so two answers within their budgets differ by at most the sum
/// of the two budgets.
///
/// An item has no exact answer of its own and inherits the budget of its array. The allowed error
/// of a row is budget * |row|, plus, because the terms of a short row may have cancelled,
/// share_of_typical_row of the allowed error of a typical row of the whole tensor. An empty row
/// (zero, or -inf, on both sides) may have no error at all.
///
/// A budget is twice the error s of a plain run, over many rows. The root mean square error of n
/// rows with independent errors deviates from s by s*kSigmas/sqrt(2n), so an item of n rows needs
/// the budget max(1, (1 + kSigmas/sqrt(2n)) / 2) times: up to 2.6 times below 18 rows, once above.
/// n is the number of rows over which the item's expected error would be spread evenly. One row
/// among many may deviate by kSigmas from s, so no row of an item may differ by more than kSigmas/2
/// times its share of the budget: a wrong row is not lost among thousands of right ones. (Rows of
/// the whole tensors are judged against the oracle in their own runs.)
class EarnedTolerance {
 public:
  /// Uses the tensors for which both records have a budget. `b` is the side that differences are
  /// measured by.
  EarnedTolerance(const RunRecord& a, const RunRecord& b);

  /// The distance of two tensors of one name and shape that the budgets explain; nothing if the
  /// tensor has no budget: inputs must be the same bit by bit.
  std::optional<EarnedDistance> weigh(const Tensor& left, const Tensor& right) const;

 private:
  /// The sum of the two runs' budgets of one tensor.
  struct ArrayBudget {
    std::string name;
    double rel_l2 = 0.0;
    double l2 = 0.0;
    double row_l2 = 0.0;  // allowed error of a row, however short it is itself
  };
  const ArrayBudget* find(const std::string& name) const;

  std::vector<ArrayBudget> budgets_;
};

}  // namespace cpscope
