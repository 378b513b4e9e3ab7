#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/drawing.h"
#include "sim/base/result.h"

#include <cstdint>
#include <optional>
#include <string>

namespace cpscope::gui {

struct GlfwOptions {
  Size size{1600, 1000};     // logical pixels; a smaller screen makes it smaller
  float scale = 0;           // screen pixels of a logical pixel; 0 = what the screen asks for
  int64_t frames = 0;        // close after so many; 0 = when the user does
  std::string watch_folder;  // what is shown goes there whenever it comes to rest (WatchFolder)
};

/// Shows the state in a window until it is closed. Needs a display and OpenGL 3; without them an
/// Error of kind unavailable says what is missing and what works without.
std::optional<Error> show_window(AppState& state, const GlfwOptions& options);

}  // namespace cpscope::gui
