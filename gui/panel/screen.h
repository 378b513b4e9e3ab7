#pragma once

#include "gui/app/app_state.h"
#include "gui/panel/fonts.h"
#include "gui/panel/hit_map.h"
#include "gui/panel/textures.h"

#include <memory>

namespace cpscope::gui {

/// The whole window, frame by frame. Keeps only what can be made again from the state: views that
/// did not change, and text that is being typed.
class Screen {
 public:
  /// In the background, what takes longer than a frame on a large plan is worked out on other
  /// threads: frames show what is known, and is_busy() says that more will come. Else every frame
  /// is complete.
  explicit Screen(bool in_background = false);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// One frame, between NewFrame and Render of the current context, over its whole display: keys,
  /// panels, everything. Calls update(state, now_s) first.
  void build(AppState& state, const Fonts& fonts, Textures& textures, double now_s);

  /// Widgets of the last frame by name.
  const HitMap& hits() const;
  /// Must another frame follow although nobody touches the window: playing, planning, running,
  /// something not settled yet?
  bool is_busy(const AppState& state) const;
  /// Is something of the last frame still being worked out elsewhere?
  bool is_waiting() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cpscope::gui
