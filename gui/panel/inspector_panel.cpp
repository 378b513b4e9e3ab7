#include "gui/app/command.h"
#include "gui/app/copy.h"
#include "gui/app/document/compare.h"
#include "gui/app/ways.h"
#include "gui/panel/panels.h"

namespace cpscope::gui {

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
    const AppState& state = ui.state;
    const SharedPlan pinned = state.pinned;  // keeps the plan alive when the button unpins it
    command_button(ui, "compare.unpin");
    ImGui::SameLine();
    show_text(ui, "above, pinned: " + describe_plan(*pinned));
    if (state.plan() != nullptr) {
      ImGui::SameLine(0, ui.px(24));
      show_text(ui, "below: " + describe_plan(*state.plan()));
      if (find_command("compare.numbers")->is_enabled(state)) {
        ImGui::SameLine(0, ui.px(24));
        command_button(ui, "compare.numbers",
                       *state.comparison.view->passed ? "Numbers agree within their tolerance"
                                                      : "! Numbers differ: where?");
      }
      const auto figures = compare_plans(*pinned, *state.plan());
      const float width = ImGui::GetContentRegionAvail().x / static_cast<float>(figures.size());
      const float first_line = ImGui::GetCursorPosY();
      for (size_t n = 0; n < figures.size(); ++n) {
        if (n > 0) ImGui::SameLine(ui.px(10) + width * static_cast<float>(n));
        ImGui::BeginGroup();
        const ComparedFigure& figure = figures[n];
        {
          const WithFont font(ui, Face::body, kSmallSize);
          ImGui::PushTextWrapPos(ImGui::GetCursorPosX() + width - ui.px(8));
          show_text(ui, figure.name, Role::faint_text);
          ImGui::PopTextWrapPos();
          // All figures are on one line, however long their names are.
          ImGui::SetCursorPosY(first_line + 2 * ImGui::GetTextLineHeight() + ui.px(2));
        }
        const auto show = [&](const std::string& text, bool is_better) {
          const WithFont font(ui, is_better ? Face::strong : Face::body, kTextSize);
          show_text(ui, text, is_better ? Role::accent : Role::text);
        };
        show(figure.first, figure.better < 0);
        show(figure.second, figure.better > 0);
        show(figure.change, false);
        name_item(ui, "comparison/" + std::to_string(n));
        ImGui::EndGroup();
      }
    }
  }
  end_panel();
}

}  // namespace cpscope::gui
