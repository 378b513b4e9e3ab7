#pragma once

#include "gui/app/app_state.h"

#include <string>

namespace cpscope::gui {

// What goes to the clipboard. The window copies AppState::for_clipboard once a frame is built.

/// The words of the inspector: heading, then one line for each figure.
std::string inspector_text(const AppState& state);

/// A command line that draws the focused view: `cpscope render FILE --view mask --step 2 ...`, for
/// a POSIX shell. There must be a plan. Zoom and runs are not part of it.
std::string redraw_command(const AppState& state);

void copy_inspector(AppState& state);
void copy_command(AppState& state);
/// The scenario as TOML, with the edits that are not saved yet.
void copy_scenario(AppState& state);

}  // namespace cpscope::gui
