#include "gui/panel/splitters.h"

#include <algorithm>
#include <string>

namespace cpscope::gui {
namespace {

/// In logical pixels.
constexpr float kHandle = 8;

/// A border that a drag moves: a share of the area, between two others.
struct Border {
  const char* name;
  float Borders::*value;
  bool is_vertical;        // a vertical line, moved to the sides
  float lo = 0, hi = 1;    // limits of the share
  float from = 0, to = 1;  // the part of the other axis that it spans, in shares
  float usual = 0;         // where it stands if the value is 0
};

void build_handle(Ui& ui, const Border& border, const Box& area) {
  const float half = ui.px(kHandle / 2);
  float& value = ui.state.borders.*border.value;
  const float share = value > 0 ? value : border.usual;
  const float at =
      border.is_vertical ? area.x0 + area.width() * share : area.y0 + area.height() * share;
  const Box box = border.is_vertical ? Box{at - half, area.y0 + area.height() * border.from,
                                           at + half, area.y0 + area.height() * border.to}
                                     : Box{area.x0, at - half, area.x1, at + half};
  const std::string name = "border/" + std::string(border.name);
  ImGui::SetNextWindowPos({box.x0, box.y0});
  ImGui::SetNextWindowSize({box.width(), box.height()});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, ImVec2(0, 0));
  ImGui::PushStyleVar(ImGuiStyleVar_WindowMinSize, ImVec2(1, 1));
  ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 0);
  ImGui::Begin(name.c_str(), nullptr,
               ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoNav |
                   ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoBackground |
                   ImGuiWindowFlags_NoFocusOnAppearing);
  ImGui::PopStyleVar(3);
  ImGui::InvisibleButton(name.c_str(), {box.width(), box.height()});
  name_item(ui, name);
  const bool is_held = ImGui::IsItemActive();
  if (ImGui::IsItemHovered() || is_held) {
    ImGui::SetMouseCursor(border.is_vertical ? ImGuiMouseCursor_ResizeEW
                                             : ImGuiMouseCursor_ResizeNS);
    ImGui::GetWindowDrawList()->AddRectFilled(
        {border.is_vertical ? at - ui.px(1) : box.x0, border.is_vertical ? box.y0 : at - ui.px(1)},
        {border.is_vertical ? at + ui.px(1) : box.x1, border.is_vertical ? box.y1 : at + ui.px(1)},
        color_of(ui, Role::accent));
  }
  if (ImGui::IsItemHovered() && ImGui::IsMouseDoubleClicked(0)) {
    ui.state.borders = {};
  } else if (is_held && ImGui::IsMouseDragging(0, 2)) {
    const ImVec2 mouse = ImGui::GetIO().MousePos;
    const float wanted = border.is_vertical ? (mouse.x - area.x0) / std::max(1.0f, area.width())
                                            : (mouse.y - area.y0) / std::max(1.0f, area.height());
    value = std::clamp(wanted, border.lo, border.hi);
  }
  ImGui::End();
}

}  // namespace

void build_splitters(Ui& ui, const Box& area, bool has_views) {
  constexpr float kLeast = Borders::kLeast;
  const Borders& now = ui.state.borders;
  const Box whole{0, area.y0, ImGui::GetIO().DisplaySize.x, area.y1};
  build_handle(ui, {"side", &Borders::side, true, 0.1f, 0.5f, 0, 1, area.x0 / whole.width()},
               whole);
  if (!has_views) return;
  build_handle(ui, {"rows", &Borders::rows, false, kLeast, 1 - kLeast, 0, 1}, area);
  build_handle(ui,
               {"top_left", &Borders::top_left, true, kLeast, now.top_right - kLeast, 0, now.rows},
               area);
  build_handle(
      ui, {"top_right", &Borders::top_right, true, now.top_left + kLeast, 1 - kLeast, 0, now.rows},
      area);
  build_handle(
      ui,
      {"bottom_left", &Borders::bottom_left, true, kLeast, now.bottom_right - kLeast, now.rows, 1},
      area);
  build_handle(ui,
               {"bottom_right", &Borders::bottom_right, true, now.bottom_left + kLeast, 1 - kLeast,
                now.rows, 1},
               area);
}

}  // namespace cpscope::gui
