#pragma once

#include <cmath>
#include <cstdint>

namespace cpscope::reference {

/// Rotary embedding of one row (Su et al. 2021, arXiv:2104.09864): elements l and l + dim/2 are
/// rotated together by position * theta^(-2l/dim).
template <class T>
void rotate_row(double theta, int64_t position, int32_t dim, double direction, T* row) {
  for (int32_t lane = 0; lane < dim / 2; ++lane) {
    const double angle =
        direction * static_cast<double>(position) * std::pow(theta, -2.0 * lane / dim);
    const double c = std::cos(angle), s = std::sin(angle);
    const double a = row[lane], b = row[lane + dim / 2];
    row[lane] = static_cast<T>(a * c - b * s);
    row[lane + dim / 2] = static_cast<T>(a * s + b * c);
  }
}

}  // namespace cpscope::reference
