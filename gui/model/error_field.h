#pragma once

#include "gui/model/pyramid.h"
#include "sim/run/grade.h"
#include "sim/run/tensor.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// The tensors whose errors can be looked at, in menu order.
inline constexpr std::array<std::string_view, 5> kErrorTensors = {"out", "lse", "dq", "dk", "dv"};

/// One row that is far off.
struct WorstRow {
  int64_t token = 0;
  int32_t head = 0;
  int32_t lane = 0;
  double seen = 0.0, expected = 0.0;  // at the lane that is furthest off
  double error_l2 = 0.0;              // of the row
  double share = 0.0;                 // ErrorField::share_of its error
};

/// How many rows err how far, by the logarithm of their shares.
struct ErrorHistogram {
  static constexpr int32_t kFirstDecade = -9;
  static constexpr int32_t kDecades = 14;
  static constexpr int32_t kBinsPerDecade = 4;

  // [bin] rows with a share from 10^(kFirstDecade + bin / kBinsPerDecade) on; the outermost bins
  // also hold what lies beyond.
  std::array<int64_t, kDecades * kBinsPerDecade> bins{};
  int64_t exact = 0;     // no error at all
  int64_t broken = 0;    // NaN, or infinitely far off
  int64_t left_out = 0;  // nobody compared them

  int64_t compared() const;
  static int32_t bin_of(double share);
  /// Share at which a bin begins.
  static double begin_of(int32_t bin);
};

/// How far one tensor of a run is from another one, row by row. Rows are (packed padded token,
/// head).
struct ErrorField {
  std::string name;
  int64_t tokens = 0;
  int32_t heads = 0;
  std::vector<float> row_errors;  // [token][head] |seen - expected|2 of the row; NaN where seen has
                                  // one; MaxPyramid::kNothing where nobody compared
  std::vector<float> row_budgets;  // [token][head] what the judge lets the row err; may be empty
  double rel_l2 = 0.0;
  double budget = 0.0;       // for rel_l2; infinite or 0 where nobody granted one
  double typical_row = 0.0;  // root mean square of |expected|2 over rows: what row errors compare
                             // with where rows have no budgets
  bool passed = true;
  int64_t nan = 0;
  int64_t rows_over = 0;        // rows beyond their budgets, broken ones among them
  std::vector<WorstRow> worst;  // by share, furthest first, at most kMostWorst
  MaxPyramid shares;            // [token][head] share_of the row
  ErrorHistogram histogram;     // of shares

  static constexpr size_t kMostWorst = 20;
  bool has_row_budgets() const { return !row_budgets.empty(); }
  /// The error of a row over its budget, else over the typical row.
  double share_of(int64_t token, int32_t head) const;
  /// Is a share beyond what is allowed? Without budgets only what is no number is.
  bool is_over(double share) const;
  /// Is there a budget for the tensor as a whole?
  bool has_budget() const;
};

/// Compares two tensors of equal shape [tokens, heads] or [tokens, heads, lanes]. -inf beside -inf
/// is no error. `graded`: what the judge has said of the tensor; may be null.
ErrorField measure_errors(const Tensor& seen, const Tensor& expected, std::string name,
                          const TensorGrade* graded = nullptr);

/// The same where only some tokens were judged: expected is [judged, heads(, lanes)].
ErrorField measure_sampled_errors(const Tensor& seen, const Tensor& expected,
                                  std::span<const int64_t> judged, std::string name,
                                  const TensorGrade* graded = nullptr);

}  // namespace cpscope::gui
