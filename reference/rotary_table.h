#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// Cosines and sines of the rotary embedding: element l of position p rotates by p * theta^(-2 l /
/// dim). Source: Su et al. 2021 (arXiv:2104.09864), in the non-interleaved halves of GPT-NeoX.
struct RotaryTable {
  int64_t first = 0;        // elements at the front of a row that are not rotated
  int64_t half = 0;         // rotated pairs of a row behind them: elements l and l + half
  std::vector<double> cos;  // [row, half]
  std::vector<double> sin;  // [row, half]

  bool is_on() const { return half > 0; }
};

/// Angles of rows at these positions, whose elements from `first` on are rotated. An empty table
/// (no rotation) when theta is 0.
RotaryTable make_rotary_table(double theta, int32_t head_dim, const std::vector<int64_t>& positions,
                              int32_t first = 0);

/// Rotates one row in place by the angles of the table's row; `direction` -1 rotates it back, which
/// is also the gradient of the rotation. Each product and sum is rounded to Real.
template <class Real>
void rotate_row(const RotaryTable& table, int64_t table_row, int direction, Real* row) {
  const auto half = static_cast<size_t>(table.half);
  const size_t first = static_cast<size_t>(table_row) * half;
  row += table.first;
  for (size_t lane = 0; lane < half; ++lane) {
    const Real c = static_cast<Real>(table.cos[first + lane]);
    const Real s = static_cast<Real>(direction * table.sin[first + lane]);
    const Real low = row[lane];
    const Real high = row[lane + half];
    row[lane] = low * c - high * s;
    row[lane + half] = high * c + low * s;
  }
}

}  // namespace cpscope::reference
