#include "gui/draw/drawing.h"

#include "tests/gui/panel/paint_colors.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::kBlue;

TEST(PrintDrawing, WritesALineAMark) {
  Drawing drawing;
  drawing.add(FilledBox{{1, 2, 3.25F, 4}, kBlue, Hatch::dots, {255, 255, 255, 128}, 3});
  drawing.add(FilledBox{.box = {-0.01F, 0, 3, 4}, .color = kBlue});
  drawing.add(OutlinedBox{{1, 2, 3, 4}, kBlue, 2, true, 5});
  drawing.add(Line{{0, 1}, {2, 3}, kBlue, 1.5F, true, true});
  drawing.add(Polygon{{{0, 0}, {1, 0}, {0, 1}}, kBlue});
  drawing.add(Ribbon{1, 2, 3, 4, 5, 6, kBlue});
  drawing.add(Label{{7, 8}, Anchor::right_bottom, kBlue, 13, Face::strong, "a \"b\" \\\nc"});
  drawing.add(Pixels{{0, 0, 8, 8}, 1, 2, {kBlue, kBlue}});
  drawing.add(PushClip{{1, 2, 3, 4}});
  drawing.add(PopClip{});
  EXPECT_EQ(print_drawing(drawing),
            "box 1.0,2.0 3.2,4.0 #0077BB dots #FFFFFF80 round 3.0\n"
            "box 0.0,0.0 3.0,4.0 #0077BB\n"
            "outline 1.0,2.0 3.0,4.0 #0077BB width 2.0 dashed round 5.0\n"
            "line 0.0,1.0 2.0,3.0 #0077BB width 1.5 dashed arrow\n"
            "polygon 0.0,0.0 1.0,0.0 0.0,1.0 #0077BB\n"
            "ribbon 1.0..2.0 at 3.0 to 4.0..5.0 at 6.0 #0077BB\n"
            "label 7.0,8.0 right_bottom #0077BB strong 13.0 \"a \\\"b\\\" \\\\\\nc\"\n"
            "pixels 0.0,0.0 8.0,8.0 1x2 405b122f6bf6c525\n"
            "clip 1.0,2.0 3.0,4.0\n"
            "unclip\n");
}

TEST(PrintDrawing, TellsPicturesOfCellsApart) {
  Drawing one, other;
  one.add(Pixels{{0, 0, 8, 8}, 1, 2, {kBlue, {1, 2, 3}}});
  other.add(Pixels{{0, 0, 8, 8}, 1, 2, {kBlue, {1, 2, 4}}});
  EXPECT_NE(print_drawing(one), print_drawing(other));
  EXPECT_EQ(print_drawing({}), "");
}

}  // namespace
}  // namespace cpscope::gui
