#pragma once

#include "gui/draw/drawing.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cpscope::gui {

/// A picture as pixels, 8 bits a channel, alpha not premultiplied.
struct Image {
  int32_t width = 0, height = 0;
  std::vector<Color> pixels;  // [row][column], the top row first

  Image() = default;
  Image(int32_t columns, int32_t rows, Color fill = {0, 0, 0, 0})
      : width(columns),
        height(rows),
        pixels(static_cast<size_t>(columns) * static_cast<size_t>(rows), fill) {}

  Color& at(int32_t x, int32_t y) {
    return pixels[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
  }
  const Color& at(int32_t x, int32_t y) const {
    return pixels[static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x)];
  }
  friend bool operator==(const Image&, const Image&) = default;
};

static_assert(sizeof(Color) == 4, "libraries are given pixels as bytes r, g, b, a");

}  // namespace cpscope::gui
