#pragma once

#include "gui/app/app_state.h"
#include "gui/draw/drawing.h"
#include "gui/model/view.h"
#include "sim/clock/candidates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::gui {

/// A drawing and its size.
struct Picture {
  Drawing drawing;
  Size size;
  std::string title;  // one line: scenario and view
  std::string alt;    // one sentence: what happens at the moment
};

/// The input of a picture.
struct PictureSource {
  const AppState* state = nullptr;  // must have a plan
  std::string imprint;              // small text at the foot: version, plan, file
  TextWidth text_width;
  std::string without_numbers;  // why there is no run; shown instead of the view numbers
  int32_t caption_lines =
      0;  // of an animation: room for as many lines, filled with whole sentences
};

/// A size that suits a view, or all six together.
Size natural_size(ViewKind kind);
Size natural_size(const std::vector<ViewKind>& kinds);
Size natural_poster_size();

/// All ways to split a batch, drawn as by `compare --out`.
Picture draw_comparison_picture(const Candidates& comparison, const std::string& title,
                                ThemeName theme, const TextWidth& text_width);
inline constexpr Size kComparisonSize{1080, 720};

/// One view of the state's moment as a self-contained picture: title and question of the scenario,
/// the view with its scale, the steps with the playhead, and the caption.
Picture draw_picture(const PictureSource& source, ViewKind kind, Size size);
/// The same with some views side by side.
Picture draw_picture(const PictureSource& source, const std::vector<ViewKind>& kinds, Size size);
/// The view alone.
Picture draw_bare_view(const PictureSource& source, ViewKind kind, Size size);
/// All six views on one page.
Picture draw_poster(const PictureSource& source, Size size);

}  // namespace cpscope::gui
