#pragma once

#include "gui/app/app_state.h"
#include "gui/panel/fonts.h"
#include "gui/panel/hit_map.h"
#include "gui/panel/textures.h"

#include <memory>

namespace cpscope::gui {

/// The whole window, built every frame. Keeps only data that can be made again from the state:
/// views that did not change, and text that is being typed.
class Screen {
 public:
  /// With in_background, work on a large plan that takes longer than a frame runs on other threads:
  /// frames show what is known, and is_busy() says that more will come. Otherwise every frame is
  /// complete.
  explicit Screen(bool in_background = false);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Builds one frame, between NewFrame and Render of the current context, over its whole display:
  /// shortcuts and all panels. Calls update(state, now_s) first.
  void build(AppState& state, const Fonts& fonts, Textures& textures, double now_s);

  /// Widgets of the last frame, by name.
  const HitMap& hits() const;
  /// True if another frame must follow without any input: while playing, planning or running, or
  /// while something has not settled.
  bool is_busy(const AppState& state) const;
  /// True if a part of the last frame is still being computed on another thread.
  bool is_waiting() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cpscope::gui
