#include "gui/panel/fonts.h"

#include "gui/panel/hatch.h"
#include "gui/panel/offscreen.h"
#include "tests/gui/panel/paint_colors.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

using tests::kBackground;
using tests::kInk;

bool are_packages_here() { return std::filesystem::exists(FontFiles{}.body); }

Box ink_of_text(Offscreen& screen, const std::string& text, Face face, float size) {
  const float scale = screen.fonts().scale;
  Drawing drawing;
  drawing.add(Label{{20, 20}, Anchor::left_top, kInk, size, face, text});
  const Image image = screen.draw(drawing);
  Box ink{1e9F, 1e9F, -1, -1};
  for (int32_t y = 0; y < image.height; ++y) {
    for (int32_t x = 0; x < image.width; ++x) {
      if (image.at(x, y) == kBackground) continue;
      const float fx = static_cast<float>(x) / scale, fy = static_cast<float>(y) / scale;
      ink = {std::min(ink.x0, fx), std::min(ink.y0, fy), std::max(ink.x1, fx + 1 / scale),
             std::max(ink.y1, fy + 1 / scale)};
    }
  }
  return ink;
}

TEST(Fonts, FallBackToTheBuiltInOneAndSaySo) {
  ImFontAtlas atlas;
  FontFiles files;
  files.mono = "/nowhere/mono.ttf";
  const Fonts fonts = load_fonts(atlas, FontChoice::packages, 1, files);
  EXPECT_EQ(fonts.used, FontChoice::built_in);
  EXPECT_NE(fonts.missing.find("fonts-jetbrains-mono"), std::string::npos) << fonts.missing;
  EXPECT_GT(fonts.text_width("12", 13, Face::mono), fonts.text_width("1", 13, Face::mono));
}

TEST(Fonts, TakeNoFileThatIsNoFont) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "cpscope_no_font.otf").string();
  for (const std::string& bytes :
       {std::string(), std::string("no font at all"), std::string(4000, '\xff')}) {
    std::ofstream(path, std::ios::binary) << bytes;
    ImFontAtlas atlas;
    EXPECT_EQ(load_fonts(atlas, FontChoice::packages, 1, {path, path, path}).used,
              FontChoice::built_in);
  }
  std::filesystem::remove(path);
}

TEST(Fonts, AskNobodyForTheBuiltInOne) {
  ImFontAtlas atlas;
  const Fonts fonts = load_fonts(atlas, FontChoice::built_in);
  EXPECT_EQ(fonts.used, FontChoice::built_in);
  EXPECT_EQ(fonts.missing, "");
  EXPECT_EQ(fonts.find(Face::body, 15).size, 13);
  EXPECT_EQ(fonts.find(Face::strong, 30).size, 26);
}

TEST(Fonts, GiveTheNearestLoadedSize) {
  if (!are_packages_here()) GTEST_SKIP() << "requires fonts: Inter is not installed";
  ImFontAtlas atlas;
  const Fonts fonts = load_fonts(atlas, FontChoice::packages);
  EXPECT_EQ(fonts.missing, "");
  EXPECT_EQ(fonts.find(Face::body, 13).size, 13);
  EXPECT_EQ(fonts.find(Face::body, 13.4F).size, 13);
  EXPECT_EQ(fonts.find(Face::body, 1).size, 10);
  EXPECT_EQ(fonts.find(Face::mono, 99).size, 18);
}

TEST(Fonts, MeasureWhatTheyPaint) {
  if (!are_packages_here()) GTEST_SKIP() << "requires fonts: Inter is not installed";
  for (const float scale : {1.F, 1.5F, 2.F}) {
    Offscreen screen({{400, 80}, scale, FontChoice::packages, kBackground});
    const TextWidth width_of = text_width_of(screen.fonts());
    for (const Face face : {Face::body, Face::mono, Face::strong}) {
      for (const float size : {11.F, 13.F, 18.F}) {
        const std::string text = "Hamburg 131072 tokens H";
        const Box ink = ink_of_text(screen, text, face, size);
        EXPECT_NEAR(ink.width(), width_of(text, size, face), size * 0.25F) << size << scale;
        // The ink of a line fits into its size, except for the faint edge of a pixel.
        EXPECT_GE(ink.y0, 20 - 1 / scale) << size << " " << scale;
        EXPECT_LE(ink.y1, 20 + size + 1 / scale) << size << " " << scale;
        // The ink uses most of the size: letters are not smaller than necessary.
        EXPECT_GE(ink.height(), size * 0.8F) << size << " " << scale;
      }
    }
  }
}

TEST(Fonts, GiveFiguresOneWidth) {
  if (!are_packages_here()) GTEST_SKIP() << "requires fonts: Inter is not installed";
  ImFontAtlas atlas;
  const Fonts fonts = load_fonts(atlas, FontChoice::packages);
  EXPECT_EQ(fonts.text_width("1111", 13, Face::mono), fonts.text_width("8888", 13, Face::mono));
}

TEST(Hatches, RepeatWithoutASeam) {
  for (const Hatch hatch : {Hatch::diagonal, Hatch::cross, Hatch::dots}) {
    for (const int32_t period : {8, 12, 16}) {
      const int32_t side = period * 3;
      const std::vector<uint8_t> tile = draw_hatch(hatch, period, side);
      for (int32_t y = 0; y < side; ++y) {
        for (int32_t x = 0; x < side; ++x) {
          ASSERT_EQ(tile[static_cast<size_t>(y * side + x)],
                    tile[static_cast<size_t>(y % period * side + x % period)]);
        }
      }
    }
  }
  EXPECT_EQ(draw_hatch(Hatch::none, 8, 8), std::vector<uint8_t>(64, 0));
}

}  // namespace
}  // namespace cpscope::gui
