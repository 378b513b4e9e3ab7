#include "gui/app/command.h"

#include <algorithm>
#include <array>

namespace cpscope::gui {
namespace {

constexpr std::array<std::string_view, 23> kNamedKeys = {
    "Space", "Tab", "Esc",    "Enter",    "Left",   "Right",     "Up", "Down",
    "Home",  "End", "PageUp", "PageDown", "Delete", ",",         ".",  "[",
    "]",     "?",   "+",      "-",        "/",      "Backspace", "="};

bool is_key(std::string_view key) {
  if (key.size() == 1 && ((key[0] >= 'A' && key[0] <= 'Z') || (key[0] >= '0' && key[0] <= '9')))
    return true;
  if (key.size() >= 2 && key.size() <= 3 && key[0] == 'F') {
    int number = 0;
    for (const char digit : key.substr(1)) {
      if (digit < '0' || digit > '9') return false;
      number = number * 10 + (digit - '0');
    }
    return key[1] != '0' && number <= 12;
  }
  return std::find(kNamedKeys.begin(), kNamedKeys.end(), key) != kNamedKeys.end();
}

}  // namespace

std::vector<std::string_view> all_menus() {
  std::vector<std::string_view> menus;
  for (const Command& command : all_commands()) {
    if (std::find(menus.begin(), menus.end(), command.menu) == menus.end())
      menus.push_back(command.menu);
  }
  return menus;
}

const Command* find_command(std::string_view id) {
  for (const Command& command : all_commands()) {
    if (command.id == id) return &command;
  }
  return nullptr;
}

bool apply_command(AppState& state, std::string_view id) {
  const Command* command = find_command(id);
  if (command == nullptr || !command->is_enabled(state)) return false;
  command->apply(state);
  return true;
}

std::optional<Chord> parse_chord(std::string_view text) {
  Chord chord;
  // In "Ctrl++" the second "+" is the key: a plus sign at the front is not a separator.
  for (size_t plus = text.find('+');
       plus != std::string_view::npos && plus > 0 && plus + 1 < text.size();
       plus = text.find('+')) {
    const std::string_view name = text.substr(0, plus);
    bool& flag = name == "Ctrl"    ? chord.has_ctrl
                 : name == "Shift" ? chord.has_shift
                                   : chord.has_alt;
    if ((name != "Ctrl" && name != "Shift" && name != "Alt") || flag) return std::nullopt;
    flag = true;
    text.remove_prefix(plus + 1);
  }
  if (!is_key(text)) return std::nullopt;
  chord.key = std::string(text);
  return chord;
}

std::string to_text(const Chord& chord) {
  std::string text;
  if (chord.has_ctrl) text += "Ctrl+";
  if (chord.has_shift) text += "Shift+";
  if (chord.has_alt) text += "Alt+";
  return text + chord.key;
}

std::vector<Chord> chords_of(const Command& command) {
  std::vector<Chord> chords;
  std::string_view rest = command.shortcuts;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (const std::optional<Chord> chord = parse_chord(rest.substr(0, end)))
      chords.push_back(*chord);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return chords;
}

const Command* find_command(const Chord& chord) {
  for (const Command& command : all_commands()) {
    const std::vector<Chord> chords = chords_of(command);
    if (std::find(chords.begin(), chords.end(), chord) != chords.end()) return &command;
  }
  return nullptr;
}

std::vector<HelpLine> make_help() {
  std::vector<HelpLine> lines;
  for (const Command& command : all_commands())
    lines.push_back({command.menu, command.title, command.shortcuts, command.help});
  return lines;
}

}  // namespace cpscope::gui
