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
  float scale = 1;       // screen pixels of a logical pixel
  FontChoice fonts = FontChoice::packages;
  Color background = {0, 0, 0};
};

/// Dear ImGui without a window or a graphics card: a context of its own whose frames are pictures
/// in memory. Time passes 1/60 s a frame and no other way; no file is read or written but fonts.
/// Hands queue what they do, and every frame takes one event of the queue, as Dear ImGui 1.86 needs
/// it: a press and its release in one frame would be lost.
class Offscreen {
 public:
  explicit Offscreen(const OffscreenOptions& options);
  ~Offscreen();
  Offscreen(const Offscreen&) = delete;
  Offscreen& operator=(const Offscreen&) = delete;

  /// One frame: takes an event, calls `build` between NewFrame and Render with this context
  /// current, and restores the context of before.
  void frame(const std::function<void()>& build);
  /// Frames until no event is left, and two more in which widgets settle.
  void settle(const std::function<void()>& build);
  /// The last frame as pixels.
  Image draw() const;
  /// A frame of nothing but a drawing, as pixels: for many drawings with one set of fonts.
  Image draw(const Drawing& drawing);

  // What hands do, in screen pixels, one event a frame.
  void move_mouse(Point to);
  void press(int32_t button = 0);
  void release(int32_t button = 0);
  void turn_wheel(float y, float x = 0);
  void press_key(compat::Key key, compat::Mods mods = {});
  void release_key(compat::Key key);
  void type(const std::string& text);  // a letter a frame
  /// Moves, waits until widgets know it, presses, releases, and waits longer than a double click.
  void click(Point at, int32_t button = 0);
  /// `frames` frames without an event.
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

/// A drawing as pixels: size * scale of them, on the theme's background.
Image render_drawing(const Drawing& drawing, Size size, ThemeName theme,
                     FontChoice fonts = FontChoice::packages, float scale = 1);

}  // namespace cpscope::gui
