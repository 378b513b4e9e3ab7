#pragma once

#include "gui/draw/image.h"

#include <optional>
#include <string>

namespace cpscope::tests {

/// Fails unless `image` is, pixel for pixel, tests/golden/gui/<name>.png. Then the picture seen and
/// one of the difference are left in the build folder, and the failure names them.
/// CPSCOPE_BLESS=1 writes the golden picture instead: look at it before it is committed.
/// Golden pictures are made with the built-in font and belong to one version of Dear ImGui; with
/// another version the result is why the comparison is skipped:
///   if (const auto why = expect_golden("gallery_dark", image)) GTEST_SKIP() << *why;
[[nodiscard]] std::optional<std::string> expect_golden(const std::string& name,
                                                       const gui::Image& image);

/// What differs, in red on a pale copy of the expected picture. Sizes may differ too.
gui::Image draw_difference(const gui::Image& expected, const gui::Image& seen);

}  // namespace cpscope::tests
