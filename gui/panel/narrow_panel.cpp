#include "gui/panel/narrow_panel.h"

#include "gui/app/command.h"

#include <array>
#include <string>
#include <string_view>

namespace cpscope::gui {
namespace {

/// In logical pixels.
constexpr float kNarrowScreen = 900, kTrackInRow = 560;

struct TabLabel {
  std::string_view name, title;
};

/// The views in the order of ViewKind, then the parts that are no views.
constexpr std::array kTabs = {TabLabel{"layout", "Layout"},     TabLabel{"mask", "Mask"},
                              TabLabel{"traffic", "Traffic"},   TabLabel{"timeline", "Timeline"},
                              TabLabel{"numbers", "Numbers"},   TabLabel{"balance", "Balance"},
                              TabLabel{"scenario", "Scenario"}, TabLabel{"selection", "Selection"}};

float tab_width(std::string_view title) {
  return ImGui::CalcTextSize(title.data(), title.data() + title.size()).x +
         2 * ImGui::GetStyle().FramePadding.x;
}

float height_of_rows(int32_t rows) {
  const ImGuiStyle& style = ImGui::GetStyle();
  return 2 * style.WindowPadding.y + static_cast<float>(rows) * ImGui::GetFrameHeight() +
         static_cast<float>(rows - 1) * style.ItemSpacing.y;
}

}  // namespace

bool is_narrow(const Ui& ui, float width) { return width < ui.px(kNarrowScreen); }

bool has_track_row(const Ui& ui, float width) { return width < ui.px(kTrackInRow); }

void NarrowTab::follow(const AppState& state) {
  if (state.focus_view != last_focus) part = NarrowPart::view;
  last_focus = state.focus_view;
}

float narrow_transport_height(const Ui& ui, float width) {
  return height_of_rows(has_track_row(ui, width) ? 3 : 2);
}

float embedded_transport_height(const Ui& ui, float width) {
  return height_of_rows(has_track_row(ui, width) ? 2 : 1);
}

bool can_swipe(const AppState& state) {
  const ViewKind shown = state.focus_view.value_or(ViewKind::layout);
  return state.dialog == Dialog::none && !state.shows_ways && !state.only_view &&
         state.camera(shown).x == AxisSpan{};
}

void swipe(AppState& state, int32_t direction) {
  constexpr auto kCount = static_cast<int32_t>(kViewKinds.size());
  const auto shown = static_cast<int32_t>(state.focus_view.value_or(ViewKind::layout));
  const auto next = static_cast<size_t>((shown + direction + kCount) % kCount);
  apply_command(state, "view.focus." + std::string(to_name(kViewKinds[next])));
}

float narrow_tabs_height(const Ui& ui, float width) {
  (void)ui;
  const ImGuiStyle& style = ImGui::GetStyle();
  const float room = width - 2 * style.WindowPadding.x;
  float used = 0;
  int32_t rows = 1;
  for (const TabLabel& tab : kTabs) {
    const float wide = tab_width(tab.title) + (used > 0 ? style.ItemSpacing.x : 0);
    if (used > 0 && used + wide > room) {
      ++rows;
      used = tab_width(tab.title);
    } else {
      used += wide;
    }
  }
  return height_of_rows(rows);
}

void build_narrow_tabs(Ui& ui, const Box& box, NarrowTab& tab) {
  if (begin_panel(ui, "tabs", box)) {
    AppState& state = ui.state;
    const ViewKind shown = state.focus_view.value_or(ViewKind::layout);
    const float room = ImGui::GetContentRegionAvail().x;
    float used = 0;
    for (size_t n = 0; n < kTabs.size(); ++n) {
      const float wide = tab_width(kTabs[n].title) + ImGui::GetStyle().ItemSpacing.x;
      if (used > 0 && used + tab_width(kTabs[n].title) <= room)
        ImGui::SameLine();
      else
        used = 0;
      used += wide;
      const NarrowPart part = n < kViewKinds.size()    ? NarrowPart::view
                              : n == kViewKinds.size() ? NarrowPart::scenario
                                                       : NarrowPart::selection;
      const bool is_shown =
          tab.part == part &&
          (part != NarrowPart::view || (static_cast<size_t>(shown) == n && !state.shows_ways));
      const std::string name(kTabs[n].name);
      if (pressed_button(ui, "tab/" + name, std::string(kTabs[n].title), is_shown)) {
        if (part == NarrowPart::view) apply_command(state, "view.focus." + name);
        tab.part = part;
        tab.last_focus = state.focus_view;
      }
    }
  }
  end_panel();
}

}  // namespace cpscope::gui
