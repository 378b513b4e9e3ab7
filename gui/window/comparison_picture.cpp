#include "gui/window/comparison_picture.h"

#include "gui/draw/glyph_widths.h"
#include "gui/draw/png_file.h"
#include "gui/draw/svg_file.h"
#include "gui/window/picture.h"
#include "gui/window/picture_size.h"
#include "sim/base/version.h"
#ifdef CPSCOPE_HAS_IMGUI
#include "gui/window/paint_picture.h"
#endif

#include <filesystem>
#include <optional>

namespace cpscope::gui {

Result<size_t> write_comparison(const Candidates& comparison,
                                const ComparisonPictureRequest& request) {
  const std::optional<ThemeName> theme = parse_theme(request.theme);
  if (!theme)
    return make_bad_input("--theme: no theme has this name: " + request.theme,
                          "dark, light or print");
  const std::string ending = std::filesystem::path(request.out_path).extension().string();
  if (ending != ".png" && ending != ".svg")
    return make_bad_input("--out names no kind of picture: " + request.out_path,
                          "end it in .png or .svg");
  const auto compose = [&](const TextWidth& text_width) {
    return draw_comparison_picture(comparison, request.title, *theme, text_width);
  };
  if (ending == ".png") {
#ifdef CPSCOPE_HAS_IMGUI
    const PaintedPicture painted =
        paint_picture(compose, kComparisonSize, *theme, FontChoice::packages, 1.0F);
    return write_png(request.out_path, painted.image,
                     {{"Title", painted.picture.title},
                      {"Description", painted.picture.alt},
                      {"Software", "cpscope " + program_version()}});
#else
    return make_error(ErrorKind::unavailable, "this build cannot write PNG", "end --out in .svg");
#endif
  }
  const Picture picture = compose(TextWidth(estimate_width));
  return write_svg(
      request.out_path, picture.drawing,
      {picture.size, theme_of(*theme).of(Role::background), picture.title, picture.alt});
}

}  // namespace cpscope::gui
