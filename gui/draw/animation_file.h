#pragma once

#include "gui/draw/image.h"
#include "gui/draw/png_file.h"
#include "sim/base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cpscope::gui {

/// Collects the frames of an animated PNG (APNG), which starts over at its end. A program that
/// knows only PNG shows the first frame. Of every later frame only the rectangle that changed is
/// stored, and in it unchanged pixels are transparent, so that a small motion takes few bytes. The
/// same frames give the same bytes.
class AnimationWriter {
 public:
  /// Adds a frame that is shown for some milliseconds. All frames have one size and are opaque. A
  /// frame that equals the last one only lengthens it.
  std::optional<Error> add(const Image& frame, int32_t duration_ms);
  /// The bytes of the file. At least one frame must have been added.
  Result<std::string> finish(const std::vector<PngText>& texts) const;

  int32_t num_frames() const { return static_cast<int32_t>(frames_.size()); }
  int64_t duration_ms() const;

  static constexpr int32_t kLongest = 65'535;  // milliseconds of a frame, a 16-bit number

 private:
  struct Frame {
    int32_t x = 0, y = 0, width = 0, height = 0;  // the rectangle that changed, in pixels
    int32_t duration_ms = 0;
    std::string packed;  // its pixels as the data of one IDAT chunk
  };

  Image first_, last_;
  std::vector<Frame> frames_;
};

}  // namespace cpscope::gui
