#pragma once

#include "gui/draw/image.h"
#include "gui/model/view.h"
#include "gui/panel/fonts.h"
#include "gui/window/picture.h"

#include <functional>
#include <string>

namespace cpscope::gui {

/// A picture, and its pixels.
struct PaintedPicture {
  Image image;
  Picture picture;
  std::string missing_fonts;  // a sentence, or empty
};

/// Composes a picture with the text widths of the fonts that then paint it: size * scale pixels.
PaintedPicture paint_picture(const std::function<Picture(const TextWidth&)>& compose, Size size,
                             ThemeName theme, FontChoice fonts, float scale);

}  // namespace cpscope::gui
