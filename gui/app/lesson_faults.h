#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui {

/// One page for each fault of the gallery, in its order: its scenario, what happened where, what is
/// planted, and the first wrong place selected.
Lesson lesson_faults();

/// Puts the playhead on, and selects, the place where the open plan would first go wrong.
void show_fault(AppState& state, const Fault& fault);

namespace words {
Spans fault_page(const AppState& state);
}

}  // namespace cpscope::gui
