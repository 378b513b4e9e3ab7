#include "gui/panel/ui.h"

#include "gui/app/command.h"
#include "gui/model/axis.h"
#include "gui/model/legend.h"
#include "gui/panel/imgui_compat.h"

#include <algorithm>
#include <cmath>

namespace cpscope::gui {
namespace {

/// The next word, including the blank after it.
std::string_view next_word(std::string_view text) {
  const size_t blank = find_line_break(text);
  return blank == std::string_view::npos ? text : text.substr(0, blank + 1);
}

void show_word(const Ui& ui, std::string_view word, Color color) {
  ImGui::PushStyleColor(ImGuiCol_Text, vector_of(color));
  ImGui::TextUnformatted(word.data(), word.data() + word.size());
  ImGui::PopStyleColor();
  (void)ui;
}

constexpr float kTipWidth = 420;

/// The text in lines of at most this many screen pixels. Dear ImGui would break numbers, too.
std::string break_lines(std::string_view text, float width) {
  std::string lines;
  float used = 0;
  while (!text.empty()) {
    const std::string_view word = next_word(text);
    text.remove_prefix(word.size());
    const float wide = ImGui::CalcTextSize(word.data(), word.data() + word.size()).x;
    if (used > 0 && used + wide > width) {
      lines += '\n';
      used = 0;
    }
    lines += word;
    const size_t newline = word.rfind('\n');
    used = newline == std::string_view::npos
               ? used + wide
               : ImGui::CalcTextSize(word.data() + newline + 1, word.data() + word.size()).x;
  }
  return lines;
}

}  // namespace

float Ui::px(float logical) const { return std::round(logical * fonts.scale); }

ImVec4 vector_of(Color c) {
  return {static_cast<float>(c.r) / 255.0f, static_cast<float>(c.g) / 255.0f,
          static_cast<float>(c.b) / 255.0f, static_cast<float>(c.a) / 255.0f};
}

ImU32 color_of(const Ui& ui, Role role) {
  const Color c = ui.theme.of(role);
  return IM_COL32(c.r, c.g, c.b, c.a);
}

void apply_style(const Theme& theme, float scale) {
  ImGuiStyle style;
  const Color panel = theme.of(Role::panel), raised = theme.of(Role::raised);
  const Color accent = theme.of(Role::accent), text = theme.of(Role::text);
  const auto set = [&style](ImGuiCol index, Color color) {
    style.Colors[index] = vector_of(color);
  };
  if (theme.is_dark()) {
    ImGui::StyleColorsDark(&style);
  } else {
    ImGui::StyleColorsLight(&style);
  }
  set(ImGuiCol_Text, text);
  set(ImGuiCol_TextDisabled, mix(theme.of(Role::faint_text), panel, 0.35f));
  set(ImGuiCol_WindowBg, panel);
  set(ImGuiCol_ChildBg, panel.with_alpha(0));
  set(ImGuiCol_PopupBg, panel);
  set(ImGuiCol_MenuBarBg, theme.of(Role::background));
  set(ImGuiCol_Border, theme.of(Role::border));
  for (const ImGuiCol index : {ImGuiCol_FrameBg, ImGuiCol_Button, ImGuiCol_Header})
    set(index, raised);
  for (const ImGuiCol index :
       {ImGuiCol_FrameBgHovered, ImGuiCol_ButtonHovered, ImGuiCol_HeaderHovered})
    set(index, mix(raised, accent, 0.3f));
  for (const ImGuiCol index :
       {ImGuiCol_FrameBgActive, ImGuiCol_ButtonActive, ImGuiCol_HeaderActive})
    set(index, mix(raised, accent, 0.5f));
  for (const ImGuiCol index : {ImGuiCol_SliderGrab, ImGuiCol_SliderGrabActive, ImGuiCol_CheckMark,
                               ImGuiCol_PlotHistogram, ImGuiCol_NavHighlight})
    set(index, accent);
  set(ImGuiCol_TextSelectedBg, mix(panel, accent, 0.4f));
  set(ImGuiCol_ScrollbarBg, panel.with_alpha(0));
  set(ImGuiCol_ScrollbarGrab, raised);
  set(ImGuiCol_ScrollbarGrabHovered, mix(raised, text, 0.3f));
  set(ImGuiCol_ScrollbarGrabActive, mix(raised, text, 0.4f));
  style.WindowRounding = 0;
  style.FrameRounding = 4;
  style.GrabRounding = 4;
  style.PopupRounding = 4;
  style.WindowBorderSize = 1;
  style.FrameBorderSize = theme.is_dark() ? 0.0f : 1.0f;
  style.WindowPadding = {10, 8};
  style.FramePadding = {7, 3};
  style.ItemSpacing = {7, 5};
  style.ScrollbarSize = 11;
  style.AntiAliasedLinesUseTex = false;
  style.ScaleAllSizes(scale);
  ImGui::GetStyle() = style;
}

WithFont::WithFont(const Ui& ui, Face face, float size) {
  ImGui::PushFont(ui.fonts.find(face, size).font);
}
WithFont::~WithFont() { ImGui::PopFont(); }

void name_item(Ui& ui, std::string name) {
  const ImVec2 lo = ImGui::GetItemRectMin(), hi = ImGui::GetItemRectMax();
  ui.hits.add(std::move(name), {lo.x, lo.y, hi.x, hi.y});
}

void show_text(const Ui& ui, std::string_view text, Role role) {
  show_word(ui, text, ui.theme.of(role));
}

void show_wrapped(const Ui& ui, std::string_view text, Role role) {
  // A word that is longer than a line is still broken.
  ImGui::PushTextWrapPos(0.0f);
  show_text(ui, break_lines(text, ImGui::GetContentRegionAvail().x), role);
  ImGui::PopTextWrapPos();
}

void show_tip(const Ui& ui, std::string_view text) {
  if (text.empty() || !ImGui::IsItemHovered(ImGuiHoveredFlags_AllowWhenDisabled)) return;
  ImGui::BeginTooltip();
  const std::string lines = break_lines(text, ui.px(kTipWidth));
  ImGui::PushTextWrapPos(ui.px(kTipWidth + 4));
  ImGui::TextUnformatted(lines.data(), lines.data() + lines.size());
  ImGui::PopTextWrapPos();
  ImGui::EndTooltip();
}

bool command_button(Ui& ui, std::string_view id, std::string_view label, bool is_pressed) {
  const Command* command = find_command(id);
  if (command == nullptr) return false;
  const bool is_enabled = command->is_enabled(ui.state);
  const std::string shown(label.empty() ? command->title : label);
  ImGui::BeginDisabled(!is_enabled);
  const bool is_clicked = pressed_button(ui, std::string(id), shown, is_pressed);
  ImGui::EndDisabled();
  std::string tip(command->help);
  if (!command->shortcuts.empty()) tip += "  [" + std::string(command->shortcuts) + "]";
  show_tip(ui, tip);
  return is_clicked && apply_command(ui.state, id);
}

bool menu_item(const std::string& label, std::string_view shortcut, bool is_chosen,
               bool is_enabled) {
  const bool is_clicked =
      ImGui::MenuItem(label.c_str(), std::string(shortcut).c_str(), is_chosen, is_enabled);
  if (is_clicked || !is_enabled || !compat::is_item_entered()) return is_clicked;
  ImGui::CloseCurrentPopup();
  return true;
}

bool pressed_button(Ui& ui, const std::string& name, const std::string& label, bool is_pressed) {
  if (is_pressed) {
    ImGui::PushStyleColor(ImGuiCol_Button, color_of(ui, Role::accent));
    const Color on = ui.theme.text_on(ui.theme.of(Role::accent));
    ImGui::PushStyleColor(ImGuiCol_Text, vector_of(on));
  }
  const bool is_clicked = ImGui::Button((label + "##" + name).c_str()) || compat::is_item_entered();
  if (is_pressed) ImGui::PopStyleColor(2);
  name_item(ui, name);
  return is_clicked;
}

bool named_button(Ui& ui, const std::string& name, const std::string& label, bool is_enabled) {
  ImGui::BeginDisabled(!is_enabled);
  const bool is_clicked =
      ImGui::Button((label + "##" + name).c_str()) || (is_enabled && compat::is_item_entered());
  ImGui::EndDisabled();
  name_item(ui, name);
  return is_clicked;
}

void flow_spans(Ui& ui, const Spans& spans, float width, std::string_view name) {
  const float left = ImGui::GetCursorPosX();
  float used = 0;
  bool is_first = true;
  for (size_t n = 0; n < spans.size(); ++n) {
    const Span& span = spans[n];
    const bool is_link = !std::holds_alternative<Nothing>(span.target);
    const bool is_lit = is_link && span.target == ui.state.hovered;
    const WithFont font(ui, span.is_strong ? Face::strong : Face::body, kTextSize);
    std::string_view rest = span.text;
    for (int part = 0; !rest.empty(); ++part) {
      const std::string_view word = next_word(rest);
      rest.remove_prefix(word.size());
      const float wide = ImGui::CalcTextSize(word.data(), word.data() + word.size()).x;
      // Nor with the comma after a link.
      const bool is_closing = word.find_first_of(",.;:)") == 0;
      const bool breaks = used > 0 && used + wide > width && !is_closing;
      // A line never begins with the blank between two sentences.
      if (breaks && word == " ") continue;
      if (!is_first && !breaks) ImGui::SameLine(0, 0);
      if (breaks) used = 0;
      if (breaks) ImGui::SetCursorPosX(left);
      is_first = false;
      used += wide;
      show_word(ui, word, ui.theme.of(is_link ? Role::accent : Role::text));
      if (!is_link) continue;
      const ImVec2 lo = ImGui::GetItemRectMin(), hi = ImGui::GetItemRectMax();
      if (part == 0) name_item(ui, std::string(name) + "/" + std::to_string(n));
      if (is_lit) {
        ImGui::GetWindowDrawList()->AddLine({lo.x, hi.y - 1}, {hi.x, hi.y - 1},
                                            color_of(ui, Role::accent), ui.px(1));
      }
      if (!ImGui::IsItemHovered()) continue;
      ui.hovered = span.target;
      ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
      if (ImGui::IsMouseClicked(0)) select(ui.state, span.target);
    }
  }
}

bool begin_panel(Ui& ui, const char* id, const Box& box, bool scrolls) {
  ImGui::SetNextWindowPos({box.x0, box.y0});
  ImGui::SetNextWindowSize({std::max(1.0f, box.width()), std::max(1.0f, box.height())});
  ImGuiWindowFlags flags = ImGuiWindowFlags_NoTitleBar | ImGuiWindowFlags_NoResize |
                           ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoCollapse |
                           ImGuiWindowFlags_NoSavedSettings |
                           ImGuiWindowFlags_NoBringToFrontOnFocus;
  const bool navigates = has_keys(ui.state, id);
  if (!navigates) flags |= ImGuiWindowFlags_NoNav;
  if (!scrolls) flags |= ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse;
  ui.hits.add(id, box);
  const bool is_shown = ImGui::Begin(id, nullptr, flags);
  if (navigates && ui.keys_arrive) compat::give_keys_to_window();
  return is_shown;
}

bool has_keys(const AppState& state, std::string_view panel) {
  return (panel == "editor" && state.key_area == KeyArea::scenario) ||
         (panel == "lesson" && state.key_area == KeyArea::lesson);
}

void end_panel() { ImGui::End(); }

void panel_heading(Ui& ui, std::string_view title, std::string_view question, float taken) {
  {
    const WithFont font(ui, Face::strong, kTextSize);
    show_text(ui, title);
  }
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
  const float room = right - ImGui::GetItemRectMax().x - ImGui::GetStyle().ItemSpacing.x - taken;
  float width = 0;
  {
    const WithFont font(ui, Face::body, kSmallSize);
    width = ImGui::CalcTextSize(question.data(), question.data() + question.size()).x;
  }
  if (width >= room) return show_tip(ui, question);
  ImGui::SameLine();
  const WithFont font(ui, Face::body, kSmallSize);
  show_text(ui, question, Role::faint_text);
}

}  // namespace cpscope::gui
