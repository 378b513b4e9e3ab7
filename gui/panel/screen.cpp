#include "gui/panel/screen.h"

#include "gui/app/lesson.h"
#include "gui/panel/narrow_panel.h"
#include "gui/panel/panels.h"
#include "gui/panel/splitters.h"
#include "gui/panel/view_panel.h"
#include "gui/panel/ways_panel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr float kTransportHeight = 44, kCaptionHeight = 98, kLessonHeight = 120, kSideWidth = 292;
constexpr float kQuestionHeight = 24;  // more than for a page without a question
constexpr float kComparisonHeight = 128;
/// The views shown when two plans are compared, and the right end of each column.
constexpr std::pair<ViewKind, float> kPinnedColumns[] = {{ViewKind::layout, 0.34f},
                                                         {ViewKind::mask, 0.58f},
                                                         {ViewKind::timeline, 0.82f},
                                                         {ViewKind::balance, 1.0f}};
/// The boxes of the panels, in screen pixels.
struct Places {
  Box transport, tabs, editor, inspector, lesson, caption, comparison, ways;
  std::array<Box, kViewKinds.size()> views{}, pinned{};
  Box area;                    // of all views, where borders can be moved
  bool has_all_views = false;  // beside each other
};

Box cut(const Box& area, float x0, float x1, float y0, float y1) {
  const auto at = [](float lo, float hi, float share) {
    return std::round(lo + (hi - lo) * share);
  };
  return {at(area.x0, area.x1, x0), at(area.y0, area.y1, y0), at(area.x0, area.x1, x1),
          at(area.y0, area.y1, y1)};
}

/// The view that another page embeds, below the steps.
Places place_embedded(const Ui& ui, ViewKind kind, Size display) {
  Places places;
  const float transport = embedded_transport_height(ui, display.width);
  places.transport = {0, 0, display.width, transport};
  places.views[static_cast<size_t>(kind)] = {0, transport, display.width, display.height};
  return places;
}

/// One part at a time between the transport and the text. The text of a lesson takes the place of
/// the caption; both scroll.
Places place_narrow(const Ui& ui, const NarrowTab& tab, Size display, float top) {
  Places places;
  const AppState& state = ui.state;
  const float transport = top + narrow_transport_height(ui, display.width);
  const float tabs = transport + narrow_tabs_height(ui, display.width);
  const float text = std::round(state.lesson.lesson >= 0
                                    ? std::clamp(display.height * 0.3f, ui.px(110), ui.px(260))
                                    : std::clamp(display.height * 0.18f, ui.px(60), ui.px(150)));
  places.transport = {0, top, display.width, transport};
  places.tabs = {0, transport, display.width, tabs};
  (state.lesson.lesson >= 0 ? places.lesson : places.caption) = {0, display.height - text,
                                                                 display.width, display.height};
  const Box area{0, tabs, display.width, display.height - text};
  if (tab.part == NarrowPart::scenario)
    places.editor = area;
  else if (tab.part == NarrowPart::selection)
    places.inspector = area;
  else if (state.shows_ways)
    places.ways = area;
  else
    places.views[static_cast<size_t>(state.focus_view.value_or(ViewKind::layout))] = area;
  return places;
}

Places place_panels(const Ui& ui, Size display, float top) {
  Places places;
  const bool has_lesson = ui.state.lesson.lesson >= 0;
  const Borders& borders = ui.state.borders;
  const float side =
      borders.side > 0 ? std::round(display.width * borders.side) : ui.px(kSideWidth);
  places.transport = {0, top, display.width, top + ui.px(kTransportHeight)};
  const LessonStep* page = current_step(ui.state);
  const bool has_question = page != nullptr && page->question != nullptr;
  // The caption would tell the answer to a question.
  const float caption = display.height - (has_question ? 0 : ui.px(kCaptionHeight));
  const float lesson =
      caption - (has_lesson ? ui.px(kLessonHeight + (has_question ? kQuestionHeight : 0)) : 0);
  if (!has_question) places.caption = {0, caption, display.width, display.height};
  if (has_lesson) places.lesson = {0, lesson, display.width, caption};
  const Box body{0, places.transport.y1, display.width, lesson};
  const float divide = std::round(body.y0 + body.height() * 0.64f);
  places.editor = {0, body.y0, side, divide};
  places.inspector = {0, divide, side, body.y1};
  const Box area{side, body.y0, body.x1, body.y1};
  places.area = area;
  const auto set = [&](ViewKind kind, const Box& box) {
    places.views[static_cast<size_t>(kind)] = box;
  };
  if (ui.state.shows_ways) {
    places.ways = area;
    return places;
  }
  if (ui.state.is_enlarged && ui.state.focus_view) {
    set(*ui.state.focus_view, area);
    return places;
  }
  if (ui.state.pinned) {
    const float middle = std::round((area.y0 + area.y1) / 2), half = ui.px(kComparisonHeight / 2);
    places.comparison = {area.x0, middle - half, area.x1, middle + half};
    const Box above{area.x0, area.y0, area.x1, middle - half};
    const Box below{area.x0, middle + half, area.x1, area.y1};
    float left = 0;
    for (const auto& [kind, right] : kPinnedColumns) {
      places.pinned[static_cast<size_t>(kind)] = cut(above, left, right, 0, 1);
      set(kind, cut(below, left, right, 0, 1));
      left = right;
    }
    return places;
  }
  set(ViewKind::layout, cut(area, 0, borders.top_left, 0, borders.rows));
  set(ViewKind::mask, cut(area, borders.top_left, borders.top_right, 0, borders.rows));
  set(ViewKind::traffic, cut(area, borders.top_right, 1, 0, borders.rows));
  set(ViewKind::timeline, cut(area, 0, borders.bottom_left, borders.rows, 1));
  set(ViewKind::numbers, cut(area, borders.bottom_left, borders.bottom_right, borders.rows, 1));
  set(ViewKind::balance, cut(area, borders.bottom_right, 1, borders.rows, 1));
  places.has_all_views = true;
  return places;
}

/// Gives keys to the panel that AppState::key_area names, when it is a new one. A click gives them
/// back to the views.
void place_keys(Ui& ui, KeyArea& last) {
  AppState& state = ui.state;
  ImGui::GetIO().ConfigFlags |= ImGuiConfigFlags_NavEnableKeyboard;
  if (ImGui::IsMouseClicked(0)) state.key_area = KeyArea::views;
  if (state.key_area == KeyArea::lesson && state.lesson.lesson < 0) state.key_area = KeyArea::views;
  ui.keys_arrive = state.key_area != last;
  if (ui.keys_arrive && state.key_area == KeyArea::views) ImGui::SetWindowFocus(nullptr);
  last = state.key_area;
}

}  // namespace

struct Screen::Parts {
  bool in_background = false;
  std::array<ViewPanel, kViewKinds.size()> views = {
      ViewPanel(ViewKind::layout),   ViewPanel(ViewKind::mask),    ViewPanel(ViewKind::traffic),
      ViewPanel(ViewKind::timeline), ViewPanel(ViewKind::numbers), ViewPanel(ViewKind::balance)};
  std::array<ViewPanel, kViewKinds.size()> pinned = {
      ViewPanel(ViewKind::layout, true),  ViewPanel(ViewKind::mask, true),
      ViewPanel(ViewKind::traffic, true), ViewPanel(ViewKind::timeline, true),
      ViewPanel(ViewKind::numbers, true), ViewPanel(ViewKind::balance, true)};
  WaysPanel ways;
  HitMap hits;
  TypedText typed;
  NarrowTab tab;
  ScenarioMenu menu;
  KeyArea key_area = KeyArea::views;  // of the last frame
  InspectionMemo inspection;
  CaptionMemo caption;
  ProjectionMemo selected, hovered, pinned_selected, pinned_hovered;
  Target last_hovered;

  bool is_waiting() const {
    const auto is_view_waiting = [](const ViewPanel& view) { return view.is_waiting(); };
    return inspection.is_waiting() || selected.is_waiting() || hovered.is_waiting() ||
           pinned_selected.is_waiting() || pinned_hovered.is_waiting() ||
           std::any_of(views.begin(), views.end(), is_view_waiting) ||
           std::any_of(pinned.begin(), pinned.end(), is_view_waiting);
  }
  int32_t unsettled = 3;  // frames left until sizes and hovers of the last frame are stable
};

Screen::Screen(bool in_background) : parts_(std::make_unique<Parts>()) {
  parts_->in_background = in_background;
}
Screen::~Screen() = default;

const HitMap& Screen::hits() const { return parts_->hits; }

bool Screen::is_waiting() const { return parts_->is_waiting(); }

bool Screen::is_busy(const AppState& state) const {
  return parts_->unsettled > 0 || parts_->is_waiting() || state.player.is_playing ||
         state.document.is_planning() || is_working(state) || state.comparison.task.is_running() ||
         state.prediction.task.is_running() || state.ways.task.is_running();
}

void Screen::build(AppState& state, const Fonts& fonts, Textures& textures, double now_s) {
  update(state, now_s);
  parts_->hits.clear();
  const Theme& theme = theme_of(state.theme);
  Ui ui{state, fonts, textures, parts_->hits, theme, parts_->in_background};
  apply_style(theme, fonts.scale);
  const WithFont font(ui, Face::body, kTextSize);
  place_keys(ui, parts_->key_area);
  const Target before = state.hovered;
  const int64_t way_before = state.ways.hovered;
  answer_keys(ui);
  if (!state.only_view) build_menu_bar(ui, parts_->menu);
  const ImVec2 display = ImGui::GetIO().DisplaySize;
  const Size size{display.x, display.y};
  const bool narrow = is_narrow(ui, display.x);
  if (narrow) parts_->tab.follow(state);
  const Places places = state.only_view ? place_embedded(ui, *state.only_view, size)
                        : narrow ? place_narrow(ui, parts_->tab, size, ImGui::GetFrameHeight())
                                 : place_panels(ui, size, ImGui::GetFrameHeight());
  build_transport(ui, places.transport);
  if (places.tabs.width() > 0) build_narrow_tabs(ui, places.tabs, parts_->tab);
  if (places.editor.width() > 0) build_editor(ui, places.editor, parts_->typed);
  if (places.inspector.width() > 0) build_inspector(ui, places.inspector, parts_->inspection);
  const LitTargets lit{
      parts_->selected.find(state.document.plan(), state.selected(), ui.in_background),
      parts_->hovered.find(state.document.plan(), state.hovered, ui.in_background)};
  for (const ViewKind kind : kViewKinds) {
    const Box& box = places.views[static_cast<size_t>(kind)];
    if (box.width() > 0) parts_->views[static_cast<size_t>(kind)].build(ui, lit, box);
  }
  if (state.pinned && places.comparison.width() > 0) {
    const LitTargets pinned_lit{
        parts_->pinned_selected.find(state.pinned, state.selected(), ui.in_background),
        parts_->pinned_hovered.find(state.pinned, state.hovered, ui.in_background)};
    for (const ViewKind kind : kViewKinds) {
      const Box& box = places.pinned[static_cast<size_t>(kind)];
      if (box.width() > 0) parts_->pinned[static_cast<size_t>(kind)].build(ui, pinned_lit, box);
    }
    build_comparison(ui, places.comparison);
  }
  if (places.ways.width() > 0) parts_->ways.build(ui, places.ways);
  if (places.lesson.width() > 0) build_lesson(ui, places.lesson);
  if (places.caption.width() > 0) build_caption(ui, places.caption, parts_->caption);
  if (places.area.width() > 0 && state.dialog == Dialog::none)
    build_splitters(ui, places.area, places.has_all_views);
  build_dialog(ui, size, parts_->typed);
  build_messages(ui, size);
  if (const std::string text = std::exchange(state.for_clipboard, ""); !text.empty())
    ImGui::SetClipboardText(text.c_str());
  state.hovered = ui.hovered;
  textures.end_frame();
  parts_->unsettled = state.hovered == before && state.ways.hovered == way_before
                          ? std::max(0, parts_->unsettled - 1)
                          : 2;
}

}  // namespace cpscope::gui
