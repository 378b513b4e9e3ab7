#pragma once

#include "sim/run/dtype.h"

#include <span>

namespace cpscope::reference {

/// round_values of the 16-bit dtypes, without a branch, so that it is vectorised; the same results
/// bit by bit, except that a NaN may become any NaN (tests/reference/round_rows_test.cpp).
void round_rows(Dtype dtype, std::span<float> values);
void round_rows(Dtype dtype, std::span<double> values);

}  // namespace cpscope::reference
