#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/drawing.h"
#include "gui/draw/theme.h"

#include <optional>
#include <string>

namespace cpscope::gui {

/// What the next window begins with.
struct Remembered {
  Size size{1600, 1000};  // logical pixels
  ThemeName theme = ThemeName::dark;
  Borders borders;
};

/// The file of this user: cpscope/window below XDG_STATE_HOME or ~/.local/state; empty where there
/// is no such folder.
std::string remembered_path();
/// Nothing if the file is missing or damaged: a window opens without it.
std::optional<Remembered> read_remembered(const std::string& path);
/// Makes missing folders. Returns false if the file cannot be written, which no one needs to know.
bool write_remembered(const std::string& path, const Remembered& remembered);

}  // namespace cpscope::gui
