#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/image.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace cpscope::gui {

/// The owner of textures: the GPU in the window, plain memory offscreen. Cells have sharp edges, so
/// sampling takes the nearest texel (GL_NEAREST), without repeating.
struct TextureDevice {
  std::function<uint64_t(const Image&)> make;              // returns a new texture's id, never 0
  std::function<void(uint64_t id, const Image&)> replace;  // new contents of the same size
  std::function<void(uint64_t id)> destroy;
};

/// Textures made of cells. Equal cells are sent once, however often and wherever they are shown;
/// textures that are no longer shown are reused for others of their size.
class Textures {
 public:
  explicit Textures(TextureDevice device);
  ~Textures();
  Textures(const Textures&) = delete;
  Textures& operator=(const Textures&) = delete;

  /// Returns the id of a texture with these cells, valid until end_frame was called two more times.
  uint64_t show(const Pixels& pixels);
  /// Call after a frame is drawn: destroys textures that were not shown for a second (60 frames).
  void end_frame();
  /// Number of textures made or replaced since the last end_frame: the cost of a frame.
  int32_t sent() const { return sent_; }

 private:
  struct Entry {
    uint64_t id = 0;
    uint64_t contents = 0;  // hash of the cells
    int32_t width = 0, height = 0;
    int32_t idle_frames = 0;
  };

  TextureDevice device_;
  std::vector<Entry> entries_;
  int32_t sent_ = 0;
};

}  // namespace cpscope::gui
