#include "gui/panel/context_menu.h"

#include "gui/app/command.h"

#include <array>
#include <string>
#include <string_view>

namespace cpscope::gui {
namespace {

constexpr const char* kPopup = "context";
/// Commands in order; "" is a line.
constexpr std::array<std::string_view, 8> kEntries = {
    "edit.copy",    "edit.copy_command", "edit.copy_scenario", "",
    "view.enlarge", "view.frame",        "view.whole",         "file.export"};

}  // namespace

void open_context_menu() { ImGui::OpenPopup(kPopup); }

void build_context_menu(Ui& ui) {
  if (!ImGui::BeginPopup(kPopup)) return;
  for (const std::string_view id : kEntries) {
    if (id.empty()) {
      ImGui::Separator();
      continue;
    }
    const Command& command = *find_command(id);
    if (menu_item(std::string(command.title), command.shortcuts, false,
                  command.is_enabled(ui.state)))
      apply_command(ui.state, id);
    name_item(ui, "context/" + std::string(id));
    show_tip(ui, command.help);
  }
  ImGui::EndPopup();
}

}  // namespace cpscope::gui
