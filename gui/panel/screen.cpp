#include "gui/panel/screen.h"

#include "gui/panel/panels.h"
#include "gui/panel/view_panel.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cpscope::gui {
namespace {

constexpr float kMenuHeight = 24, kTransportHeight = 44, kCaptionHeight = 98, kLessonHeight = 120,
                kSideWidth = 292;
/// Below this width the side panels would leave no room for the picture.
constexpr float kNarrow = 900;

/// Where the panels lie, in screen pixels.
struct Places {
  Box transport, editor, inspector, lesson, caption;
  std::array<Box, kViewKinds.size()> views{};
};

Box cut(const Box& area, float x0, float x1, float y0, float y1) {
  const auto at = [](float lo, float hi, float share) {
    return std::round(lo + (hi - lo) * share);
  };
  return {at(area.x0, area.x1, x0), at(area.y0, area.y1, y0), at(area.x0, area.x1, x1),
          at(area.y0, area.y1, y1)};
}

Places place_panels(const Ui& ui, Size display, float top) {
  Places places;
  const bool has_side = display.width >= ui.px(kNarrow);
  const bool has_lesson = ui.state.lesson.lesson >= 0;
  const float side = has_side ? ui.px(kSideWidth) : 0;
  places.transport = {0, top, display.width, top + ui.px(kTransportHeight)};
  const float caption = display.height - ui.px(kCaptionHeight);
  const float lesson = caption - (has_lesson ? ui.px(kLessonHeight) : 0);
  places.caption = {0, caption, display.width, display.height};
  places.lesson = {0, lesson, display.width, caption};
  const Box body{0, places.transport.y1, display.width, lesson};
  const float divide = std::round(body.y0 + body.height() * 0.64f);
  places.editor = {0, body.y0, side, divide};
  places.inspector = {0, divide, side, body.y1};
  const Box area{side, body.y0, body.x1, body.y1};
  const auto set = [&](ViewKind kind, const Box& box) {
    places.views[static_cast<size_t>(kind)] = box;
  };
  if (ui.state.is_enlarged && ui.state.focus_view) {
    set(*ui.state.focus_view, area);
    return places;
  }
  set(ViewKind::layout, cut(area, 0, 0.40f, 0, 0.56f));
  set(ViewKind::mask, cut(area, 0.40f, 0.71f, 0, 0.56f));
  set(ViewKind::traffic, cut(area, 0.71f, 1, 0, 0.56f));
  set(ViewKind::timeline, cut(area, 0, 0.46f, 0.56f, 1));
  set(ViewKind::numbers, cut(area, 0.46f, 0.74f, 0.56f, 1));
  set(ViewKind::balance, cut(area, 0.74f, 1, 0.56f, 1));
  return places;
}

}  // namespace

struct Screen::Parts {
  std::array<ViewPanel, kViewKinds.size()> views = {
      ViewPanel(ViewKind::layout),   ViewPanel(ViewKind::mask),    ViewPanel(ViewKind::traffic),
      ViewPanel(ViewKind::timeline), ViewPanel(ViewKind::numbers), ViewPanel(ViewKind::balance)};
  HitMap hits;
  TypedText typed;
  Target last_hovered;
  int32_t unsettled = 3;  // frames until sizes and hovers that depend on the last frame are still
};

Screen::Screen() : parts_(std::make_unique<Parts>()) {}
Screen::~Screen() = default;

const HitMap& Screen::hits() const { return parts_->hits; }

bool Screen::is_busy(const AppState& state) const {
  return parts_->unsettled > 0 || state.player.is_playing || state.document.is_planning() ||
         state.job.task.is_running();
}

void Screen::build(AppState& state, const Fonts& fonts, Textures& textures, double now_s) {
  update(state, now_s);
  parts_->hits.clear();
  const Theme& theme = theme_of(state.theme);
  Ui ui{state, fonts, textures, parts_->hits, theme};
  apply_style(theme, fonts.scale);
  const WithFont font(ui, Face::body, kTextSize);
  const Target before = state.hovered;
  answer_keys(ui);
  build_menu_bar(ui);
  const ImVec2 display = ImGui::GetIO().DisplaySize;
  const Size size{display.x, display.y};
  const Places places = place_panels(ui, size, ImGui::GetFrameHeight());
  build_transport(ui, places.transport);
  if (places.editor.width() > 0) {
    build_editor(ui, places.editor, parts_->typed);
    build_inspector(ui, places.inspector);
  }
  const Projections lit = project_all(state);
  for (const ViewKind kind : kViewKinds) {
    const Box& box = places.views[static_cast<size_t>(kind)];
    if (box.width() > 0) parts_->views[static_cast<size_t>(kind)].build(ui, lit, box);
  }
  if (state.lesson.lesson >= 0) build_lesson(ui, places.lesson);
  build_caption(ui, places.caption);
  build_dialog(ui, size, parts_->typed);
  build_messages(ui, size);
  state.hovered = ui.hovered;
  textures.end_frame();
  parts_->unsettled = state.hovered == before ? std::max(0, parts_->unsettled - 1) : 2;
}

}  // namespace cpscope::gui
