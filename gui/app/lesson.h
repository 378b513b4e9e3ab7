#pragma once

#include "gui/app/app_state.h"
#include "gui/app/caption.h"
#include "sim/faults/fault.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// One page of a lesson: what stands there, how the window is prepared, what the reader is asked
/// to do, and how the window knows that it was done.
struct LessonStep {
  std::string_view scenario;     // shipped scenario to open; empty: go on with the one that is open
  const Fault* fault = nullptr;  // or this fault's scenario, with its first wrong place selected
  void (*change)(Scenario&) = nullptr;   // changes made to it before the page opens
  void (*prepare)(AppState&) = nullptr;  // then the playhead and whatever else is put in place
  std::vector<std::string_view> commands = {};   // applied when the page opens
  Target (*select)(const PlanIndex&) = nullptr;  // selected when the page opens
  ViewKind view = ViewKind::layout;              // where to look
  Spans (*text)(const AppState&) = nullptr;      // every number comes from the plan
  std::string_view ask = {};                     // "Press Right"; empty: read and go on
  bool (*is_done)(const AppState&) = nullptr;    // null: reading is all
  void (*perform)(AppState&) = nullptr;          // what the reader would do: for the robot
};

struct Lesson {
  std::string_view title;
  std::string_view question;
  std::vector<LessonStep> steps;
};

std::span<const Lesson> all_lessons();

/// Opens a page: scenario, commands, selection. False (and a message) when its scenario is not
/// there.
bool open_lesson(AppState& state, LessonPlace place);
/// Puts a page back as a state file has it, without opening anything: what is shown stays, and the
/// page's own plan is made again to tell whether its words are still about what is shown.
void restore_lesson(AppState& state, LessonPlace place);
/// The open page; null when no lesson is open.
const LessonStep* current_step(const AppState& state);
/// Words of the open page, empty while its plan is not ready.
Spans lesson_text(const AppState& state);
bool is_lesson_done(const AppState& state);
/// Pages on and back, over the ends of lessons.
bool next_page(AppState& state);
bool previous_page(AppState& state);
void close_lesson(AppState& state);

}  // namespace cpscope::gui
