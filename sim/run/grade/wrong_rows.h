#pragma once

// Private to the search for causes: the rows of one failed tensor that are wrong.

#include "sim/plan/batch_slots.h"
#include "sim/run/dtype.h"
#include "sim/run/grade/tensor_grade.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// One judged row.
struct JudgedRow {
  RowAddress at;
  std::span<const double> seen, exact;
  double allowed = 0.0;  // |seen - exact|2
};

/// One failed tensor of tokens: which of its rows are wrong, and samples of both kinds.
struct WrongTensor {
  std::string name;
  Side side = Side::q;
  double budget = 0.0;  // relative, of a typical row
  int64_t lanes = 1;
  std::optional<Dtype> narrow = {};  // all values fit this type, which is narrower than their own
  std::vector<JudgedRow> all_wrong = {};
  double nearer = 1.0;      // a prediction must be nearer than this times the right values
  bool is_padding = false;  // all valid rows are right, and the wrong ones are padding
  std::vector<JudgedRow> wrong = {}, right = {};

  /// True if the wrong rows hold nothing but NaN and +inf.
  bool holds_no_number() const;
  bool is_gradient() const { return name != "out" && name != "lse"; }

  /// |seen - predicted|2 over its allowed length; above 1 the prediction does not explain the row.
  double excess(const JudgedRow& row, std::span<const double> predicted) const;
  /// True if the prediction explains the row, and is nearer to it than the right values are.
  bool explains(const JudgedRow& row, std::span<const double> predicted) const;
};

/// The tensor of tokens with this name: out, lse, dq, dk or dv.
std::optional<Tensor Answer::*> member_of(std::string_view name);

/// One row of a tensor of all tokens.
std::span<const double> row_in(const Tensor& tensor, const RowAddress& at);

/// Rows that are recomputed for each failed tensor.
struct SampleSizes {
  size_t wrong = 32, right = 12;
};

/// `exact` holds the judged rows, those of `tokens`; `seen` holds all, `dtype` is the type of its
/// numbers. `tensor` has the budgets of its rows. `is_valid`: [token]. If all values fit a narrower
/// type, and that does not explain all wrong rows, only the rows that it does not explain are
/// wrong.
WrongTensor find_wrong_rows(const TensorGrade& tensor, const Tensor& seen, const Tensor& exact,
                            Dtype dtype, Side side, const std::vector<int64_t>& tokens,
                            const std::vector<bool>& is_valid, const SampleSizes& sizes);

}  // namespace cpscope
