#include "gui/draw/label_place.h"

#include <cstdint>

namespace cpscope::gui {

namespace {

// In units of the em, for Inter and JetBrains Mono: ascenders are 0.75 high, descenders 0.2 deep.
constexpr float kBaselineBelowTop = 0.76F;
constexpr float kBaselineAboveBottom = 0.24F;

}  // namespace

Point baseline_of(const Label& label, float width, float capital) {
  const auto anchor = static_cast<uint8_t>(label.anchor);
  const uint8_t column = anchor % 3, row = anchor / 3;
  const float x = label.at.x - width * static_cast<float>(column) / 2;
  const float below[] = {kBaselineBelowTop, capital / 2, -kBaselineAboveBottom};
  return {x, label.at.y + below[row] * label.size};
}

}  // namespace cpscope::gui
