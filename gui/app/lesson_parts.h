#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui {

// Lessons that stand in files of their own; all_lessons() puts them in order.

Lesson lesson_few_queries(), lesson_two_directions(), lesson_helpers(), lesson_mesh();
Lesson lesson_double_ring(), lesson_backward(), lesson_grouped_heads(), lesson_packed();
Lesson lesson_fp8(), lesson_overlap(), lesson_memory();

/// Prepares a page that speaks of predicted times: chooses a cluster that has a GPU for every rank,
/// unless one is chosen. The next page without such times forgets it.
void show_times(AppState& state);
void forget_times(AppState& state);

// What readers of several lessons do, and how it is seen.

void press_right(AppState& state);
void press_right_until(AppState& state, bool (*is_there)(const AppState&));
bool has_link(const AppState& state);
bool is_in_last_forward_step(const AppState& state);
void select_first_link(AppState& state);

}  // namespace cpscope::gui
