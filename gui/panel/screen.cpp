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
#include <span>
#include <utility>

namespace cpscope::gui {
namespace {

constexpr float kTransportHeight = 44, kCaptionHeight = 98, kLessonHeight = 120, kSideWidth = 292;
constexpr float kQuestionHeight = 24;  // more than for a page without a question
constexpr float kComparisonHeight = 54, kComparedPlanHeight = 22, kLowRow = 170;
/// The views shown when two plans are compared, or more, and the right end of each column.
constexpr std::pair<ViewKind, float> kColumnsOfTwo[] = {{ViewKind::layout, 0.34f},
                                                        {ViewKind::mask, 0.58f},
                                                        {ViewKind::timeline, 0.82f},
                                                        {ViewKind::balance, 1.0f}};
constexpr std::pair<ViewKind, float> kColumnsOfMore[] = {{ViewKind::layout, 0.36f},
                                                         {ViewKind::timeline, 1.0f}};
/// The boxes of the panels, in screen pixels.
struct Places {
  Box transport, tabs, editor, inspector, lesson, caption, comparison, ways;
  std::array<Box, kViewKinds.size()> views{};
  std::array<std::array<Box, kViewKinds.size()>, kMostPinned> pinned{};
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
  // The caption would tell the answer to a question, and takes the room of a row of several plans.
  const bool has_caption = !has_question && ui.state.pinned.size() < 2;
  const float caption = display.height - (has_caption ? ui.px(kCaptionHeight) : 0);
  const float lesson =
      caption - (has_lesson ? ui.px(kLessonHeight + (has_question ? kQuestionHeight : 0)) : 0);
  if (has_caption) places.caption = {0, caption, display.width, display.height};
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
  if (const size_t pinned = ui.state.pinned.size(); pinned > 0) {
    const auto rows = static_cast<float>(pinned + 1);
    const float table = area.y1 - ui.px(kComparisonHeight + kComparedPlanHeight * rows);
    places.comparison = {area.x0, table, area.x1, area.y1};
    const Box plans{area.x0, area.y0, area.x1, table};
    std::span<const std::pair<ViewKind, float>> columns(kColumnsOfTwo);
    if (pinned > 1) columns = kColumnsOfMore;
    // Low rows have room for the steps alone.
    if (pinned > 1 && plans.height() / rows < ui.px(kLowRow)) columns = columns.last(1);
    float left = 0;
    for (const auto& [kind, right] : columns) {
      for (size_t row = 0; row <= pinned; ++row) {
        const Box box = cut(plans, left, right, static_cast<float>(row) / rows,
                            static_cast<float>(row + 1) / rows);
        if (row < pinned)
          places.pinned[row][static_cast<size_t>(kind)] = box;
        else
          set(kind, box);
      }
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

/// The views of one pinned plan, and what is lit in them.
struct PinnedParts {
  explicit PinnedParts(size_t which)
      : views{ViewPanel(ViewKind::layout, which),  ViewPanel(ViewKind::mask, which),
              ViewPanel(ViewKind::traffic, which), ViewPanel(ViewKind::timeline, which),
              ViewPanel(ViewKind::numbers, which), ViewPanel(ViewKind::balance, which)} {}

  std::array<ViewPanel, kViewKinds.size()> views;
  ProjectionMemo selected, hovered;

  bool is_waiting() const {
    return selected.is_waiting() || hovered.is_waiting() ||
           std::any_of(views.begin(), views.end(),
                       [](const ViewPanel& view) { return view.is_waiting(); });
  }
};

struct Screen::Parts {
  bool in_background = false;
  std::array<ViewPanel, kViewKinds.size()> views = {
      ViewPanel(ViewKind::layout),   ViewPanel(ViewKind::mask),    ViewPanel(ViewKind::traffic),
      ViewPanel(ViewKind::timeline), ViewPanel(ViewKind::numbers), ViewPanel(ViewKind::balance)};
  std::array<PinnedParts, kMostPinned> pinned = {PinnedParts(0), PinnedParts(1), PinnedParts(2)};
  WaysPanel ways;
  HitMap hits;
  TypedText typed;
  NarrowTab tab;
  ScenarioMenu menu;
  KeyArea key_area = KeyArea::views;  // of the last frame
  InspectionMemo inspection;
  CaptionMemo caption;
  ProjectionMemo selected, hovered;
  Target last_hovered;

  bool is_waiting() const {
    const auto is_view_waiting = [](const ViewPanel& view) { return view.is_waiting(); };
    return inspection.is_waiting() || selected.is_waiting() || hovered.is_waiting() ||
           std::any_of(views.begin(), views.end(), is_view_waiting) ||
           std::any_of(pinned.begin(), pinned.end(),
                       [](const PinnedParts& parts) { return parts.is_waiting(); });
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
  if (places.comparison.width() > 0) {
    for (size_t which = 0; which < state.pinned.size(); ++which) {
      PinnedParts& pinned = parts_->pinned[which];
      const SharedPlan& plan = state.pinned[which];
      const LitTargets pinned_lit{pinned.selected.find(plan, state.selected(), ui.in_background),
                                  pinned.hovered.find(plan, state.hovered, ui.in_background)};
      for (const ViewKind kind : kViewKinds) {
        const Box& box = places.pinned[which][static_cast<size_t>(kind)];
        if (box.width() > 0) pinned.views[static_cast<size_t>(kind)].build(ui, pinned_lit, box);
      }
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
