#include "tests/support/golden_image.h"

#include "gui/draw/png_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <imgui.h>

namespace cpscope::tests {

using gui::Color;
using gui::Image;

namespace {

namespace fs = std::filesystem;

constexpr const char* kVersionKey = "imgui";
const std::string kVersion = std::to_string(IMGUI_VERSION_NUM);

bool is_blessing() {
  const char* value = std::getenv("CPSCOPE_BLESS");
  return value != nullptr && std::string_view(value) == "1";
}

std::string write_beside_build(const std::string& name, const Image& image) {
  const fs::path folder = fs::path(CPSCOPE_BINARY_DIR) / "golden";
  fs::create_directories(folder);
  const std::string path = (folder / (name + ".png")).string();
  const Result<size_t> written = gui::write_png(path, image);
  return written.ok() ? path : to_text(written.error());
}

std::string version_of(const gui::PngFile& file) {
  for (const gui::PngText& text : file.texts) {
    if (text.key == kVersionKey) return text.text;
  }
  return "unknown";
}

int64_t count_different(const Image& a, const Image& b) {
  int64_t count = 0;
  for (int32_t y = 0; y < std::min(a.height, b.height); ++y) {
    for (int32_t x = 0; x < std::min(a.width, b.width); ++x)
      count += a.at(x, y) == b.at(x, y) ? 0 : 1;
  }
  return count;
}

/// The difference of two colours in levels, in the channel where it is largest.
int32_t levels_between(const Color& a, const Color& b) {
  return std::max(
      {std::abs(a.r - b.r), std::abs(a.g - b.g), std::abs(a.b - b.b), std::abs(a.a - b.a)});
}

std::string size_of(const Image& image) {
  return std::to_string(image.width) + " x " + std::to_string(image.height);
}

void bless(const std::string& path, const Image& image) {
  fs::create_directories(fs::path(path).parent_path());
  const Result<size_t> written = gui::write_png(path, image, {{kVersionKey, kVersion}});
  if (!written) ADD_FAILURE() << to_text(written.error());
}

}  // namespace

bool is_same_picture(const Image& expected, const Image& seen) {
  constexpr int32_t kMostLevels = 16;
  constexpr int64_t kFewestPixels = 32, kPixelsForOne = 16'384;  // that may differ; of the picture
  if (expected.width != seen.width || expected.height != seen.height) return false;
  const auto is_near = [](const Color& a, const Color& b) {
    return levels_between(a, b) <= kMostLevels;
  };
  return std::equal(expected.pixels.begin(), expected.pixels.end(), seen.pixels.begin(), is_near) &&
         count_different(expected, seen) <=
             std::max(kFewestPixels, static_cast<int64_t>(expected.pixels.size()) / kPixelsForOne);
}

Image draw_difference(const Image& expected, const Image& seen) {
  Image picture(std::max(expected.width, seen.width), std::max(expected.height, seen.height),
                Color{255, 0, 0});
  for (int32_t y = 0; y < std::min(expected.height, seen.height); ++y) {
    for (int32_t x = 0; x < std::min(expected.width, seen.width); ++x) {
      const Color c = expected.at(x, y);
      if (c != seen.at(x, y)) continue;
      const auto pale = static_cast<uint8_t>(192 + (c.r + c.g + c.b) / 12);
      picture.at(x, y) = {pale, pale, pale};
    }
  }
  return picture;
}

std::optional<std::string> expect_golden(const std::string& name, const Image& image) {
  const std::string path =
      (fs::path(CPSCOPE_SOURCE_DIR) / "tests/golden/gui" / (name + ".png")).string();
  if (is_blessing()) {
    bless(path, image);
    return std::nullopt;
  }
  const Result<gui::PngFile> golden = gui::read_png(path);
  if (!golden) {
    ADD_FAILURE() << to_text(golden.error()) << "; CPSCOPE_BLESS=1 makes it; the picture seen is "
                  << write_beside_build(name + ".new", image);
    return std::nullopt;
  }
  const std::string version = version_of(golden.value());
  if (version != kVersion) {
    return "requires imgui " + version + ": " + name + " was made with it, this is " + kVersion;
  }
  const Image& expected = golden.value().image;
  if (is_same_picture(expected, image)) return std::nullopt;
  ADD_FAILURE() << name << ": " << count_different(expected, image) << " pixels differ from "
                << path << " (" << size_of(expected) << ", seen " << size_of(image) << "); see "
                << write_beside_build(name + ".new", image) << " and "
                << write_beside_build(name + ".difference", draw_difference(expected, image))
                << "; CPSCOPE_BLESS=1 accepts the new picture";
  return std::nullopt;
}

}  // namespace cpscope::tests
