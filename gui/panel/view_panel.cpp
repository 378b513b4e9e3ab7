#include "gui/panel/view_panel.h"

#include "gui/app/command.h"
#include "gui/app/document/compare.h"
#include "gui/app/document/make_view.h"
#include "gui/app/move_tokens.h"
#include "gui/model/axis.h"
#include "gui/model/layout/first_layout.h"
#include "gui/model/legend.h"
#include "gui/panel/context_menu.h"
#include "gui/panel/paint.h"
#include "gui/panel/view_buttons.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::gui {
namespace {

struct Heading {
  std::string_view title, question;
};

/// The question that each panel answers, in one line.
Heading heading_of(ViewKind kind) {
  switch (kind) {
    case ViewKind::layout:
      return {"1 Layout", "which rank owns which tokens, in which local rows?"};
    case ViewKind::mask:
      return {"2 Mask", "which pairs are computed, by whom, and when?"};
    case ViewKind::traffic:
      return {"3 Traffic", "which bytes move from rank to rank?"};
    case ViewKind::timeline:
      return {"4 Timeline", "what does each rank do in each step?"};
    case ViewKind::numbers:
      return {"5 Numbers", "where do results differ from the exact ones?"};
    case ViewKind::balance:
      return {"6 Balance", "how evenly is the work spread?"};
  }
  return {};
}

const HitGrid* grid_at(const View& view, Point at) {
  for (auto it = view.grids.rbegin(); it != view.grids.rend(); ++it)
    if (it->box.contains(at)) return &*it;
  return nullptr;
}

/// Whole units [first, last) covered by the pixel at `at`.
std::pair<int64_t, int64_t> units_at(double lo, double hi, float begin, float end, float at,
                                     int64_t count) {
  const double per_pixel = (hi - lo) / std::max(1.0f, end - begin);
  const double value = lo + (at - begin) * per_pixel;
  const auto first = std::clamp<int64_t>(static_cast<int64_t>(std::floor(value)), 0,
                                         std::max<int64_t>(0, count - 1));
  const auto last = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(value + per_pixel)),
                                        first + 1, std::max<int64_t>(first + 1, count));
  return {first, last};
}

Target target_in_grid(const HitGrid& grid, ViewKind kind, const ViewInput& input, Point at) {
  const PlanIndex& plan = *input.plan;
  const Box& box = grid.box;
  const auto x = [&](int64_t count) {
    return units_at(grid.x0, grid.x1, box.x0, box.x1, at.x, count);
  };
  const auto y = [&](int64_t count) {
    return units_at(grid.y0, grid.y1, box.y0, box.y1, at.y, count);
  };
  switch (kind) {
    case ViewKind::mask: {
      const auto k = x(plan.tokens(Side::kv)), q = y(plan.tokens(Side::q));
      return PairRange{q.first, q.second, k.first, k.second};
    }
    case ViewKind::traffic:
      return LinkTarget{static_cast<int32_t>(y(plan.num_ranks()).first),
                        static_cast<int32_t>(x(plan.num_ranks()).first)};
    case ViewKind::numbers: {
      if (input.run_a == nullptr) return Nothing{};
      const auto& errors = input.run_a->errors;
      const size_t tensor = static_cast<size_t>(input.tensor);
      if (tensor >= errors.size()) return Nothing{};
      return RowTarget{input.tensor, y(errors[tensor].tokens).first,
                       static_cast<int32_t>(x(errors[tensor].heads).first)};
    }
    default:
      return Nothing{};
  }
}

/// The span scaled by `factor` about a point of itself, inside [0, 1].
AxisSpan zoomed(AxisSpan span, double about, double factor, double narrowest) {
  const double width = span.hi - span.lo;
  const double next = std::clamp(width * factor, std::min(1.0, narrowest), 1.0);
  const double lo = std::clamp(span.lo + (width - next) * about, 0.0, 1.0 - next);
  return {lo, lo + next};
}

AxisSpan shifted(AxisSpan span, double by) {
  const double width = span.hi - span.lo;
  const double lo = std::clamp(span.lo + by, 0.0, std::max(0.0, 1.0 - width));
  return {lo, lo + width};
}

/// The part of the picture that the camera scales; of several the one at a point, or the first.
Box scaled_area(const View& view, Size size, Point at) {
  if (!view.grids.empty()) return view.grids.front().box;
  for (const Box& area : view.scaled)
    if (area.contains(at)) return area;
  return view.scaled.empty() ? Box{0, 0, size.width, size.height} : view.scaled.front();
}

/// The tokens of a layout under a point.
Target tokens_at(const View& view, const ViewInput& input, Point at) {
  for (size_t side = 0; side < view.scaled.size(); ++side) {
    const Box& area = view.scaled[side];
    if (!area.contains(at)) continue;
    const Side of = side == 0 ? Side::q : Side::kv;
    const int64_t tokens = input.plan->tokens(of);
    const AxisSpan span = sane_span(input.camera.x);
    const auto [begin, end] =
        units_at(span.lo * static_cast<double>(tokens), span.hi * static_cast<double>(tokens),
                 area.x0, area.x1, at.x, tokens);
    return TokenRange{of, begin, end};
  }
  return Nothing{};
}

/// What a click selects. In the layout the first click on tokens of one rank selects the rank, the
/// next one the tokens.
Target clicked_target(const Target& at, ViewKind kind, const PlanIndex& plan,
                      const Target& selected) {
  const auto* tokens = std::get_if<TokenRange>(&at);
  if (kind != ViewKind::layout || tokens == nullptr || tokens->begin >= tokens->end) return at;
  const int32_t rank = plan.owner(tokens->side, tokens->begin).rank;
  if (rank < 0 || plan.owner(tokens->side, tokens->end - 1).rank != rank) return at;
  const auto* known = std::get_if<RankTarget>(&selected);
  const auto* before = std::get_if<TokenRange>(&selected);
  const bool is_known = (known != nullptr && known->rank == rank) ||
                        (before != nullptr && plan.owner(before->side, before->begin).rank == rank);
  return is_known ? at : Target{RankTarget{rank}};
}

/// The targets between two that a drag has met.
Target joined(const Target& first, const Target& last) {
  const auto *from = std::get_if<PairRange>(&first), *to = std::get_if<PairRange>(&last);
  if (from != nullptr && to != nullptr)
    return PairRange{std::min(from->q_begin, to->q_begin), std::max(from->q_end, to->q_end),
                     std::min(from->k_begin, to->k_begin), std::max(from->k_end, to->k_end)};
  const auto *a = std::get_if<TokenRange>(&first), *b = std::get_if<TokenRange>(&last);
  if (a == nullptr || b == nullptr || a->side != b->side) return Nothing{};
  return TokenRange{a->side, std::min(a->begin, b->begin), std::max(a->end, b->end)};
}

bool has_rows(ViewKind kind) {
  return kind == ViewKind::mask || kind == ViewKind::traffic || kind == ViewKind::numbers;
}

/// A shared pointer that keeps the run of a view alive.
SharedRun keep_alive(const AppState& state, const RunView* run) {
  for (const SharedRun& owner :
       {state.run_a, state.run_b, state.comparison.view, state.prediction.run})
    if (run != nullptr && owner.get() == run) return owner;
  for (const auto& [plan, owner] : state.prediction.pinned)
    if (run != nullptr && owner.get() == run) return owner;
  return nullptr;
}

}  // namespace

Target target_at(const View& view, ViewKind kind, const ViewInput& input, Point at) {
  for (auto it = view.hits.rbegin(); it != view.hits.rend(); ++it)
    if (it->box.contains(at) && !std::holds_alternative<Nothing>(it->target)) return it->target;
  const HitGrid* grid = grid_at(view, at);
  return grid == nullptr || input.plan == nullptr ? Target{}
                                                  : target_in_grid(*grid, kind, input, at);
}

std::string tip_at(const View& view, Point at) {
  for (auto it = view.hits.rbegin(); it != view.hits.rend(); ++it)
    if (it->box.contains(at) && !it->tooltip.empty()) return it->tooltip;
  return "";
}

const SharedPlan& ViewPanel::plan(const AppState& state) const {
  return pinned_ ? state.pinned[*pinned_] : state.document.plan();
}

ViewInput ViewPanel::input(const AppState& state) const {
  return pinned_ ? view_input_pinned(state, kind_, *pinned_) : view_input(state, kind_);
}

void ViewPanel::refresh(Ui& ui, const LitTargets& lit, Size size) {
  const AppState& state = ui.state;
  ViewInput input = this->input(state);
  ViewKey key{plan(state),
              input.moment,
              input.camera,
              size,
              ui.scale(),
              state.theme,
              state.selected(),
              lit.selected,
              lit.hovered,
              input.focus_rank,
              input.tensor,
              input.is_cumulative,
              input.shows_time,
              input.is_by_step,
              input.is_by_rank,
              input.mask_colors,
              input.stretch,
              keep_alive(state, input.run_a),
              keep_alive(state, input.run_b),
              input.progress};
  if (key_ == key && !memo_.has_news()) return;
  input.size = size;
  input.text_width = text_width_of(ui.fonts);
  input.selected = lit.selected.get();
  input.hovered = lit.hovered.get();
  input.memo = &memo_;
  memo_.post = nullptr;
  if (ui.in_background) {
    // A job keeps everything alive that it reads until it is done.
    memo_.post = [this, plan = key.plan, a = key.run_a, b = key.run_b](std::function<void()> job) {
      worker_.post([plan, a, b, job = std::move(job)] { job(); });
    };
  }
  view_ = make_view(kind_, input);
  key_ = std::move(key);
}

void ViewPanel::show_first(Ui& ui, Size size) {
  const AppState& state = ui.state;
  ViewInput input;
  input.size = size;
  input.theme = &theme_of(state.theme);
  input.text_width = text_width_of(ui.fonts);
  ViewKey key;
  key.size = size;
  key.scale = ui.scale();
  key.theme = state.theme;
  const auto& layout = state.document.first_layout();
  if (kind_ == ViewKind::layout && layout != nullptr) {
    if (key_ == key && first_ == layout) return;
    view_ = draw_first_layout(*layout, input);
  } else {
    view_ = {};
    // One view says it for all.
    const bool speaks = kind_ == state.focus_view.value_or(ViewKind::layout);
    if (speaks)
      add_sentence(view_.drawing, input, {0, 0, size.width, size.height},
                   state.document.is_planning() ? "The plan is being made and proved."
                                                : "No plan yet. Open a scenario with Ctrl+O.");
  }
  first_ = layout;
  key_ = std::move(key);
}

void ViewPanel::zoom_at(Ui& ui, Point at, Size size, float wheel) {
  const Box area = scaled_area(view_, size, at);
  const double factor = std::pow(0.8, wheel);
  const PlanIndex& plan = *this->plan(ui.state);
  const double narrowest = 4.0 / static_cast<double>(std::max<int64_t>(
                                     8, std::max(plan.tokens(Side::q), plan.tokens(Side::kv))));
  const double x = std::clamp((at.x - area.x0) / std::max(1.0f, area.width()), 0.0f, 1.0f);
  const double y = std::clamp((at.y - area.y0) / std::max(1.0f, area.height()), 0.0f, 1.0f);
  Camera& camera = ui.state.camera(kind_);
  // Rows of ranks keep their height, unless Shift is held.
  const bool only_rows = ImGui::GetIO().KeyShift;
  if (!only_rows) camera.x = zoomed(camera.x, x, factor, narrowest);
  if (only_rows || has_rows(kind_)) camera.y = zoomed(camera.y, y, factor, narrowest);
}

void ViewPanel::drag(Ui& ui, Size size) {
  const ImVec2 moved = ImGui::GetMouseDragDelta(0, 0.0f);
  if (std::abs(moved.x) + std::abs(moved.y) > ui.px(4)) is_dragged_ = true;
  if (!is_dragged_ || ImGui::GetIO().KeyShift || is_carried_) return;
  const Box area = scaled_area(view_, size, pressed_);
  Camera& camera = ui.state.camera(kind_);
  const double width = grabbed_.x.hi - grabbed_.x.lo, height = grabbed_.y.hi - grabbed_.y.lo;
  camera.x = shifted(grabbed_.x, -moved.x / ui.scale() / std::max(1.0f, area.width()) * width);
  camera.y = shifted(grabbed_.y, -moved.y / ui.scale() / std::max(1.0f, area.height()) * height);
}

namespace {

/// The chunk at a point of the row of owners, of which the plan may give tokens to another rank.
std::optional<TokenRange> chunk_at(const View& view, Point at) {
  for (const HitRegion& hit : view.hits) {
    const auto* tokens = std::get_if<TokenRange>(&hit.target);
    if (tokens != nullptr && hit.box.contains(at) && hit.name.starts_with("chunk/")) return *tokens;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int32_t> ViewPanel::new_owner_at(const PlanIndex& plan, Point at) const {
  if (!chunk_) return std::nullopt;
  const bool is_kv = chunk_->side == Side::kv;
  for (const HitRegion& hit : view_.hits) {
    const auto* rank = std::get_if<RankTarget>(&hit.target);
    if (rank == nullptr || !hit.box.contains(at) || !hit.name.starts_with("rank/") ||
        hit.name.starts_with("rank/kv/") != is_kv)
      continue;
    if (plan.owner(chunk_->side, chunk_->begin).rank == rank->rank) return std::nullopt;
    return rank->rank;
  }
  return std::nullopt;
}

void ViewPanel::carry_chunk(Ui& ui, Point at) {
  if (!chunk_ || !is_dragged_ || ImGui::GetIO().KeyShift) return;
  constexpr float kLeast = 12;  // pixels up or down, more than sideways
  const float down = std::abs(at.y - pressed_.y), aside = std::abs(at.x - pressed_.x);
  if (!is_carried_ && down > kLeast && down > aside / 2) {
    is_carried_ = true;
    ui.state.camera(kind_) = grabbed_;
  }
  if (!is_carried_) return;
  const std::string tokens = print_range(chunk_->begin, chunk_->end);
  const auto owner = new_owner_at(*plan(ui.state), at);
  ImGui::SetTooltip("%s", (owner ? "Give tokens " + tokens + " to rank " + std::to_string(*owner)
                                 : "Drop tokens " + tokens + " on the lane of another rank")
                              .c_str());
}

bool ViewPanel::seek_tile(Ui& ui, const ViewInput& input) const {
  const auto* item = std::get_if<ItemId>(&ui.hovered);
  if (kind_ != ViewKind::mask || item == nullptr || input.plan != ui.state.plan()) return false;
  // Both clicks have selected the tile.
  ui.state.player.is_playing = false;
  ui.state.playhead = seek_stage(*input.plan, ui.state.playhead, input.plan->stage_of(*item));
  return true;
}

void ViewPanel::answer_mouse(Ui& ui, Point origin, Size size) {
  const ImGuiIO& io = ImGui::GetIO();
  const Point at{(io.MousePos.x - origin.x) / ui.scale(), (io.MousePos.y - origin.y) / ui.scale()};
  const ViewInput input = this->input(ui.state);
  if (ImGui::IsItemHovered() && !is_dragged_) {
    ui.hovered = target_at(view_, kind_, input, at);
    show_tip(ui, tip_at(view_, at));
    if (io.MouseWheel != 0) zoom_at(ui, at, size, io.MouseWheel);
    if (ImGui::IsMouseDoubleClicked(0) && !seek_tile(ui, input)) ui.state.camera(kind_) = Camera{};
    if (ImGui::IsMouseReleased(1) && !pinned_) {
      ui.state.focus_view = kind_;
      if (!std::holds_alternative<Nothing>(ui.hovered)) {
        // This says what is copied; it is no answer to a question.
        const LessonAnswer answer = ui.state.answer;
        select(ui.state, ui.hovered);
        ui.state.answer = answer;
      }
      open_context_menu();
    }
  }
  if (ImGui::IsItemActivated()) {
    ui.state.focus_view = kind_;
    pressed_ = at;
    grabbed_ = ui.state.camera(kind_);
    is_held_ = true;
    is_dragged_ = is_carried_ = false;
    chunk_ = kind_ == ViewKind::layout && !pinned_ ? chunk_at(view_, at) : std::nullopt;
  }
  if (is_held_ && ImGui::IsItemActive()) {
    drag(ui, size);
    carry_chunk(ui, at);
  }
  if (is_held_ && !ImGui::IsItemActive()) {
    if (is_carried_) {
      if (const auto owner = new_owner_at(*input.plan, at)) move_tokens(ui.state, *chunk_, *owner);
    } else if (!is_dragged_) {
      const Target first = target_at(view_, kind_, input, pressed_);
      select(ui.state, clicked_target(first, kind_, *input.plan, ui.state.selected()));
      // Clicking a step also moves the playhead to it.
      const auto* step = std::get_if<StepTarget>(&first);
      if (step != nullptr && input.plan == ui.state.plan())
        ui.state.playhead = seek_step(*input.plan, ui.state.playhead, step->step);
    } else if (io.KeyShift) {
      const auto at_point = [&](Point point) {
        return kind_ == ViewKind::layout ? tokens_at(view_, input, point)
                                         : target_at(view_, kind_, input, point);
      };
      const Target all = joined(at_point(pressed_), at_point(at));
      if (!std::holds_alternative<Nothing>(all)) select(ui.state, all);
    }
    is_held_ = is_dragged_ = is_carried_ = false;
  }
}

bool ViewPanel::is_stale(const AppState& state) const {
  return !pinned_ && plan(state) != nullptr && state.document.refusal().has_value();
}

namespace {

/// Greys the picture of a plan that is not the scenario's, and says of which plan it is.
void veil_stale(Ui& ui, const PlanIndex& plan, const std::string& name, Point origin, Size size) {
  ImDrawList* list = ImGui::GetWindowDrawList();
  const float right = origin.x + size.width * ui.scale(), low = origin.y + size.height * ui.scale();
  const Color veil = ui.theme.of(Role::panel).with_alpha(170);
  list->AddRectFilled({origin.x, origin.y}, {right, low}, IM_COL32(veil.r, veil.g, veil.b, veil.a));
  const std::string text =
      fit_text(text_width_of(ui.fonts),
               "last valid plan: " + std::to_string(plan.num_ranks()) + " ranks, " +
                   std::string(to_name(plan.plan().scenario.parallel.comm_type)) + ", " +
                   std::string(to_name(plan.plan().layout.kind)),
               kSmallSize, Face::body, size.width - 2 * kViewPad);
  const WithFont font(ui, Face::body, kSmallSize);
  const ImVec2 wide = ImGui::CalcTextSize(text.c_str());
  const float pad = ui.px(4);
  const ImVec2 at{origin.x + pad, low - wide.y - 2 * pad};
  list->AddRectFilled({at.x - pad, at.y - pad}, {at.x + wide.x + pad, at.y + wide.y + pad},
                      color_of(ui, Role::raised));
  list->AddText(at, color_of(ui, Role::error), text.c_str());
  ui.hits.add(name + "/stale", {at.x, at.y, at.x + wide.x, at.y + wide.y});
}

}  // namespace

void ViewPanel::show_picture(Ui& ui, const LitTargets& lit, const Box& box,
                             const std::string& name) {
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const Size size{std::floor(room.x / ui.scale()), std::floor(room.y / ui.scale())};
  if (size.width < 40 || size.height < 40) return;
  ImGui::InvisibleButton("canvas", {size.width * ui.scale(), size.height * ui.scale()});
  const Point origin{std::floor(corner.x), std::floor(corner.y)};
  const auto on_screen = [&](const Box& b) {
    return Box{origin.x + b.x0 * ui.scale(), origin.y + b.y0 * ui.scale(),
               origin.x + b.x1 * ui.scale(), origin.y + b.y1 * ui.scale()};
  };
  ui.hits.add(name + "/canvas", on_screen({0, 0, size.width, size.height}));
  if (plan(ui.state) == nullptr) {
    show_first(ui, size);
  } else {
    refresh(ui, lit, size);
    answer_mouse(ui, origin, size);
    if (!pinned_) build_context_menu(ui);
  }
  ImDrawList* list = ImGui::GetWindowDrawList();
  list->PushClipRect({origin.x, origin.y}, {box.x1, box.y1}, true);
  paint(view_.drawing, {list, &ui.fonts, &ui.textures, origin});
  if (is_stale(ui.state)) veil_stale(ui, *plan(ui.state), name, origin, size);
  list->PopClipRect();
  for (const HitRegion& hit : view_.hits) ui.hits.add(name + "/" + hit.name, on_screen(hit.box));
}

void ViewPanel::build(Ui& ui, const LitTargets& lit, const Box& box) {
  const std::string name =
      (pinned_ ? "pinned/" + std::to_string(*pinned_) + "/" : "") + std::string(to_name(kind_));
  if (begin_panel(ui, name.c_str(), box)) {
    const Heading heading = heading_of(kind_);
    std::vector<HeadingButton> buttons =
        pinned_ ? std::vector<HeadingButton>{} : buttons_of(ui.state, kind_);
    // Where they do not fit beside the title, the last ones are in the menu View alone.
    const float room =
        ImGui::GetContentRegionAvail().x -
        ImGui::CalcTextSize(heading.title.data(), heading.title.data() + heading.title.size()).x -
        ui.px(12);
    while (!buttons.empty() && width_of(buttons) > room) buttons.pop_back();
    const std::string of_plan =
        ui.state.pinned.empty()
            ? ""
            : "of plan " + std::to_string(pinned_.value_or(ui.state.pinned.size()) + 1);
    panel_heading(ui, heading.title, of_plan.empty() ? heading.question : of_plan,
                  width_of(buttons));
    build_heading_buttons(ui, buttons);
    show_picture(ui, lit, box, name);
    if (ui.state.focus_view == kind_ && !pinned_) {
      // The panel's own clipping would leave a hairline of it.
      ImDrawList* list = ImGui::GetWindowDrawList();
      list->PushClipRectFullScreen();
      list->AddRect({box.x0 + ui.px(1), box.y0 + ui.px(1)}, {box.x1 - ui.px(1), box.y1 - ui.px(1)},
                    color_of(ui, Role::accent), ui.px(3), 0, ui.px(2));
      list->PopClipRect();
    }
  }
  end_panel();
}

}  // namespace cpscope::gui
