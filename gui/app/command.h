#pragma once

#include "gui/app/app_state.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// An action of the window. Buttons, menus, shortcuts and lessons refer to it by id.
struct Command {
  std::string_view id;         // stable: "step.next"
  std::string_view title;      // in menus: "Next step"
  std::string_view menu;       // "Play"; every command is in one menu
  std::string_view shortcuts;  // "Right ." : chords separated by blanks; empty for none
  std::string_view help;       // one sentence
  bool (*is_enabled)(const AppState&);
  void (*apply)(AppState&);
};

/// All commands, menu by menu, in menu order.
std::span<const Command> all_commands();
/// Menus in the order of the menu bar.
std::vector<std::string_view> all_menus();
/// Returns null for an unknown id.
const Command* find_command(std::string_view id);
/// Carries the command out if it is enabled. Returns false when it is disabled or unknown.
bool apply_command(AppState& state, std::string_view id);

/// Keys pressed at once. `key` is one of A..Z, 0..9, F1..F12, Space, Tab, Esc, Enter, Left, Right,
/// Up, Down, Home, End, PageUp, PageDown, Delete, or one of , . [ ] ? + - /
struct Chord {
  bool has_ctrl = false, has_shift = false, has_alt = false;
  std::string key;

  friend bool operator==(const Chord&, const Chord&) = default;
};
/// Parses "Ctrl+Shift+Z". Returns nothing when the text is not a chord.
std::optional<Chord> parse_chord(std::string_view text);
std::string to_text(const Chord& chord);
std::vector<Chord> chords_of(const Command& command);
/// The command of a chord, enabled or not.
const Command* find_command(const Chord& chord);

/// One line of the help, generated from the command table so that it is always up to date.
struct HelpLine {
  std::string_view menu, title, shortcuts, help;
};
std::vector<HelpLine> make_help();

}  // namespace cpscope::gui
