#pragma once

#include "sim/run/run_record.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope {

/// How far two tensors may be apart.
struct EarnedDistance {
  double allowed_l2 = 0.0;  // |left - right|2 at most
  double row_excess = 0.0;  // items: the worst row's distance over what it may be; above 1 is over
  int64_t row_begin = -1;   // first element of that row
};

/// The distances that two runs of one scenario have earned: what the budgets of both explain. The
/// exact answer is the same for both runs, so that two answers which keep their budgets are at
/// most the sum of the two budgets apart.
///
/// An item has no exact answer of its own and inherits the budget of its array: a row of it may err
/// budget * |row|, and beside that, because the terms of a short row may have cancelled, the
/// share_of_typical_row of what a typical row of the whole tensor may err. A row that nobody sees
/// (zero, or -inf, on both sides) may not err at all.
///
/// A budget is twice the error s of a plain run, over many rows. The root mean square error of n
/// rows that err independently strays from s by s*kSigmas/sqrt(2n), so that an item of n rows needs
/// the budget max(1, (1 + kSigmas/sqrt(2n)) / 2) times: up to 2.6 times below 18 rows, once above.
/// n is the number of rows that the item's expected error is spread over, were it spread evenly.
/// One row among many may stray kSigmas from s, so that no row of an item may differ by more than
/// kSigmas/2 times its share of the budget: a wrong row is not lost among thousands of right ones.
/// (Rows of the whole tensors are judged against the oracle in their own runs.)
class EarnedTolerance {
 public:
  /// Takes what both records have a budget for. `b` is the side that differences are measured by.
  EarnedTolerance(const RunRecord& a, const RunRecord& b);

  /// What the budgets explain between two tensors of one name and shape; nothing when the tensor
  /// has no budget: inputs are the same bit by bit.
  std::optional<EarnedDistance> weigh(const Tensor& left, const Tensor& right) const;

 private:
  /// The two runs' budgets of one tensor, added up.
  struct ArrayBudget {
    std::string name;
    double rel_l2 = 0.0;
    double l2 = 0.0;
    double row_l2 = 0.0;  // what a row may err however short it is itself
  };
  const ArrayBudget* find(const std::string& name) const;

  std::vector<ArrayBudget> budgets_;
};

}  // namespace cpscope
