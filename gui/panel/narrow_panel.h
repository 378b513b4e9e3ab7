#pragma once

#include "gui/panel/ui.h"

#include <cstdint>
#include <optional>

namespace cpscope::gui {

/// True for screens that have no room for panels beside each other: phones, and laptops at a high
/// zoom.
bool is_narrow(const Ui& ui, float width);

enum class NarrowPart : uint8_t { view, scenario, selection };

/// The part that fills a narrow screen. A view that gets the focus comes to the front.
struct NarrowTab {
  NarrowPart part = NarrowPart::view;
  std::optional<ViewKind> last_focus;

  void follow(const AppState& state);
};

/// Heights in screen pixels of the playhead's panel and of the tabs at a width.
float narrow_transport_height(const Ui& ui, float width);
float narrow_tabs_height(const Ui& ui, float width);
/// True if the playhead's track has a row of its own at a width.
bool has_track_row(const Ui& ui, float width);
/// Height of the playhead's panel of a view that another page embeds.
float embedded_transport_height(const Ui& ui, float width);

/// True if a stroke to the side shows another view: the whole width of this one is shown, so that
/// there is nothing to move, and no dialog is open.
bool can_swipe(const AppState& state);
/// Shows the next view (1) or the one before (-1), in the order of the tabs.
void swipe(AppState& state, int32_t direction);

/// One button for each view, for the scenario and for the selection.
void build_narrow_tabs(Ui& ui, const Box& box, NarrowTab& tab);

}  // namespace cpscope::gui
