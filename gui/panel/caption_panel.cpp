#include "gui/app/caption/caption.h"
#include "gui/app/lesson.h"
#include "gui/panel/panels.h"

namespace cpscope::gui {

void build_caption(Ui& ui, const Box& box, CaptionMemo& memo) {
  if (begin_panel(ui, "caption", box, true)) {
    const AppState& state = ui.state;
    if (state.plan() == nullptr) {
      show_wrapped(ui,
                   state.document.is_planning()
                       ? "Planning and proving. The picture follows."
                       : "There is no plan to show. Open a scenario with Ctrl+O, choose one from "
                         "the menu Scenarios, or correct what the panel Scenario marks with \"!\".",
                   Role::faint_text);
    } else {
      const Spans& spans = memo.find(state.document.plan(),
                                     moment_of(*state.plan(), state.playhead), state.focus_rank);
      flow_spans(ui, spans, ImGui::GetContentRegionAvail().x, "caption");
    }
  }
  end_panel();
}

void build_lesson(Ui& ui, const Box& box) {
  if (begin_panel(ui, "lesson", box)) {
    AppState& state = ui.state;
    const auto lessons = all_lessons();
    const Lesson& lesson = lessons[static_cast<size_t>(state.lesson.lesson)];
    const LessonStep* step = current_step(state);
    // The buttons come first: they stay where they are, however long the text is.
    command_button(ui, "lesson.previous", "Back");
    ImGui::SameLine();
    command_button(ui, "lesson.next", "Next");
    ImGui::SameLine();
    show_text(ui,
              "page " + std::to_string(state.lesson.step + 1) + " of " +
                  std::to_string(lesson.steps.size()),
              Role::faint_text);
    ImGui::SameLine();
    command_button(ui, "lesson.close", "Close");
    const std::string title =
        "Lesson " + std::to_string(state.lesson.lesson + 1) + ": " + std::string(lesson.title);
    {
      const WithFont font(ui, Face::strong, kTextSize);
      const float rest = ImGui::GetWindowContentRegionMax().x - ImGui::GetItemRectMax().x +
                         ImGui::GetWindowPos().x - ui.px(20);
      if (ImGui::CalcTextSize(title.c_str()).x < rest) ImGui::SameLine(0, ui.px(20));
    }
    panel_heading(ui, title, lesson.question);
    ImGui::BeginChild("text");
    flow_spans(ui, lesson_text(state), ImGui::GetContentRegionAvail().x, "lesson");
    if (step != nullptr && !step->ask.empty()) {
      const bool is_done = is_lesson_done(state);
      const WithFont font(ui, Face::strong, kTextSize);
      show_wrapped(ui, (is_done ? "Done: " : "Try it: ") + std::string(step->ask),
                   is_done ? Role::text : Role::accent);
      name_item(ui, "lesson.ask");
    }
    if (step != nullptr && step->question != nullptr) build_question(ui);
    if (step != nullptr && step->fault != nullptr) command_button(ui, "lesson.fault");
    ImGui::EndChild();
  }
  end_panel();
}

}  // namespace cpscope::gui
