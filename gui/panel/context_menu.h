#pragma once

#include "gui/panel/ui.h"

namespace cpscope::gui {

/// Opens the menu of a view at the mouse.
void open_context_menu();
/// Shows it while it is open: what can be copied from the view, and how it can be shown. For the
/// window of the panel that opened it.
void build_context_menu(Ui& ui);

}  // namespace cpscope::gui
