#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/image.h"
#include "gui/panel/hit_map.h"
#include "gui/panel/raster.h"
#include "gui/panel/textures.h"
#include "sim/base/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

struct ImDrawData;

namespace cpscope::gui {

/// Lets other programs (tests, screen recorders) follow a window that they drive from outside:
/// whenever the window comes to rest, it writes to a folder hits.json (frame, playhead, position of
/// each named widget), card.png (as painted by the GPU) and raster.png (the same frame painted by
/// our rasteriser). hits.json is written last.
class WatchFolder {
 public:
  explicit WatchFolder(std::string folder) : folder_(std::move(folder)) {}

  /// Wraps a device so that the rasteriser gets copies of its textures.
  TextureDevice keep_copies(TextureDevice device);
  /// Writes the current frame. `card`: the pixels of the window's frame; `atlas`: those of the
  /// fonts.
  std::optional<Error> write(const AppState& state, const HitMap& hits, const ImDrawData& data,
                             const Image& card, uint64_t atlas_id, const Image& atlas);

 private:
  std::string folder_;
  std::map<uint64_t, Image> copies_;
  int64_t writes_ = 0;
};

}  // namespace cpscope::gui
