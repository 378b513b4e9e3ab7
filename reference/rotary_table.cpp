#include "reference/rotary_table.h"

#include <cmath>

namespace cpscope::reference {

RotaryTable make_rotary_table(double theta, int32_t head_dim, const std::vector<int64_t>& positions,
                              int32_t first) {
  RotaryTable table;
  if (theta == 0.0) return table;
  const int32_t rotated = head_dim - first;
  table.first = first;
  table.half = rotated / 2;
  const auto half = static_cast<size_t>(table.half);
  table.cos.resize(positions.size() * half);
  table.sin.resize(table.cos.size());
  for (size_t lane = 0; lane < half; ++lane) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(lane) / rotated);
    for (size_t row = 0; row < positions.size(); ++row) {
      const double angle = static_cast<double>(positions[row]) * frequency;
      const size_t index = row * half + lane;
      table.cos[index] = std::cos(angle);
      table.sin[index] = std::sin(angle);
    }
  }
  return table;
}

}  // namespace cpscope::reference
