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

/// How others follow a window that they drive from outside (tests, recorders of films): whenever it
/// comes to rest, hits.json (frame, playhead, where each named widget is), card.png (as the
/// graphics card painted it) and raster.png (the same frame by our rasteriser) stand in a folder.
/// hits.json is written last.
class WatchFolder {
 public:
  explicit WatchFolder(std::string folder) : folder_(std::move(folder)) {}

  /// Wraps a device so that copies of its textures can be rasterised.
  TextureDevice keep_copies(TextureDevice device);
  /// Writes what is shown. `card`: the pixels of the window's frame; `atlas`: of the fonts.
  std::optional<Error> write(const AppState& state, const HitMap& hits, const ImDrawData& data,
                             const Image& card, uint64_t atlas_id, const Image& atlas);

 private:
  std::string folder_;
  std::map<uint64_t, Image> copies_;
  int64_t writes_ = 0;
};

}  // namespace cpscope::gui
