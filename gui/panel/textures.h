#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/image.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace cpscope::gui {

/// Whoever owns textures: the graphics card in the window, plain memory offscreen. Cells have sharp
/// edges, so pixels between texels take the nearest one (GL_NEAREST), without repeating.
struct TextureDevice {
  std::function<uint64_t(const Image&)> make;              // a new texture's id, never 0
  std::function<void(uint64_t id, const Image&)> replace;  // the contents, size unchanged
  std::function<void(uint64_t id)> destroy;
};

/// Pictures made of cells, as textures. The same cells are sent once, however often and wherever
/// they are shown; textures that are no longer shown are used again for others of their size.
class Textures {
 public:
  explicit Textures(TextureDevice device);
  ~Textures();
  Textures(const Textures&) = delete;
  Textures& operator=(const Textures&) = delete;

  /// Id of a texture that holds these cells, good until two more calls of end_frame.
  uint64_t show(const Pixels& pixels);
  /// After a frame is drawn: destroys what nobody showed for a second (60 frames).
  void end_frame();
  /// Textures made or replaced since the last end_frame: the cost of a frame.
  int32_t sent() const { return sent_; }

 private:
  struct Entry {
    uint64_t id = 0;
    uint64_t contents = 0;  // hash
    int32_t width = 0, height = 0;
    int32_t idle_frames = 0;
  };

  TextureDevice device_;
  std::vector<Entry> entries_;
  int32_t sent_ = 0;
};

}  // namespace cpscope::gui
