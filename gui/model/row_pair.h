#pragma once

#include "gui/model/error_field.h"

#include <cstdint>
#include <functional>

namespace cpscope::gui {

/// The values of one row on both sides.
struct RowPair {
  const double* seen = nullptr;
  const double* expected = nullptr;
  int64_t lanes = 0;
};

/// |seen - expected|2; equal infinities are no error; NaN if one side has a NaN.
double row_error(const RowPair& row);
/// |expected|2 squared, without infinities.
double row_square(const RowPair& row);
/// An error divided by a size: 0 / 0 is 0, x / 0 is infinite.
double error_ratio(double error, double size);

/// Computes, from row_errors, row_budgets and typical_row, the histogram, the worst rows, and the
/// pyramid. `pair_of(row)`: the values of row token * heads + head.
void weigh_rows(ErrorField& field, const std::function<RowPair(int64_t row)>& pair_of);

}  // namespace cpscope::gui
