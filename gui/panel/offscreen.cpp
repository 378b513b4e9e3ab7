#include "gui/panel/offscreen.h"

#include "gui/panel/paint.h"
#include "gui/panel/raster.h"
#include "sim/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace cpscope::gui {

namespace {

constexpr uint64_t kAtlasId = 1;
constexpr Point kParked{-1000, -1000};  // a mouse position over no widget
// Longer than 0.3 s, the time within which a second click would be a double click.
constexpr int32_t kFramesBetweenClicks = 22;

/// Makes a context current, and restores the former one at the end of the scope.
class CurrentContext {
 public:
  explicit CurrentContext(ImGuiContext* context) : before_(ImGui::GetCurrentContext()) {
    ImGui::SetCurrentContext(context);
  }
  ~CurrentContext() { ImGui::SetCurrentContext(before_); }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  ImGuiContext* before_;
};

Image copy_atlas(ImFontAtlas& atlas) {
  unsigned char* bytes = nullptr;
  int width = 0, height = 0;
  atlas.GetTexDataAsRGBA32(&bytes, &width, &height);
  Image image(width, height);
  std::memcpy(image.pixels.data(), bytes, image.pixels.size() * sizeof(Color));
  return image;
}

}  // namespace

Offscreen::Offscreen(const OffscreenOptions& options) : options_(options) {
  ImGuiContext* before = ImGui::GetCurrentContext();
  context_ = make_imgui_context();
  ImGui::SetCurrentContext(before);
  const CurrentContext current(context_);
  ImGuiIO& io = ImGui::GetIO();
  io.IniFilename = nullptr;
  io.LogFilename = nullptr;
  io.DeltaTime = 1.F / 60.F;
  io.DisplaySize = {std::round(options.size.width * options.scale),
                    std::round(options.size.height * options.scale)};
  io.BackendFlags |= ImGuiBackendFlags_RendererHasVtxOffset;
  io.ConfigInputTextCursorBlink = false;
  compat::name_keys(io);
  compat::feed_mouse_place(io, kParked.x, kParked.y);
  fonts_ = load_fonts(*io.Fonts, options.fonts, options.scale);
  atlas_ = copy_atlas(*io.Fonts);
  io.Fonts->SetTexID(compat::to_texture(kAtlasId));
  textures_ = std::make_unique<Textures>(
      TextureDevice{.make =
                        [this](const Image& image) {
                          pictures_[next_id_] = image;
                          return next_id_++;
                        },
                    .replace = [this](uint64_t id, const Image& image) { pictures_[id] = image; },
                    .destroy = [this](uint64_t id) { pictures_.erase(id); }});
}

Offscreen::~Offscreen() {
  ImGuiContext* before = ImGui::GetCurrentContext();
  ImGui::SetCurrentContext(context_);
  ImGui::DestroyContext(context_);
  ImGui::SetCurrentContext(before == context_ ? nullptr : before);
}

void Offscreen::frame(const std::function<void()>& build) {
  const CurrentContext current(context_);
  textures_->end_frame();
  if (!events_.empty()) {
    events_.front()(ImGui::GetIO());
    events_.pop_front();
  }
  ImGui::NewFrame();
  build();
  ImGui::Render();
}

void Offscreen::settle(const std::function<void()>& build) {
  while (has_events()) frame(build);
  frame(build);
  frame(build);
}

Image Offscreen::draw() const {
  const CurrentContext current(context_);
  const ImDrawData* data = ImGui::GetDrawData();
  const ImVec2 size = ImGui::GetIO().DisplaySize;
  Image image(static_cast<int32_t>(size.x), static_cast<int32_t>(size.y), options_.background);
  if (data == nullptr) return image;
  const auto find_texture = [this](uint64_t id) -> RasterTexture {
    if (id == kAtlasId) return {&atlas_, true, true};
    const auto found = pictures_.find(id);
    return found == pictures_.end() ? RasterTexture{} : RasterTexture{&found->second};
  };
  rasterise(*data, find_texture, image);
  return image;
}

Image Offscreen::draw(const Drawing& drawing) {
  frame([&] {
    paint(drawing, {ImGui::GetBackgroundDrawList(), &fonts_, textures_.get(), {0, 0}});
  });
  return draw();
}

void Offscreen::move_mouse(Point to) {
  events_.emplace_back([to](ImGuiIO& io) { compat::feed_mouse_place(io, to.x, to.y); });
}

void Offscreen::press(int32_t button) {
  events_.emplace_back([button](ImGuiIO& io) { compat::feed_mouse_button(io, button, true); });
}

void Offscreen::release(int32_t button) {
  events_.emplace_back([button](ImGuiIO& io) { compat::feed_mouse_button(io, button, false); });
}

void Offscreen::turn_wheel(float y, float x) {
  events_.emplace_back([x, y](ImGuiIO& io) { compat::feed_wheel(io, x, y); });
}

void Offscreen::press_key(compat::Key key, compat::Mods mods) {
  events_.emplace_back([key, mods](ImGuiIO& io) {
    compat::feed_mods(io, mods);
    compat::feed_key(io, key, true);
  });
}

void Offscreen::release_key(compat::Key key) {
  events_.emplace_back([key](ImGuiIO& io) {
    compat::feed_key(io, key, false);
    compat::feed_mods(io, {});
  });
}

void Offscreen::hold(compat::Mods mods) {
  events_.emplace_back([mods](ImGuiIO& io) { compat::feed_mods(io, mods); });
}

void Offscreen::type(const std::string& text) {
  for (const char letter : text) {
    events_.emplace_back(
        [letter](ImGuiIO& io) { io.AddInputCharacter(static_cast<unsigned char>(letter)); });
  }
}

void Offscreen::click(Point at, int32_t button) {
  move_mouse(at);
  wait(2);
  press(button);
  release(button);
  wait(kFramesBetweenClicks);
}

void Offscreen::wait(int32_t frames) {
  for (int32_t i = 0; i < frames; ++i) events_.emplace_back([](ImGuiIO&) {});
}

Image render_drawing(const Drawing& drawing, Size size, ThemeName theme, FontChoice fonts,
                     float scale) {
  Offscreen screen({size, scale, fonts, theme_of(theme).of(Role::background)});
  return screen.draw(drawing);
}

}  // namespace cpscope::gui
