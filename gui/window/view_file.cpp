#include "gui/window/view_file.h"

#include "gui/draw/glyph_widths.h"
#include "gui/draw/svg_file.h"
#include "gui/window/picture.h"
#include "sim/base/version.h"
#include "sim/plan/plan.h"

#include <filesystem>

namespace cpscope::gui {

std::string imprint_of(const AppState& state) {
  const std::string file = std::filesystem::path(state.document.path()).filename().string();
  return (file.empty() ? "unsaved" : file) + "   plan " + to_hex(state.plan()->plan().hash) +
         "   cpscope " + program_version();
}

Result<size_t> write_view_svg(const AppState& state, const std::string& path) {
  const ViewKind kind = state.focus_view.value_or(ViewKind::layout);
  const Picture picture = draw_picture({&state, imprint_of(state), TextWidth(estimate_width), ""},
                                       kind, natural_size(kind));
  return write_svg(
      path, picture.drawing,
      {picture.size, theme_of(state.theme).of(Role::background), picture.title, picture.alt});
}

}  // namespace cpscope::gui
