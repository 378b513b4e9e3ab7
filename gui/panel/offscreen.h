#pragma once

#include "gui/draw/drawing.h"
#include "gui/draw/image.h"
#include "gui/draw/theme.h"
#include "gui/panel/fonts.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/textures.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace cpscope::gui {

struct OffscreenOptions {
  Size size{1280, 720};  // logical pixels
  float scale = 1;       // screen pixels per logical pixel
  FontChoice fonts = FontChoice::packages;
  Color background = {0, 0, 0};
};

/// Dear ImGui without a window or a GPU: a context of its own whose frames are pictures in memory.
/// Every frame advances the time by 1/60 s; font files are the only files it accesses. Input events
/// are queued, and every frame takes one of them, as Dear ImGui 1.86 requires: a press and its
/// release in one frame would be lost.
class Offscreen {
 public:
  explicit Offscreen(const OffscreenOptions& options);
  ~Offscreen();
  Offscreen(const Offscreen&) = delete;
  Offscreen& operator=(const Offscreen&) = delete;

  /// Runs one frame: takes an event, calls `build` between NewFrame and Render with this context
  /// current, and restores the former context.
  void frame(const std::function<void()>& build);
  /// Runs frames until the event queue is empty, and two more in which widgets settle.
  void settle(const std::function<void()>& build);
  /// Renders the last frame as pixels.
  Image draw() const;
  /// Renders a frame that contains only a drawing: for many drawings with one set of fonts.
  Image draw(const Drawing& drawing);

  // Input events, in screen pixels, one event a frame.
  void move_mouse(Point to);
  void press(int32_t button = 0);
  void release(int32_t button = 0);
  void turn_wheel(float y, float x = 0);
  void press_key(compat::Key key, compat::Mods mods = {});
  void release_key(compat::Key key);
  void hold(compat::Mods mods);        // until the next key or the next call
  void type(const std::string& text);  // one letter a frame
  /// Moves the mouse, waits until widgets react, presses, releases, and waits longer than a double
  /// click.
  void click(Point at, int32_t button = 0);
  /// Runs `frames` frames without an event.
  void wait(int32_t frames);
  bool has_events() const { return !events_.empty(); }

  const Fonts& fonts() const { return fonts_; }
  Textures& textures() { return *textures_; }
  ImGuiContext* context() const { return context_; }

 private:
  using Event = std::function<void(ImGuiIO&)>;

  OffscreenOptions options_;
  ImGuiContext* context_ = nullptr;
  Fonts fonts_;
  Image atlas_;
  std::map<uint64_t, Image> pictures_;  // textures by id
  uint64_t next_id_ = 2;                // 1 is the atlas
  std::unique_ptr<Textures> textures_;
  std::deque<Event> events_;
};

/// Renders a drawing as size * scale pixels, on the theme's background.
Image render_drawing(const Drawing& drawing, Size size, ThemeName theme,
                     FontChoice fonts = FontChoice::packages, float scale = 1);

}  // namespace cpscope::gui
