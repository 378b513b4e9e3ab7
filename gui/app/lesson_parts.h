#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui {

// Lessons that stand in files of their own; all_lessons() puts them in order.

Lesson lesson_few_queries(), lesson_two_directions(), lesson_helpers(), lesson_mesh();
Lesson lesson_double_ring(), lesson_backward(), lesson_grouped_heads(), lesson_packed();
Lesson lesson_fp8();

}  // namespace cpscope::gui
