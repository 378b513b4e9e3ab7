#pragma once

#include "gui/panel/ui.h"

#include <string>
#include <string_view>
#include <vector>

namespace cpscope::gui {

/// One of the buttons at the right of a view's heading.
struct HeadingButton {
  std::string name, label;
  bool is_pressed = false;
  std::string_view tip;
};

/// The buttons of a view: whose numbers are shown and compared with what; steps or time, and whose;
/// the order and the colours of the mask.
std::vector<HeadingButton> buttons_of(const AppState& state, ViewKind kind);
/// Width in screen pixels of all of them, with the gaps.
float width_of(const std::vector<HeadingButton>& buttons);
void build_heading_buttons(Ui& ui, const std::vector<HeadingButton>& buttons);

/// A button that opens a list of clusters and chooses one of them; the names of its items begin
/// with `name`.
void cluster_button(Ui& ui, const std::string& name, const std::string& label);

}  // namespace cpscope::gui
