#include "gui/panel/ways_panel.h"

#include "gui/app/ways.h"
#include "gui/model/ways/comparison_list.h"
#include "gui/panel/paint.h"
#include "gui/panel/view_buttons.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace cpscope::gui {
namespace {

constexpr float kWide = 860;          // from this width on, chart and list are side by side
constexpr float kChartShare = 0.42F;  // of the width; of the height when it is above the list
constexpr float kLeastChart = 200;    // logical pixels
constexpr float kScrollBar = 12;

}  // namespace

void WaysPanel::build_heading(Ui& ui) {
  const ClusterName on = ways_cluster(ui.state);
  panel_heading(ui, "7 Ways", "which way to split and move this batch is fastest, and why?");
  const std::string whose = on.cluster + ", " + on.stack;
  const float padding = 2 * ImGui::GetStyle().FramePadding.x, gap = ImGui::GetStyle().ItemSpacing.x;
  const float width =
      ImGui::CalcTextSize(whose.c_str()).x + ImGui::CalcTextSize("Close").x + 2 * padding + gap;
  ImGui::SameLine(std::max(ui.px(80), ImGui::GetWindowContentRegionMax().x - width));
  cluster_button(ui, "ways/cluster", whose);
  ImGui::SameLine();
  command_button(ui, "view.ways", "Close");
}

void WaysPanel::refresh(const Ui& ui, const Key& key) {
  if (key_ == key) return;
  key_ = key;
  const Theme* theme = &theme_of(key.theme);
  const TextWidth text_width = text_width_of(ui.fonts);
  chart_ = view_comparison({.comparison = key.candidates.get(),
                            .title = "",
                            .size = key.chart,
                            .theme = theme,
                            .text_width = text_width,
                            .lit = key.lit,
                            .is_bare = true});
  const ComparisonList list{key.candidates.get(), key.list, theme, text_width, key.lit};
  header_ = draw_list_header(list);
  list_ = view_list(list);
}

/// Shows a picture at the cursor; records its candidates for the mouse and in the hit map.
void WaysPanel::show(Ui& ui, const CandidateView& view, const char* id, Size size) {
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const Point origin{std::floor(corner.x), std::floor(corner.y)};
  ImGui::InvisibleButton(id, {size.width * ui.scale(), size.height * ui.scale()});
  name_item(ui, "ways/" + std::string(id));
  if (ImGui::IsItemHovered()) {
    const ImVec2 mouse = ImGui::GetIO().MousePos;
    const Point at{(mouse.x - origin.x) / ui.scale(), (mouse.y - origin.y) / ui.scale()};
    hovered_ = candidate_at(view, at);
    if (hovered_ >= 0) {
      const Candidate& candidate = key_.candidates->candidates[static_cast<size_t>(hovered_)];
      const bool can_take = candidate.refusal.empty() && !candidate.is_own;
      show_tip(ui, describe_candidate(*key_.candidates, hovered_) +
                       (can_take ? ". Click to take it." : ""));
      if (can_take) ImGui::SetMouseCursor(ImGuiMouseCursor_Hand);
      if (ImGui::IsMouseClicked(0)) take_way(ui.state, hovered_);
    }
  }
  paint(view.view.drawing, {ImGui::GetWindowDrawList(), &ui.fonts, &ui.textures, origin});
  // The hit map contains only what is in sight.
  const ImVec2 lo = ImGui::GetWindowDrawList()->GetClipRectMin();
  const ImVec2 hi = ImGui::GetWindowDrawList()->GetClipRectMax();
  for (const HitRegion& hit : view.view.hits) {
    const Box box{origin.x + hit.box.x0 * ui.scale(), origin.y + hit.box.y0 * ui.scale(),
                  origin.x + hit.box.x1 * ui.scale(), origin.y + hit.box.y1 * ui.scale()};
    const Point middle = box.center();
    if (Box{lo.x, lo.y, hi.x, hi.y}.contains(middle)) ui.hits.add("ways/" + hit.name, box);
  }
}

void WaysPanel::build_pictures(Ui& ui, const SharedCandidates& candidates) {
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float width = std::floor(room.x / ui.scale()), height = std::floor(room.y / ui.scale());
  if (width < 160 || height < 90) return;
  const bool is_wide = width >= kWide;
  const bool has_chart = is_wide || height >= 2 * kLeastChart;
  const Size chart{is_wide ? std::floor(width * kChartShare) : width,
                   is_wide ? height : std::floor(std::max(kLeastChart, height * kChartShare))};
  const float list = width - (is_wide ? chart.width + 10 : 0) - kScrollBar;
  // The hovered candidate may belong to an earlier comparison.
  const auto count = static_cast<int64_t>(candidates->candidates.size());
  const int64_t lit = ui.state.ways.hovered < count ? ui.state.ways.hovered : -1;
  refresh(ui, {candidates, lit, ui.state.theme, ui.scale(), chart, list});
  const ImVec2 corner = ImGui::GetCursorPos();
  if (has_chart) show(ui, chart_, "chart", chart);
  const ImVec2 at{is_wide ? corner.x + ui.px(chart.width + 10) : corner.x,
                  is_wide || !has_chart ? corner.y : corner.y + ui.px(chart.height)};
  ImGui::SetCursorPos(at);
  const ImVec2 head = ImGui::GetCursorScreenPos();
  paint(header_, {ImGui::GetWindowDrawList(), &ui.fonts, &ui.textures, {head.x, head.y}});
  ImGui::SetCursorPos({at.x, at.y + ui.px(kListHeader)});
  ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {0, 0});
  if (ImGui::BeginChild("rows", {0, 0})) show(ui, list_, "list", {list, list_height(*candidates)});
  ImGui::EndChild();
  ImGui::PopStyleVar();
}

void WaysPanel::build(Ui& ui, const Box& box) {
  hovered_ = -1;
  if (begin_panel(ui, "ways", box)) {
    build_heading(ui);
    const SharedCandidates candidates = shown_ways(ui.state);
    const std::string refusal = ways_refusal(ui.state);
    if (candidates) {
      if (can_take_best_way(ui.state)) {
        command_button(ui, "edit.best_way", "Take it");
        ImGui::SameLine();
        ImGui::AlignTextToFramePadding();
      }
      show_wrapped(ui, recommend(*candidates));
      name_item(ui, "ways/recommendation");
      if (const std::string warning = warn_of_launches(ui.state); !warning.empty()) {
        if (named_button(ui, "ways/enlarge", "Same shape, 128 Ki tokens")) enlarge_batch(ui.state);
        ImGui::SameLine();
        ImGui::AlignTextToFramePadding();
        show_wrapped(ui, warning, Role::faint_text);
      }
      build_pictures(ui, candidates);
    } else if (!refusal.empty()) {
      show_wrapped(ui, refusal, Role::error);
      name_item(ui, "ways/refusal");
    } else {
      ImGui::ProgressBar(static_cast<float>(ways_progress(ui.state)), {-FLT_MIN, ui.px(18)},
                         "planning and predicting every way");
      name_item(ui, "ways/progress");
    }
  }
  end_panel();
  ui.state.ways.hovered = hovered_;
}

}  // namespace cpscope::gui
