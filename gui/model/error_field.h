#pragma once

#include "sim/run/grade.h"
#include "sim/run/tensor.h"

#include <array>
#include <cstdint>
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
};

/// How far one tensor of a run is from another one, row by row. Rows are (packed padded token,
/// head).
struct ErrorField {
  std::string name;
  int64_t tokens = 0;
  int32_t heads = 0;
  std::vector<float>
      row_errors;  // [token][head] |seen - expected|2 of the row; NaN where seen has one
  double rel_l2 = 0.0;
  double budget = 0.0;  // for rel_l2; infinite or 0 where nobody granted one
  double typical_row =
      0.0;  // root mean square of |expected|2 over rows: what row errors compare with
  bool passed = true;
  int64_t nan = 0;
  std::vector<WorstRow> worst;  // furthest first, at most kMostWorst

  static constexpr size_t kMostWorst = 20;
};

/// Compares two tensors of equal shape [tokens, heads] or [tokens, heads, lanes]. -inf beside -inf
/// is no error.
ErrorField measure_errors(const Tensor& seen, const Tensor& expected, std::string name);

}  // namespace cpscope::gui
