#include "gui/window/watch_folder.h"

#include "gui/draw/png_file.h"
#include "sim/base/whole_file.h"

#include <utility>

#include <imgui.h>
#include <nlohmann/json.hpp>

namespace cpscope::gui {

TextureDevice WatchFolder::keep_copies(TextureDevice device) {
  return {.make =
              [this, make = std::move(device.make)](const Image& image) {
                const uint64_t id = make(image);
                copies_[id] = image;
                return id;
              },
          .replace =
              [this, replace = std::move(device.replace)](uint64_t id, const Image& image) {
                replace(id, image);
                copies_[id] = image;
              },
          .destroy =
              [this, destroy = std::move(device.destroy)](uint64_t id) {
                destroy(id);
                copies_.erase(id);
              }};
}

std::optional<Error> WatchFolder::write(const AppState& state, const HitMap& hits,
                                        const ImDrawData& data, const Image& card,
                                        uint64_t atlas_id, const Image& atlas) {
  Image raster(card.width, card.height, theme_of(state.theme).of(Role::background));
  rasterise(
      data,
      [&](uint64_t id) -> RasterTexture {
        if (id == atlas_id) return {&atlas, true};
        const auto found = copies_.find(id);
        return found == copies_.end() ? RasterTexture{} : RasterTexture{&found->second, false};
      },
      raster);
  nlohmann::json boxes = nlohmann::json::object();
  for (const auto& [name, box] : hits.all()) boxes[name] = {box.x0, box.y0, box.x1, box.y1};
  const nlohmann::json document{
      {"write", ++writes_},
      {"place", state.playhead.index},
      {"is_by_stage", state.playhead.is_by_stage},
      {"title", state.document.is_open() ? state.document.scenario().title : std::string()},
      {"messages", state.messages.size()},
      {"hits", std::move(boxes)}};
  if (const auto done = write_png(folder_ + "/card.png", card); !done) return done.error();
  if (const auto done = write_png(folder_ + "/raster.png", raster); !done) return done.error();
  const auto done =
      write_whole_file(folder_ + "/hits.json", document.dump(), "the list of widgets");
  if (!done) return done.error();
  return std::nullopt;
}

}  // namespace cpscope::gui
