#pragma once

#include "gui/draw/image.h"
#include "sim/base/result.h"

#include <string>
#include <vector>

namespace cpscope::gui {

/// A text chunk of a picture: scenario, plan hash, the state that makes it again. Latin-1 text.
struct PngText {
  std::string key;  // 1 to 79 characters
  std::string text;

  friend bool operator==(const PngText&, const PngText&) = default;
};

struct PngFile {
  Image image;
  std::vector<PngText> texts;
};

/// The bytes of a PNG file: the same image and texts give the same bytes with the same libpng and
/// zlib, and the same pixels with any. An opaque image is stored without alpha, unless
/// `keeps_alpha`.
Result<std::string> write_png_text(const Image& image, const std::vector<PngText>& texts = {},
                                   bool keeps_alpha = false);

/// Writes a PNG under a temporary name next to `path` and renames it, so that no reader ever sees
/// an incomplete file. Returns the number of bytes.
Result<size_t> write_png(const std::string& path, const Image& image,
                         const std::vector<PngText>& texts = {});

/// Reads any PNG as RGBA of 8 bits. Rejects pictures of more than 2^28 pixels.
Result<PngFile> read_png(const std::string& path);

}  // namespace cpscope::gui
