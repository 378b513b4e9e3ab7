#pragma once

#include "gui/model/pyramid.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/direction.h"
#include "sim/run/grade/grade.h"
#include "sim/run/tensor.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// The tensors whose errors can be shown, in menu order.
inline constexpr std::array<std::string_view, 5> kErrorTensors = {"out", "lse", "dq", "dk", "dv"};

/// The pass that writes one of them.
constexpr Direction direction_of_tensor(int32_t tensor) {
  return tensor >= 2 ? Direction::backward : Direction::forward;
}
/// The side of its rows: dk and dv have a row for every key, the others for every query.
constexpr Side side_of_tensor(int32_t tensor) { return tensor >= 3 ? Side::kv : Side::q; }

/// One row with a large error.
struct WorstRow {
  int64_t token = 0;
  int32_t head = 0;
  int32_t lane = 0;
  double seen = 0.0, expected = 0.0;  // values of the row's element with the largest error
  double error_l2 = 0.0;              // error of the row
  double share = 0.0;                 // ErrorField::share_of the row
};

/// The number of rows by error, on a logarithmic scale of shares.
struct ErrorHistogram {
  static constexpr int32_t kFirstDecade = -9;
  static constexpr int32_t kDecades = 14;
  static constexpr int32_t kBinsPerDecade = 4;

  // [bin] rows with a share of at least 10^(kFirstDecade + bin / kBinsPerDecade); the outermost
  // bins also contain all smaller or larger shares.
  std::array<int64_t, kDecades * kBinsPerDecade> bins{};
  int64_t exact = 0;     // rows without error
  int64_t broken = 0;    // rows with NaN or an infinite error
  int64_t left_out = 0;  // rows that were not compared

  int64_t compared() const;
  static int32_t bin_of(double share);
  /// The share at which a bin begins.
  static double begin_of(int32_t bin);
};

/// How far the runs of two plans are apart on each rank of one of them, or in each head: the length
/// of the difference of its rows over what the budgets of both runs explain.
struct DistanceBars {
  std::string noun;              // "rank", "head"
  std::string title;             // the plan whose ranks they are
  bool are_shown_ranks = false;  // they are the ranks of the plan that is shown
  std::vector<double> shares;    // [rank or head]; infinite where rows of zeros differ
};

/// The distance of one tensor of a run from another tensor, row by row. Rows are (packed padded
/// token, head).
struct ErrorField {
  std::string name;
  int64_t tokens = 0;
  int32_t heads = 0;
  std::vector<float> row_errors;  // [token][head] |seen - expected|2 of the row; NaN where seen has
                                  // a NaN; MaxPyramid::kNothing where the row was not compared
  std::vector<float> row_budgets;  // [token][head] the judge's error limit of the row; may be empty
  double rel_l2 = 0.0;
  double budget = 0.0;       // limit of rel_l2; infinite or 0 where there is no budget
  double typical_row = 0.0;  // root mean square of |expected|2 over rows: row errors are relative
                             // to it where rows have no budgets
  bool passed = true;
  int64_t nan = 0;
  int64_t rows_over = 0;            // rows beyond their budgets, including broken ones
  std::vector<WorstRow> worst;      // by share, largest first, at most kMostWorst
  MaxPyramid shares;                // [token][head] share_of the row
  ErrorHistogram histogram;         // of shares
  std::vector<DistanceBars> parts;  // of a difference of two plans; else empty

  static constexpr size_t kMostWorst = 20;
  bool has_row_budgets() const { return !row_budgets.empty(); }
  /// The error of a row divided by its budget; without a budget, by the typical row.
  double share_of(int64_t token, int32_t head) const;
  /// True if a share is not allowed. Without budgets, only a value that is not a number is not
  /// allowed.
  bool is_over(double share) const;
  /// True if the whole tensor has a budget.
  bool has_budget() const;
};

/// Compares two tensors of equal shape [tokens, heads] or [tokens, heads, head_dim]. -inf on both
/// sides is no error. `graded`: the judge's grade of the tensor; may be null.
ErrorField measure_errors(const Tensor& seen, const Tensor& expected, std::string name,
                          const TensorGrade* graded = nullptr);

/// Like measure_errors, if only some tokens were judged: expected is [judged, heads(, head_dim)].
ErrorField measure_sampled_errors(const Tensor& seen, const Tensor& expected,
                                  std::span<const int64_t> judged, std::string name,
                                  const TensorGrade* graded = nullptr);

}  // namespace cpscope::gui
