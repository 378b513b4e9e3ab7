#pragma once

#include "gui/app/app_state.h"
#include "gui/panel/offscreen.h"
#include "gui/panel/screen.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace cpscope::tests {

/// A simulated user without a display: shows the whole window offscreen, finds widgets by name, and
/// sends input events, one event a frame. Every call fails the test when the widget is missing.
class Hand {
 public:
  struct Options {
    gui::Size size{1440, 900};
    float scale = 1;
    gui::FontChoice fonts = gui::FontChoice::built_in;
    bool in_background = false;  // like a window: long work finishes in later frames
  };

  explicit Hand(gui::AppState& state);
  Hand(gui::AppState& state, const Options& options);

  /// Runs frames until nothing changes, at most `most`.
  void settle(int32_t most = 600);
  void frames(int32_t count);

  /// The position of a widget; fails the test when it is not shown.
  std::optional<gui::Box> find(const std::string& name);
  void click(const std::string& name);
  void move_to(const std::string& name);
  void click_at(gui::Point at, int32_t button = 0);
  void double_click(const std::string& name);
  void right_click(const std::string& name);
  void drag(gui::Point from, gui::Point to, gui::compat::Mods mods = {});
  void wheel_at(gui::Point at, float turns);
  void wheel(const std::string& name, float turns);
  void key(gui::compat::Key key, gui::compat::Mods mods = {});
  void type(const std::string& text);
  /// Runs frames until `holds` is true. Returns false when it never is.
  bool wait_until(const std::function<bool()>& holds, int32_t most = 2000);

  gui::Image picture();
  gui::Offscreen& offscreen() { return *offscreen_; }
  const gui::HitMap& hits() const { return screen_.hits(); }

 private:
  void build();

  gui::AppState& state_;
  std::unique_ptr<gui::Offscreen> offscreen_;
  gui::Screen screen_;
  bool in_background_ = false;
  double now_s_ = 0;
};

}  // namespace cpscope::tests
