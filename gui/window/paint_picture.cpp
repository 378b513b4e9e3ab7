#include "gui/window/paint_picture.h"

#include "gui/panel/offscreen.h"
#include "gui/panel/paint.h"

#include <utility>

namespace cpscope::gui {

PaintedPicture paint_picture(const std::function<Picture(const TextWidth&)>& compose, Size size,
                             ThemeName theme, FontChoice fonts, float scale) {
  Offscreen screen({size, scale, fonts, theme_of(theme).of(Role::background)});
  Picture picture = compose(text_width_of(screen.fonts()));
  screen.frame([&] {
    paint(picture.drawing,
          {ImGui::GetBackgroundDrawList(), &screen.fonts(), &screen.textures(), {0, 0}});
  });
  return {screen.draw(), std::move(picture), screen.fonts().missing};
}

}  // namespace cpscope::gui
