#include "gui/window/view_file.h"

#include "gui/app/ways.h"
#include "gui/draw/glyph_widths.h"
#include "gui/draw/svg_file.h"
#include "sim/base/version.h"
#include "sim/plan/plan.h"

#include <filesystem>

namespace cpscope::gui {

std::string imprint_of(const AppState& state) {
  const std::string file = std::filesystem::path(state.document.path()).filename().string();
  return (file.empty() ? "unsaved" : file) + "   plan " + to_hex(state.plan()->plan().hash) +
         "   cpscope " + program_version();
}

Result<ViewPicture> picture_of_view(const AppState& state, int32_t caption_lines) {
  if (!state.shows_ways) {
    const ViewKind kind = state.focus_view.value_or(ViewKind::layout);
    return ViewPicture{
        natural_size(kind), [&state, kind, caption_lines](const TextWidth& text_width) {
          return draw_picture({&state, imprint_of(state), text_width, "", caption_lines}, kind,
                              natural_size(kind));
        }};
  }
  const SharedCandidates candidates = shown_ways(state);
  if (!candidates)
    return make_error(ErrorKind::unavailable, "There is no comparison to be drawn",
                      "wait until the page of ways shows one");
  return ViewPicture{kComparisonSize, [&state, candidates](const TextWidth& text_width) {
                       return draw_comparison_picture(*candidates, state.document.scenario().title,
                                                      state.theme, text_width);
                     }};
}

Result<size_t> write_view_svg(const AppState& state, const std::string& path) {
  const Result<ViewPicture> view = picture_of_view(state);
  if (!view) return view.error();
  const Picture picture = view.value().compose(TextWidth(estimate_width));
  return write_svg(
      path, picture.drawing,
      {picture.size, theme_of(state.theme).of(Role::background), picture.title, picture.alt});
}

}  // namespace cpscope::gui
