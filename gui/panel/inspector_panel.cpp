#include "gui/app/command.h"
#include "gui/app/copy.h"
#include "gui/app/document/compare.h"
#include "gui/app/prediction.h"
#include "gui/app/ways.h"
#include "gui/model/axis.h"
#include "gui/panel/fonts.h"
#include "gui/panel/panels.h"

#include <cstddef>
#include <string>
#include <vector>

namespace cpscope::gui {
namespace {

/// Of the comparison: the share of its width for the names of plans, and the height of a plan in
/// logical pixels.
constexpr float kNamesShare = 0.25F, kRowHeight = 22;

/// A figure and how it differs from the first plan's; in a narrow column only the difference.
void build_compared_value(Ui& ui, const ComparedValue& value, float width) {
  const WithFont font(ui, value.is_best ? Face::strong : Face::body, kSmallSize);
  const std::string both = value.change.empty() ? value.text : value.text + "  " + value.change;
  const bool fits = value.change.empty() || ImGui::CalcTextSize(both.c_str()).x <= width;
  show_text(ui, fits ? both : value.change, value.is_best ? Role::accent : Role::text);
  if (!fits) show_tip(ui, both);
}

}  // namespace

void build_inspector(Ui& ui, const Box& box, InspectionMemo& memo) {
  Inspection way;
  if (begin_panel(ui, "inspector", box, true)) {
    const Inspection& inspection =
        ui.state.shows_ways ? (way = inspect_way(ui.state))
                            : memo.inspect(ui.state, ui.state.selected(), ui.in_background);
    panel_heading(ui, inspection.heading, "");
    ImGui::SameLine(ImGui::GetWindowContentRegionMax().x - ImGui::CalcTextSize("Copy").x -
                    2 * ImGui::GetStyle().FramePadding.x);
    if (named_button(ui, "inspector.copy", "Copy")) copy_inspector(ui.state);
    show_tip(ui, find_command("edit.copy")->help);
    for (size_t n = 0; n < inspection.rows.size(); ++n) {
      const InspectionRow& row = inspection.rows[n];
      ImGui::PushID(static_cast<int>(n));
      if (!row.label.empty()) {
        const WithFont font(ui, Face::body, kSmallSize);
        show_text(ui, row.label, Role::faint_text);
      }
      flow_spans(ui, row.value, ImGui::GetContentRegionAvail().x, "inspector/" + std::to_string(n));
      ImGui::PopID();
    }
  }
  end_panel();
}

void build_comparison(Ui& ui, const Box& box) {
  if (begin_panel(ui, "comparison", box, true)) {
    AppState& state = ui.state;
    std::vector<SharedPlan> plans = state.pinned;
    plans.push_back(state.document.plan());
    std::vector<ComparedPlan> compared;
    for (const SharedPlan& plan : plans) {
      const SharedRun run = predicted_run(state, plan);
      compared.push_back({plan.get(), run ? run->total_ns : 0});
    }
    const std::vector<ComparedFigure> figures = compare_plans(compared);
    const float room = ImGui::GetContentRegionAvail().x, names = room * kNamesShare;
    const float width = (room - names) / static_cast<float>(figures.size());
    const float top = ImGui::GetCursorPosY(), left = ImGui::GetCursorPosX();
    const WithFont small(ui, Face::body, kSmallSize);
    const float first_row = top + 2 * ImGui::GetTextLineHeight() + ui.px(8);
    command_button(ui, "compare.unpin");
    if (find_command("compare.numbers")->is_enabled(state)) {
      ImGui::SameLine();
      command_button(ui, "compare.numbers",
                     *state.comparison.view->passed ? "Numbers agree" : "! Numbers differ");
    }
    for (size_t row = 0; row < plans.size(); ++row) {
      const float at = first_row + ui.px(kRowHeight) * static_cast<float>(row);
      ImGui::SetCursorPos({left, at});
      const bool is_pinned = row + 1 < plans.size();
      if (is_pinned && named_button(ui, "comparison/unpin/" + std::to_string(row), "x"))
        state.pinned.erase(state.pinned.begin() + static_cast<std::ptrdiff_t>(row));
      if (is_pinned) show_tip(ui, "Unpins this plan");
      ImGui::SetCursorPos({left + ui.px(24), at});
      const std::string words =
          "plan " + std::to_string(row + 1) + ": " + describe_plan(*plans[row]);
      show_text(ui, fit_text(text_width_of(ui.fonts), words, kSmallSize, Face::body,
                             names / ui.scale() - 30));
      show_tip(ui, words);
      for (size_t n = 0; n < figures.size(); ++n) {
        ImGui::SetCursorPos({left + names + width * static_cast<float>(n), at});
        build_compared_value(ui, figures[n].values[row], width - ui.px(6));
        name_item(ui, "comparison/" + std::to_string(row) + "/" + std::to_string(n));
      }
    }
    for (size_t n = 0; n < figures.size(); ++n) {
      ImGui::SetCursorPos({left + names + width * static_cast<float>(n), top});
      ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + width - ui.px(6));
      show_text(ui, figures[n].name, Role::faint_text);
      ImGui::PopTextWrapPos();
    }
  }
  end_panel();
}

}  // namespace cpscope::gui
