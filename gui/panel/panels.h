#pragma once

#include "gui/app/inspect.h"
#include "gui/app/scenario_menu.h"
#include "gui/panel/ui.h"

#include <map>
#include <string>
#include <vector>

namespace cpscope::gui {

/// The text of the field that has keyboard focus; dropped when the field loses focus.
struct TypedText {
  std::string field;  // name of the field; empty when no field has focus
  std::string text;
  std::string complaint;  // why the text was not accepted, or empty
};

/// The shipped scenarios of the menu, read when it opens for the first time.
struct ScenarioMenu {
  std::vector<ScenarioGroup> groups;
};

/// The first line of the window: the menu bar and the name of the open scenario.
void build_menu_bar(Ui& ui, ScenarioMenu& scenarios);
/// The playhead's buttons and track, and the progress of runs.
void build_transport(Ui& ui, const Box& box);
/// Input fields for the scenario: every change makes a new plan.
void build_editor(Ui& ui, const Box& box, TypedText& typed);
/// Text and figures about the selection.
void build_inspector(Ui& ui, const Box& box, InspectionMemo& memo);
/// Figures of the pinned plans and of this one, for comparison.
void build_comparison(Ui& ui, const Box& box);
/// What happens at the moment and why.
void build_caption(Ui& ui, const Box& box, CaptionMemo& memo);
/// The open page of a lesson.
void build_lesson(Ui& ui, const Box& box);
/// The answer to the question of the open lesson page: ranks or a number, and what is said about
/// it.
void build_question(Ui& ui);
/// Messages on top of the picture, and the open dialog, if any.
void build_messages(Ui& ui, Size display);
void build_dialog(Ui& ui, Size display, TypedText& typed);

/// Carries out the commands of the pressed shortcuts, unless the user is typing.
void answer_keys(Ui& ui);

}  // namespace cpscope::gui
