#include "gui/model/pyramid.h"

#include "sim/base/bit_cast.h"
#include "sim/base/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr int64_t kFold = 4;
constexpr int32_t kQuietNan = 0x7fc00000;

int32_t to_key(float value) {
  if (std::isnan(value)) return kQuietNan;
  // Both signs of zero become one value, and all values below zero become kNothing.
  if (value <= 0) return bit_cast<int32_t>(value < 0 ? MaxPyramid::kNothing : 0.0f);
  return bit_cast<int32_t>(value);
}

void take_worse(const int32_t* from, int64_t columns, int32_t* into) {
  for (int64_t c = 0; c < columns; ++c) into[c] = std::max(into[c], from[c]);
}

}  // namespace

float MaxPyramid::worse(float a, float b) {
  return bit_cast<float>(std::max(to_key(a), to_key(b)));
}

MaxPyramid::MaxPyramid(std::vector<float> values, int64_t rows, int32_t columns)
    : rows_(rows), columns_(columns) {
  CPSCOPE_CHECK(static_cast<int64_t>(values.size()) == rows * columns,
                "a pyramid's values are not its shape", values.size(), rows * columns);
  std::vector<int32_t> level(values.size());
  std::transform(values.begin(), values.end(), level.begin(), to_key);
  levels_.push_back(std::move(level));
  for (int64_t below = rows; below > 1;) {
    const int64_t here = (below + kFold - 1) / kFold;
    std::vector<int32_t> folded(static_cast<size_t>(here * columns), bit_cast<int32_t>(kNothing));
    for (int64_t row = 0; row < below; ++row)
      take_worse(levels_.back().data() + row * columns, columns,
                 folded.data() + row / kFold * columns);
    levels_.push_back(std::move(folded));
    below = here;
  }
}

float MaxPyramid::at(int64_t row, int32_t column) const {
  return bit_cast<float>(levels_[0][static_cast<size_t>(row * columns_ + column)]);
}

void MaxPyramid::worst_of_rows(int64_t begin, int64_t end, std::span<float> worst) const {
  thread_local std::vector<int32_t> keys;
  keys.assign(static_cast<size_t>(columns_), bit_cast<int32_t>(kNothing));
  begin = std::max<int64_t>(0, begin);
  end = std::min(rows_, end);
  int64_t rows = rows_;  // rows of the level; its last block may be shorter, but counts as a whole
  for (const std::vector<int32_t>& level : levels_) {
    const auto take = [&](int64_t row) {
      take_worse(level.data() + row * columns_, columns_, keys.data());
    };
    const bool is_top = rows == 1;
    while (begin < end && (begin % kFold != 0 || is_top)) take(begin++);
    while (begin < end && end % kFold != 0 && end != rows) take(--end);
    if (begin >= end) break;
    begin /= kFold;
    end = (end + kFold - 1) / kFold;
    rows = (rows + kFold - 1) / kFold;
  }
  for (size_t c = 0; c < keys.size(); ++c) worst[c] = bit_cast<float>(keys[c]);
}

}  // namespace cpscope::gui
