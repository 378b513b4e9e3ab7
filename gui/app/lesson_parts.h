#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui {

// Lessons that stand in files of their own; all_lessons() puts them in order.

Lesson lesson_few_queries(), lesson_two_directions(), lesson_helpers(), lesson_mesh();
Lesson lesson_double_ring(), lesson_backward(), lesson_grouped_heads(), lesson_packed();
Lesson lesson_fp8();

// What readers of several lessons do, and how it is seen.

void press_right(AppState& state);
void press_right_until(AppState& state, bool (*is_there)(const AppState&));
bool has_link(const AppState& state);
void select_first_link(AppState& state);

}  // namespace cpscope::gui
