#include "gui/app/command.h"
#include "gui/panel/imgui_compat.h"
#include "gui/panel/panels.h"

#include <optional>
#include <string>

namespace cpscope::gui {
namespace {

struct NamedKey {
  const char* name;
  compat::Key key;
};

constexpr NamedKey kNamed[] = {
    {"Space", compat::Key::space},    {"Tab", compat::Key::tab},
    {"Esc", compat::Key::escape},     {"Enter", compat::Key::enter},
    {"Left", compat::Key::left},      {"Right", compat::Key::right},
    {"Up", compat::Key::up},          {"Down", compat::Key::down},
    {"Home", compat::Key::home},      {"End", compat::Key::end},
    {"PageUp", compat::Key::page_up}, {"PageDown", compat::Key::page_down},
    {"Delete", compat::Key::remove},  {",", compat::Key::comma},
    {".", compat::Key::period},       {"[", compat::Key::left_bracket},
    {"]", compat::Key::right_bracket}};

/// Characters whose key depends on the keyboard layout are read as text.
bool is_character(const std::string& key) {
  return key == "?" || key == "+" || key == "-" || key == "=" || key == "/";
}

std::optional<compat::Key> key_of(const std::string& name) {
  if (name.size() == 1 &&
      ((name[0] >= 'A' && name[0] <= 'Z') || (name[0] >= '0' && name[0] <= '9')))
    return compat::key_of(name[0]);
  if (name.size() >= 2 && name[0] == 'F' && name[1] >= '0' && name[1] <= '9')
    return compat::function_key(std::stoi(name.substr(1)));
  for (const NamedKey& named : kNamed)
    if (name == named.name) return named.key;
  return std::nullopt;
}

bool is_function_key(const std::string& key) { return key.size() >= 2 && key[0] == 'F'; }

bool was_typed(const ImGuiIO& io, char character) {
  for (const ImWchar typed : io.InputQueueCharacters)
    if (typed == static_cast<ImWchar>(character)) return true;
  return false;
}

bool is_pressed(const Chord& chord) {
  const ImGuiIO& io = ImGui::GetIO();
  if (is_character(chord.key)) return was_typed(io, chord.key[0]) && !io.KeyCtrl && !io.KeyAlt;
  const auto key = key_of(chord.key);
  return key && io.KeyCtrl == chord.has_ctrl && io.KeyShift == chord.has_shift &&
         io.KeyAlt == chord.has_alt && compat::is_key_pressed(*key, true);
}

}  // namespace

void answer_keys(Ui& ui) {
  // A dialog gets all keys except the one that closes it.
  if (ui.state.dialog != Dialog::none) {
    if (is_pressed({.key = "Esc"})) apply_command(ui.state, "select.clear");
    return;
  }
  // So does an open menu or list, which closes itself.
  constexpr ImGuiPopupFlags kAny = ImGuiPopupFlags_AnyPopupId | ImGuiPopupFlags_AnyPopupLevel;
  if (ImGui::IsPopupOpen("", kAny)) return;
  const bool types = ImGui::GetIO().WantTextInput;
  // The keys of a panel with fields are its own, except those with Ctrl or Alt and function keys.
  const bool has_fields = ui.state.key_area != KeyArea::views;
  for (const Command& command : all_commands()) {
    for (const Chord& chord : chords_of(command)) {
      // While the user types, text fields get all keys except Esc and those Ctrl shortcuts that
      // they do not use.
      const bool is_editing = chord.key == "A" || chord.key == "C" || chord.key == "V" ||
                              chord.key == "X" || chord.key == "Y" || chord.key == "Z";
      if (types && chord.key != "Esc" && (!chord.has_ctrl || is_editing)) continue;
      const bool is_plain = !chord.has_ctrl && !chord.has_alt && !is_function_key(chord.key);
      if (has_fields && is_plain && chord.key != "Esc") continue;
      if (!is_pressed(chord)) continue;
      apply_command(ui.state, command.id);
      return;
    }
  }
}

}  // namespace cpscope::gui
