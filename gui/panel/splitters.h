#pragma once

#include "gui/panel/ui.h"

namespace cpscope::gui {

/// The borders between the six views, and the one beside the scenario, as handles that a drag
/// moves. A double click puts all of them back. `area`: the box of the six views, in screen pixels;
/// `has_views`: all six are shown. Hits: "border/side", "border/rows", "border/top_left" ...
void build_splitters(Ui& ui, const Box& area, bool has_views);

}  // namespace cpscope::gui
