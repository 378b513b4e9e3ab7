#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/image.h"
#include "gui/panel/fonts.h"
#include "sim/base/result.h"

#include <cstddef>
#include <string>

namespace cpscope::gui {

struct ScreenshotOptions {
  Size size{1600, 1000};  // logical pixels
  float scale = 1;
  FontChoice fonts = FontChoice::packages;
};

/// The whole window as pixels, settled and without a mouse. Requires no display: the same state
/// gives the same pixels on every machine.
Image paint_screen(AppState& state, const ScreenshotOptions& options);

/// Writes the window as PNG. Its text chunks contain the version, the plan and the state that makes
/// it again.
Result<size_t> write_screenshot(AppState& state, const ScreenshotOptions& options,
                                const std::string& path);

/// Writes what a command has requested (AppState::wish) and shows its path: a picture of the window
/// and its state, in the folder that the program was started in.
void grant_wish(AppState& state, const ScreenshotOptions& options);

}  // namespace cpscope::gui
