#pragma once

#include "gui/draw/image.h"

#include <optional>
#include <string>

namespace cpscope::tests {

/// Fails unless `image` is equal to tests/golden/gui/<name>.png (is_same_picture). On failure it
/// writes the picture and a difference picture to the build folder and names them. CPSCOPE_BLESS=1
/// writes the golden picture instead: look at it before committing it.
/// Golden pictures are made with the built-in font and belong to one version of Dear ImGui; with
/// another version, the result is the reason for skipping the comparison:
///   if (const auto why = expect_golden("gallery_dark", image)) GTEST_SKIP() << *why;
[[nodiscard]] std::optional<std::string> expect_golden(const std::string& name,
                                                       const gui::Image& image);

/// True if the pictures are the same pixel for pixel, except for differences between processors.
/// Dear ImGui computes lengths of edges with the approximate reciprocal root (rsqrtss), whose last
/// bits differ between vendors: some pixels on slanted edges differ by a few levels. On an AMD
/// EPYC, 13 pixels of a whole window differ, by up to 8 levels, from a picture made on another
/// machine; 58 of a poster of 2.8 million; 77 of a window of 1.6 million with many small triangles,
/// by up to 14 levels.
bool is_same_picture(const gui::Image& expected, const gui::Image& seen);

/// The differences in red on a pale copy of the expected picture. Sizes may differ, too.
gui::Image draw_difference(const gui::Image& expected, const gui::Image& seen);

}  // namespace cpscope::tests
