#include "gui/panel/paint.h"

#include "gui/panel/offscreen.h"
#include "gui/panel/raster.h"
#include "tests/gui/panel/paint_colors.h"
#include "tests/support/golden_image.h"
#include "tests/support/mark_gallery.h"
#include "tests/support/review_picture.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::draw_difference;
using tests::draw_mark_gallery;
using tests::expect_golden;
using tests::is_same_picture;
using tests::kBackground;
using tests::kInk;
using tests::kMarkGallerySize;
using tests::save_png_for_review;

constexpr Color kHalfInk{255, 255, 255, 128};

/// Paints one mark on the dark theme, with the built-in font.
Image paint_mark(Mark mark, float scale = 1) {
  Drawing drawing;
  drawing.marks.push_back(std::move(mark));
  return render_drawing(drawing, {64, 64}, ThemeName::dark, FontChoice::built_in, scale);
}

/// The smallest box around all pixels that are not background.
Box ink_of(const Image& image) {
  Box ink{1e9F, 1e9F, -1, -1};
  for (int32_t y = 0; y < image.height; ++y) {
    for (int32_t x = 0; x < image.width; ++x) {
      if (image.at(x, y) == kBackground) continue;
      const auto fx = static_cast<float>(x), fy = static_cast<float>(y);
      ink = {std::min(ink.x0, fx), std::min(ink.y0, fy), std::max(ink.x1, fx + 1),
             std::max(ink.y1, fy + 1)};
    }
  }
  return ink;
}

int64_t count_ink(const Image& image) {
  return std::count_if(image.pixels.begin(), image.pixels.end(),
                       [](Color c) { return c != kBackground; });
}

Image golden_of(ThemeName name) {
  return render_drawing(draw_mark_gallery(theme_of(name)), kMarkGallerySize, name,
                        FontChoice::built_in);
}

TEST(PaintGolden, ShowsEveryMarkInTheDarkTheme) {
  if (const auto why = expect_golden("marks_dark", golden_of(ThemeName::dark)))
    GTEST_SKIP() << *why;
}

TEST(PaintGolden, ShowsEveryMarkInTheLightTheme) {
  if (const auto why = expect_golden("marks_light", golden_of(ThemeName::light))) {
    GTEST_SKIP() << *why;
  }
}

TEST(PaintGolden, ShowsEveryMarkInThePrintTheme) {
  if (const auto why = expect_golden("marks_print", golden_of(ThemeName::print))) {
    GTEST_SKIP() << *why;
  }
}

TEST(PaintGolden, IsLeftForReviewWithTheRealFonts) {
  for (const ThemeName name : kThemeNames) {
    const Drawing drawing = draw_mark_gallery(theme_of(name));
    save_png_for_review("marks", drawing, kMarkGallerySize, name);
    save_png_for_review("marks_2x", drawing, kMarkGallerySize, name, 2);
  }
}

TEST(GoldenDifference, MarksWhatDiffersAndWhatIsMissing) {
  Image expected(3, 2, {0, 0, 0});
  Image seen(2, 2, {0, 0, 0});
  seen.at(1, 1) = {1, 0, 0};
  const Image difference = draw_difference(expected, seen);
  EXPECT_EQ(difference.width, 3);
  EXPECT_EQ(difference.at(0, 0), (Color{192, 192, 192}));
  EXPECT_EQ(difference.at(1, 1), (Color{255, 0, 0}));
  EXPECT_EQ(difference.at(2, 0), (Color{255, 0, 0}));
}

TEST(GoldenDifference, TakesAFewPixelsAFewLevelsApartAndNoMore) {
  const Image expected(20, 20, {100, 100, 100});
  Image seen = expected;
  const auto change = [&](int32_t pixels, uint8_t level) {
    seen = expected;
    for (int32_t i = 0; i < pixels; ++i) seen.at(i % 20, i / 20).b = level;
  };
  change(32, 116);
  EXPECT_TRUE(is_same_picture(expected, seen));
  change(33, 101);
  EXPECT_FALSE(is_same_picture(expected, seen));
  change(1, 117);
  EXPECT_FALSE(is_same_picture(expected, seen));
  change(1, 83);
  EXPECT_FALSE(is_same_picture(expected, seen));
  EXPECT_FALSE(is_same_picture(expected, Image(20, 19, {100, 100, 100})));
}

TEST(GoldenDifference, TakesMorePixelsOfALargerPicture) {
  const Image expected(1024, 640, {100, 100, 100});
  Image seen = expected;
  for (int32_t i = 0; i < 40; ++i) seen.at(i, 7).b = 116;
  EXPECT_TRUE(is_same_picture(expected, seen));
  seen.at(40, 7).b = 101;
  EXPECT_FALSE(is_same_picture(expected, seen));
}

TEST(Paint, GivesTheSamePixelsTwice) {
  EXPECT_TRUE(golden_of(ThemeName::dark) == golden_of(ThemeName::dark));
  Drawing changed = draw_mark_gallery(theme_of(ThemeName::dark));
  std::get<FilledBox>(changed.marks[0]).box.x1 -= 1;
  EXPECT_FALSE(golden_of(ThemeName::dark) ==
               render_drawing(changed, kMarkGallerySize, ThemeName::dark, FontChoice::built_in));
}

TEST(Paint, PutsBoxesOnWholePixels) {
  EXPECT_EQ(ink_of(paint_mark(FilledBox{.box = {10.4F, 20.6F, 30.4F, 40.4F}, .color = kInk})),
            (Box{10, 21, 30, 40}));
  EXPECT_EQ(ink_of(paint_mark(FilledBox{.box = {5, 5, 10, 10}, .color = kInk}, 2)),
            (Box{10, 10, 20, 20}));
}

TEST(Paint, ShowsWhateverIsNotEmpty) {
  EXPECT_EQ(ink_of(paint_mark(FilledBox{.box = {10.6F, 5, 10.7F, 9}, .color = kInk})),
            (Box{11, 5, 12, 9}));
  EXPECT_EQ(count_ink(paint_mark(FilledBox{.box = {10, 5, 10, 9}, .color = kInk})), 0);
  EXPECT_EQ(count_ink(paint_mark(FilledBox{.box = {10, 5, 9, 9}, .color = kInk})), 0);
}

TEST(Paint, LetsNeighboursMeetWithoutAGapOrASeam) {
  Drawing drawing;
  for (int32_t i = 0; i < 10; ++i) {
    const float x = 2.3F + static_cast<float>(i) * 5.17F;
    drawing.add(FilledBox{.box = {x, 0, x + 5.17F, 64}, .color = kHalfInk});
  }
  const Image image = render_drawing(drawing, {64, 64}, ThemeName::dark, FontChoice::built_in);
  for (int32_t x = 2; x < 54; ++x) EXPECT_EQ(image.at(x, 30), image.at(10, 30)) << x;
}

TEST(Paint, KeepsHatchesInsideAndInStep) {
  for (const Hatch hatch : {Hatch::diagonal, Hatch::cross, Hatch::dots}) {
    const Color clear{0, 0, 0, 0};
    const Box whole{5, 5, 55, 45};
    const Image one = paint_mark(FilledBox{whole, clear, hatch, kInk, 0});
    const Box ink = ink_of(one);
    EXPECT_TRUE(ink.x0 >= 5 && ink.y0 >= 5 && ink.x1 <= 55 && ink.y1 <= 45);
    const int64_t inked = count_ink(one);
    EXPECT_GT(inked, 50 * 40 / 10);
    EXPECT_LT(inked, 50 * 40 * 6 / 10);
    // Two halves side by side look like the whole: there is no seam between them.
    Drawing halves;
    halves.add(FilledBox{{5, 5, 22, 45}, clear, hatch, kInk, 0});
    halves.add(FilledBox{{22, 5, 55, 45}, clear, hatch, kInk, 0});
    EXPECT_TRUE(one == render_drawing(halves, {64, 64}, ThemeName::dark, FontChoice::built_in));
  }
}

TEST(Paint, TellsHatchesApart) {
  std::vector<Image> seen;
  for (const Hatch hatch : {Hatch::none, Hatch::diagonal, Hatch::cross, Hatch::dots}) {
    seen.push_back(paint_mark(FilledBox{{0, 0, 64, 64}, {10, 10, 10}, hatch, kInk, 0}));
    for (size_t i = 0; i + 1 < seen.size(); ++i) EXPECT_FALSE(seen[i] == seen.back());
  }
}

TEST(Paint, GrowsOutlinesInwards) {
  for (const bool is_dashed : {false, true}) {
    for (const float rounding : {0.F, 6.F}) {
      const Image image = paint_mark(OutlinedBox{{10, 10, 50, 40}, kInk, 2, is_dashed, rounding});
      EXPECT_EQ(ink_of(image), (Box{10, 10, 50, 40})) << is_dashed << rounding;
      EXPECT_EQ(image.at(30, 25), kBackground);
      EXPECT_EQ(image.at(13, 13 + static_cast<int32_t>(rounding)), kBackground);
    }
  }
  const int64_t whole = count_ink(paint_mark(OutlinedBox{{10, 10, 50, 40}, kInk, 1}));
  EXPECT_EQ(whole, 2 * 40 + 2 * 28);
  const int64_t dashed = count_ink(paint_mark(OutlinedBox{{10, 10, 50, 40}, kInk, 1, true}));
  EXPECT_NEAR(static_cast<double>(dashed) / static_cast<double>(whole), 4.0 / 7, 0.12);
}

TEST(Paint, DrawsUprightLinesOfWholePixels) {
  EXPECT_EQ(ink_of(paint_mark(Line{{10, 5}, {10, 20}, kInk})), (Box{10, 5, 11, 20}));
  EXPECT_EQ(ink_of(paint_mark(Line{{20, 7}, {5, 7}, kInk})), (Box{5, 7, 20, 8}));
  const Image image = paint_mark(Line{{10, 5}, {10, 20}, kInk});
  EXPECT_EQ(image.at(10, 6), kInk);
  EXPECT_EQ(ink_of(paint_mark(Line{{10, 5}, {10, 20}, kInk}, 2)), (Box{20, 10, 22, 40}));
}

TEST(Paint, PutsArrowsAtTheEnd) {
  const Image plain = paint_mark(Line{{10, 30}, {50, 30}, kInk});
  const Image arrow = paint_mark(Line{{10, 30}, {50, 30}, kInk, 1, false, true});
  EXPECT_GT(count_ink(arrow), count_ink(plain));
  const Box ink = ink_of(arrow);
  EXPECT_NEAR(ink.x1, 51, 1);
  EXPECT_EQ(ink.x0, 10);
  EXPECT_NEAR(ink.center().y, 30.5, 0.6);
  // The head is at the end; the shaft before it is thin.
  EXPECT_NE(arrow.at(45, 32), kBackground);
  EXPECT_EQ(arrow.at(30, 32), kBackground);
}

TEST(Paint, LeavesGapsInDashes) {
  for (const Point to : {Point{60, 30}, Point{60, 50}}) {
    const auto whole = static_cast<double>(count_ink(paint_mark(Line{{4, 30}, to, kInk, 2})));
    const auto dashed =
        static_cast<double>(count_ink(paint_mark(Line{{4, 30}, to, kInk, 2, true})));
    EXPECT_LT(dashed, 0.8 * whole);
    EXPECT_GT(dashed, 0.5 * whole);
  }
}

TEST(Paint, FillsPolygonsEitherWayRound) {
  const std::vector<Point> points = {{10, 10}, {50, 12}, {40, 50}};
  const std::vector<Point> reversed(points.rbegin(), points.rend());
  const Image one = paint_mark(Polygon{points, kInk}), other = paint_mark(Polygon{reversed, kInk});
  EXPECT_EQ(one.at(35, 20), kInk);
  EXPECT_NEAR(static_cast<double>(count_ink(one)), static_cast<double>(count_ink(other)), 8);
  const Box ink = ink_of(one);
  EXPECT_NEAR(ink.x0, 10, 1);
  EXPECT_NEAR(ink.y1, 50, 1);
}

TEST(Paint, LetsRibbonsRunFromEndToEnd) {
  const Image image = paint_mark(Ribbon{5, 15, 10, 40, 60, 54, kInk});
  const auto span = [&](int32_t y) {
    int32_t first = 64, last = -1;
    for (int32_t x = 0; x < 64; ++x) {
      if (image.at(x, y) == kBackground) continue;
      first = std::min(first, x);
      last = std::max(last, x);
    }
    return std::pair(first, last + 1);
  };
  EXPECT_NEAR(span(10).first, 5, 1);
  EXPECT_NEAR(span(10).second, 15, 1);
  EXPECT_NEAR(span(53).first, 40, 1);
  EXPECT_NEAR(span(53).second, 60, 1);
  EXPECT_NEAR(span(32).first, 22.5, 2);
  EXPECT_EQ(span(9).second, 0);
  EXPECT_EQ(span(54).second, 0);
}

TEST(Paint, ShowsRibbonsThatAreThinnerThanAPixel) {
  EXPECT_GT(count_ink(paint_mark(Ribbon{20, 20.01F, 0, 40, 40.01F, 64, kInk})), 60);
}

TEST(Paint, PutsLabelsWhereTheirAnchorSays) {
  for (int32_t i = 0; i < 9; ++i) {
    const Image image =
        paint_mark(Label{{32, 32}, static_cast<Anchor>(i), kInk, 13, Face::body, "H8"});
    const Box ink = ink_of(image);
    const float places[] = {ink.x0 - 32, ink.center().x - 32, ink.x1 - 32};
    EXPECT_NEAR(places[i % 3], 0, 2) << i;
    if (i / 3 == 0) {
      EXPECT_GE(ink.y0, 31.5F);
    }
    if (i / 3 == 1) {
      EXPECT_NEAR(ink.center().y, 32, 1.1);
    }
    if (i / 3 == 2) {
      EXPECT_LE(ink.y1, 32.5F);
    }
  }
}

TEST(Paint, CutsAtNestedClipsAndOpensThemAgain) {
  Drawing drawing;
  drawing.add(PushClip{{10, 10, 50, 50}});
  drawing.add(PushClip{{0, 20, 30, 64}});
  drawing.add(FilledBox{.box = {0, 0, 64, 64}, .color = kInk});
  drawing.add(PopClip{});
  drawing.add(PopClip{});
  drawing.add(FilledBox{.box = {60, 60, 62, 62}, .color = kInk});
  const Image image = render_drawing(drawing, {64, 64}, ThemeName::dark, FontChoice::built_in);
  EXPECT_EQ(count_ink(image), 20 * 30 + 4);
  EXPECT_EQ(image.at(10, 20), kInk);
  EXPECT_EQ(image.at(29, 49), kInk);
}

TEST(Paint, ShowsCellsAlikeAsBoxesAndAsTexture) {
  Pixels cells{{0, 0, 64, 64}, 8, 8, {}};
  for (int32_t i = 0; i < 64; ++i) {
    cells.colors.push_back({static_cast<uint8_t>(i * 4), 100, static_cast<uint8_t>(255 - i)});
  }
  // The same picture with each cell split into 8 x 8: too many cells for boxes.
  Pixels fine{cells.box, 64, 64, {}};
  for (int32_t y = 0; y < 64; ++y) {
    for (int32_t x = 0; x < 64; ++x) {
      fine.colors.push_back(cells.colors[static_cast<size_t>(y / 8 * 8 + x / 8)]);
    }
  }
  EXPECT_TRUE(paint_mark(cells) == paint_mark(fine));
}

TEST(Paint, PaintsNothingForPlacesThatAreNoNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Mark> marks = {FilledBox{.box = {nan, 0, 9, 9}, .color = kInk},
                                   OutlinedBox{{0, nan, 9, 9}, kInk},
                                   Line{{0, 0}, {nan, 9}, kInk},
                                   Polygon{{{0, 0}, {nan, 9}, {9, 9}}, kInk},
                                   Ribbon{nan, 4, 0, 4, 8, 9, kInk},
                                   Pixels{{0, 0, nan, 9}, 1, 1, {kInk}},
                                   Pixels{{0, 0, 9, 9}, 2, 2, {kInk}},
                                   Polygon{{{0, 0}, {9, 9}}, kInk}};
  for (size_t i = 0; i < marks.size(); ++i) EXPECT_EQ(count_ink(paint_mark(marks[i])), 0) << i;
}

TEST(Paint, TakesPlacesThatAreFarAway) {
  const float far = 1e12F;
  EXPECT_EQ(count_ink(paint_mark(FilledBox{.box = {-far, -far, far, far}, .color = kInk})), 4096);
  EXPECT_EQ(count_ink(paint_mark(Line{{-far, 30}, {far, 30}, kInk})), 64);
  EXPECT_NEAR(
      static_cast<double>(count_ink(paint_mark(Line{{-1e6F, -1e6F}, {1e6F, 1e6F}, kInk, 2}))),
      64 * 4, 80);
  EXPECT_EQ(
      count_ink(paint_mark(Polygon{{{-far, -far}, {far, -far}, {far, far}, {-far, far}}, kInk})),
      4096);
  EXPECT_EQ(count_ink(paint_mark(OutlinedBox{{-far, 10, far, far}, kInk, 1, true})) > 20, true);
  EXPECT_GT(count_ink(paint_mark(Ribbon{-far, far, 0, -far, far, 64, kInk})), 4000);
}

/// The number of vertices that Dear ImGui would send to the GPU for a drawing.
int corners_of(const Drawing& drawing) {
  Offscreen screen({{64, 64}, 1, FontChoice::built_in, {}});
  int corners = 0;
  screen.frame([&] {
    ImDrawList* list = ImGui::GetBackgroundDrawList();
    paint(drawing, {list, &screen.fonts(), nullptr, {0, 0}});
    corners = list->VtxBuffer.Size;
  });
  return corners;
}

TEST(Paint, CostsNothingForWhatCannotBeSeen) {
  Drawing drawing;
  for (int32_t i = 0; i < 100; ++i) {
    const float x = 100 + static_cast<float>(i) * 10;
    drawing.add(FilledBox{{x, 0, x + 5, 60}, kInk, Hatch::cross, kInk, 3});
    drawing.add(OutlinedBox{{x, 0, x + 5, 60}, kInk, 1, true});
    drawing.add(Line{{x, 0}, {x + 20, 60}, kInk, 1, true, true});
    drawing.add(Polygon{{{x, 0}, {x + 5, 0}, {x, 60}}, kInk});
    drawing.add(Ribbon{x, x + 5, 0, x + 50, x + 55, 60, kInk});
    drawing.add(Label{{x, 10}, Anchor::left_top, kInk, 13, Face::body, "unseen"});
  }
  EXPECT_EQ(corners_of(drawing), 0);
}

TEST(Paint, TakesMoreCornersThanAnIndexCanCount) {
  // 40 000 boxes have 160 000 vertices; 16-bit indices end at 65 536.
  Drawing drawing;
  for (int32_t i = 0; i < 40'000; ++i) {
    const auto x = static_cast<float>(i % 200), y = static_cast<float>(i / 200);
    const auto level = static_cast<uint8_t>(i % 251);
    drawing.add(FilledBox{.box = {x, y, x + 1, y + 1}, .color = {level, level, 7}});
  }
  const Image image = render_drawing(drawing, {200, 200}, ThemeName::dark, FontChoice::built_in);
  for (int32_t i = 0; i < 40'000; ++i) {
    ASSERT_EQ(image.at(i % 200, i / 200).r, i % 251) << i;
  }
}

}  // namespace
}  // namespace cpscope::gui
