#pragma once

#include "gui/app/lesson.h"

namespace cpscope::gui {

/// One page for each fault of the gallery, in its order: its scenario, what happened and where, the
/// injected fault, and the first wrong place selected.
Lesson lesson_faults();

/// Moves the playhead to, and selects, the first place where the fault would show in the open plan.
void show_fault(AppState& state, const Fault& fault);

namespace words {
PageText fault_page;
}

}  // namespace cpscope::gui
