#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace cpscope::gui {

struct GlfwOptions {
  Size size{1600, 1000};     // logical pixels; reduced on a smaller screen
  float scale = 0;           // screen pixels per logical pixel; 0 = as the screen suggests
  int64_t frames = 0;        // close after this many frames; 0 = when the user does
  std::string watch_folder;  // folder to which the shown frame is written whenever the window comes
                             // to rest (WatchFolder)
  std::function<void(Size)> at_end = {};  // gets the size of the window when the user closes it
};

/// Shows the state in a window until it is closed. Requires a display and OpenGL 3; without them,
/// it returns an Error of kind unavailable that says what is missing and what works without.
std::optional<Error> show_window(AppState& state, const GlfwOptions& options);

}  // namespace cpscope::gui
