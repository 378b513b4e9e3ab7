#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::gui {

/// A grid of errors [row][column] and its maxima over blocks of rows, so that the worst value of
/// any range of rows is found in O(columns * log rows). Never an average: one bad cell stays
/// visible among any number of good ones. Order of values: kNothing, 0, positive numbers, infinity,
/// NaN.
class MaxPyramid {
 public:
  /// A cell that was not measured.
  static constexpr float kNothing = -1.0f;

  MaxPyramid() = default;
  /// `values`: kNothing, numbers from 0, infinity or NaN. The pyramid takes 4/3 of their memory.
  MaxPyramid(std::vector<float> values, int64_t rows, int32_t columns);

  int64_t rows() const { return rows_; }
  int32_t columns() const { return columns_; }
  float at(int64_t row, int32_t column) const;
  /// [column] the worst of rows [begin, end); kNothing if there are none.
  void worst_of_rows(int64_t begin, int64_t end, std::span<float> worst) const;
  /// The worse of two values.
  static float worse(float a, float b);

 private:
  // Values as bit patterns: as integers, they are in the order of values.
  std::vector<std::vector<int32_t>> levels_;  // [level][row / kFold^level][column]
  int64_t rows_ = 0;
  int32_t columns_ = 0;
};

}  // namespace cpscope::gui
