#include "gui/app/command.h"
#include "gui/app/question.h"
#include "gui/panel/panels.h"

#include <algorithm>
#include <string>

#include <imgui.h>
#include <imgui_stdlib.h>

namespace cpscope::gui {
namespace {

/// More ranks than this are chosen in the views alone.
constexpr int32_t kMostButtons = 32;

/// Continues the line if the next item has room in it.
void stay_on_line(float width) {
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowContentRegionMax().x;
  if (ImGui::GetItemRectMax().x + ImGui::GetStyle().ItemSpacing.x + width < right)
    ImGui::SameLine();
}

float width_of(const std::string& label) {
  return ImGui::CalcTextSize(label.c_str()).x + 2 * ImGui::GetStyle().FramePadding.x;
}

/// A button for each rank; the views choose ranks as well.
void build_ranks(Ui& ui) {
  AppState& state = ui.state;
  const int32_t ranks = state.plan()->num_ranks();
  if (ranks > kMostButtons) {
    show_text(ui, std::to_string(state.answer.ranks.size()) + " ranks chosen", Role::faint_text);
    return;
  }
  ImGui::AlignTextToFramePadding();
  show_text(ui, "ranks", Role::faint_text);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const std::string label = std::to_string(rank);
    stay_on_line(width_of(label));
    const auto& chosen = state.answer.ranks;
    const bool is_chosen = std::binary_search(chosen.begin(), chosen.end(), rank);
    if (pressed_button(ui, "answer/rank/" + label, label, is_chosen)) toggle_rank(state, rank);
  }
}

void build_number(Ui& ui) {
  AppState& state = ui.state;
  constexpr float kWidth = 110;
  ImGui::SetNextItemWidth(ui.px(kWidth));
  std::string typed = state.answer.typed;
  const bool is_entered =
      ImGui::InputText("##answer", &typed, ImGuiInputTextFlags_EnterReturnsTrue);
  name_item(ui, "answer/number");
  if (typed != state.answer.typed) type_answer(state, typed);
  if (is_entered) apply_command(state, "lesson.check");
  const std::string unit = answer_unit(state);
  if (unit.empty()) return;
  ImGui::SameLine();
  show_text(ui, unit, Role::faint_text);
}

}  // namespace

void build_question(Ui& ui) {
  AppState& state = ui.state;
  const Question* question = open_question(state);
  if (question == nullptr) return;
  if (question->kind == AnswerKind::ranks)
    build_ranks(ui);
  else
    build_number(ui);
  stay_on_line(width_of("Check"));
  command_button(ui, "lesson.check", "Check");
  stay_on_line(width_of("Hint"));
  command_button(ui, "lesson.hint", "Hint");
  stay_on_line(width_of("Answer"));
  command_button(ui, "lesson.answer", "Answer");
  const Spans feedback = answer_feedback(state);
  if (!feedback.empty())
    flow_spans(ui, feedback, ImGui::GetContentRegionAvail().x, "lesson.feedback");
}

}  // namespace cpscope::gui
