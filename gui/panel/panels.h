#pragma once

#include "gui/app/inspect.h"
#include "gui/panel/ui.h"

#include <map>
#include <string>

namespace cpscope::gui {

/// Text that is being typed: of one field at a time, dropped when the field loses the keys.
struct TypedText {
  std::string field;  // name of the field; empty when nobody types
  std::string text;
  std::string complaint;  // why the text is not taken, or empty
};

/// Menu bar and what is open: the first line of the window.
void build_menu_bar(Ui& ui);
/// Buttons of the playhead, its track, runs in progress.
void build_transport(Ui& ui, const Box& box);
/// The scenario, to be changed: every field replans.
void build_editor(Ui& ui, const Box& box, TypedText& typed);
/// What is selected, in words and figures.
void build_inspector(Ui& ui, const Box& box, InspectionMemo& memo);
/// The pinned plan beside this one in figures.
void build_comparison(Ui& ui, const Box& box);
/// What happens now and why.
void build_caption(Ui& ui, const Box& box, CaptionMemo& memo);
/// The open page of a lesson.
void build_lesson(Ui& ui, const Box& box);
/// Messages over the picture, and the open dialog, if any.
void build_messages(Ui& ui, Size display);
void build_dialog(Ui& ui, Size display, TypedText& typed);

/// Does the commands whose keys were pressed, unless a text is being typed.
void answer_keys(Ui& ui);

}  // namespace cpscope::gui
