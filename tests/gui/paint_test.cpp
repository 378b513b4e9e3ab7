#include "gui/panel/offscreen.h"
#include "tests/support/mark_gallery.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using namespace cpscope::gui;

TEST(Paint, ShowsTheGalleryForReview) {
  for (const ThemeName name : kThemeNames) {
    const Drawing drawing = draw_mark_gallery(theme_of(name));
    save_png_for_review("gallery", drawing, kMarkGallerySize, name);
    save_png_for_review("gallery_2x", drawing, kMarkGallerySize, name, 2);
  }
}

}  // namespace
}  // namespace cpscope::tests
