#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption/caption_writer.h"
#include "sim/faults/fault.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

struct Question;  // gui/app/question.h

/// Writes the text of a page from the open plan.
using PageText = void(CaptionWriter& writer, const AppState& state);

/// One page of a lesson: its text, how the window is prepared, what the reader should do, and how
/// the window detects that it was done.
struct LessonStep {
  std::string_view scenario;             // shipped scenario to open; empty: keep the open one
  const Fault* fault = nullptr;          // or this fault's scenario, its first wrong place selected
  void (*change)(Scenario&) = nullptr;   // changes it before the page opens
  void (*prepare)(AppState&) = nullptr;  // then sets the playhead and other state
  std::vector<std::string_view> commands = {};   // applied when all else is shown
  Target (*select)(const PlanIndex&) = nullptr;  // selected when the page opens
  ViewKind view = ViewKind::layout;              // the view to look at
  PageText* text = nullptr;                      // every number comes from the plan
  std::string_view ask = {};                     // "Press Right"; empty: the reader only reads
  bool (*is_done)(const AppState&) = nullptr;    // null: there is nothing to do but read
  void (*perform)(AppState&) = nullptr;          // does what the reader should do: for tests
  const Question* question = nullptr;            // then `text` states it, and `ask` is empty
};

/// True if the page wants the reader to do or to answer something.
bool has_task(const LessonStep& step);

struct Lesson {
  std::string_view title;
  std::string_view question;
  std::vector<LessonStep> steps;
};

std::span<const Lesson> all_lessons();

/// Opens a page: scenario, commands, selection. Returns false (and shows a message) when its
/// scenario is missing.
bool open_lesson(AppState& state, LessonPlace place);
/// Restores the page of a state file without opening anything: the shown plan stays, and the page's
/// own plan is made again to check whether its text still fits the shown plan.
void restore_lesson(AppState& state, LessonPlace place);
/// The open page; null when no lesson is open.
const LessonStep* current_step(const AppState& state);
/// True if the shown plan is the one of the open page, or one that the page can speak of.
bool is_about_shown_plan(const AppState& state);
/// Text of the open page; empty while its plan is not ready.
Spans lesson_text(const AppState& state);
bool is_lesson_done(const AppState& state);
/// Go one page forward or back, also across lessons.
bool next_page(AppState& state);
bool previous_page(AppState& state);
void close_lesson(AppState& state);

}  // namespace cpscope::gui
