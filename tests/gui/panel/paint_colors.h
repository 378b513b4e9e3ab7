#pragma once

#include "gui/draw/drawing.h"

namespace cpscope::tests {

/// Foreground and background colour of the tests.
inline constexpr gui::Color kInk{255, 255, 255};
inline constexpr gui::Color kBackground{22, 24, 29};  // background of the dark theme
inline constexpr gui::Color kBlue{0, 119, 187};

}  // namespace cpscope::tests
