#include "gui/panel/panels.h"

namespace cpscope::gui {

void build_inspector(Ui& ui, const Box& box) {
  if (begin_panel(ui, "inspector", box, true)) {
    panel_heading(ui, "Inspector", "what is selected?");
  }
  end_panel();
}

}  // namespace cpscope::gui
