#pragma once

#include "gui/draw/image.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::tests {

/// A chunk of a PNG file.
struct PngChunk {
  std::string name, data;
};

/// A frame as a viewer shows it.
struct ShownFrame {
  gui::Image image;
  int32_t x = 0, y = 0, width = 0, height = 0;  // the rectangle that the file stores
  int32_t duration_ms = 0;
};

/// The chunks of a PNG file. Throws std::runtime_error where a length or a checksum is wrong.
std::vector<PngChunk> read_chunks(const std::string& bytes);

/// Plays an animated PNG of 8-bit RGBA without row filters by the rules of the APNG specification.
/// Throws std::runtime_error where the file breaks one of them.
std::vector<ShownFrame> play_animation(const std::string& bytes);

}  // namespace cpscope::tests
