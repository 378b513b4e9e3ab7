#pragma once

#include "gui/draw/image.h"

#include <optional>
#include <string>

namespace cpscope::tests {

/// Fails unless `image` is tests/golden/gui/<name>.png (is_same_picture). Then the picture seen and
/// one of the difference are left in the build folder, and the failure names them.
/// CPSCOPE_BLESS=1 writes the golden picture instead: look at it before it is committed.
/// Golden pictures are made with the built-in font and belong to one version of Dear ImGui; with
/// another version the result is why the comparison is skipped:
///   if (const auto why = expect_golden("gallery_dark", image)) GTEST_SKIP() << *why;
[[nodiscard]] std::optional<std::string> expect_golden(const std::string& name,
                                                       const gui::Image& image);

/// Are they the same, pixel for pixel, but for what a processor may change? Dear ImGui takes
/// lengths of edges from its approximate reciprocal root (rsqrtss), whose last bits differ from
/// maker to maker: here and there a pixel on a slanted edge is a few levels off. On an AMD EPYC 13
/// of a whole window's are, by up to 8 levels, from a picture that another machine made.
bool is_same_picture(const gui::Image& expected, const gui::Image& seen);

/// What differs, in red on a pale copy of the expected picture. Sizes may differ too.
gui::Image draw_difference(const gui::Image& expected, const gui::Image& seen);

}  // namespace cpscope::tests
