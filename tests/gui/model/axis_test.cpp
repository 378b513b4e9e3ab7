#include "gui/model/axis.h"

#include "gui/model/legend.h"
#include "tests/gui/model/view_check.h"

#include <cmath>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Axis;
using gui::AxisSpan;
using gui::AxisUnit;
using gui::Tick;

std::vector<std::string> texts(const std::vector<Tick>& ticks) {
  std::vector<std::string> all;
  for (const Tick& tick : ticks) all.push_back(tick.text);
  return all;
}

float fixed_width(const std::string& text, float size, gui::Face) {
  return static_cast<float>(text.size()) * size * 0.6F;
}

TEST(Figures, ArePrintedWithUnits) {
  EXPECT_EQ(gui::print_count(0), "0");
  EXPECT_EQ(gui::print_count(999), "999");
  EXPECT_EQ(gui::print_count(131'072), "131 072");
  EXPECT_EQ(gui::print_count(-1'048'576), "-1 048 576");
  EXPECT_EQ(gui::print_short_count(256), "256");
  EXPECT_EQ(gui::print_short_count(131'072), "128 Ki");
  EXPECT_EQ(gui::print_short_count(1'572'864), "1.5 Mi");
  EXPECT_EQ(gui::print_short_count(131'073), "131 073");
  EXPECT_EQ(gui::print_bytes(0), "0 B");
  EXPECT_EQ(gui::print_bytes(512.0 * 1024 * 1024), "512 MiB");
  EXPECT_EQ(gui::print_bytes(1536), "1.5 KiB");
  EXPECT_EQ(gui::print_bytes(1023.9 * 1024), "1 MiB");
  EXPECT_EQ(gui::print_duration(850), "850 ns");
  EXPECT_EQ(gui::print_duration(12'500), "12.5 us");
  EXPECT_EQ(gui::print_duration(1.25e9), "1.25 s");
  EXPECT_EQ(gui::print_scale(552.4, "token"), "1 px = 552 tokens");
  EXPECT_EQ(gui::print_scale(1.5, "token"), "1 px = 1.5 tokens");
  EXPECT_EQ(gui::print_scale(1, "token"), "1 px = 1 token");
  EXPECT_EQ(gui::print_scale(1.0 / 12, "token"), "1 token = 12 px");
  EXPECT_EQ(gui::print_share(0.125), "12.5 %");
  EXPECT_EQ(gui::print_share(1), "100 %");
  EXPECT_EQ(gui::print_share(0.0002), "<0.1 %");
  EXPECT_EQ(gui::print_share(0.9999), ">99.9 %");
}

TEST(Axis, MapsUnitsToPixelsAndBack) {
  const Axis axis(1000, {0.25, 0.75}, 100, 600);
  EXPECT_FLOAT_EQ(axis.pixel_of(250), 100);
  EXPECT_FLOAT_EQ(axis.pixel_of(750), 600);
  EXPECT_FLOAT_EQ(axis.pixel_of(500), 350);
  EXPECT_DOUBLE_EQ(axis.value_at(350), 500);
  EXPECT_DOUBLE_EQ(axis.units_per_pixel(), 1);
  const Axis upwards(1000, {}, 600, 100);
  EXPECT_FLOAT_EQ(upwards.pixel_of(0), 600);
  EXPECT_DOUBLE_EQ(upwards.value_at(100), 1000);
}

TEST(Axis, CountsTokensInPowersOfTwoWhereTheTotalDoes) {
  EXPECT_EQ(texts(make_ticks(Axis(1'048'576, {}, 0, 950), AxisUnit::tokens, 100)),
            (std::vector<std::string>{"0", "128 Ki", "256 Ki", "384 Ki", "512 Ki", "640 Ki",
                                      "768 Ki", "896 Ki", "1 Mi"}));
  EXPECT_EQ(texts(make_ticks(Axis(1024, {}, 0, 400), AxisUnit::tokens, 90)),
            (std::vector<std::string>{"0", "256", "512", "768", "1 024"}));
  EXPECT_EQ(texts(make_ticks(Axis(10'000, {}, 0, 300), AxisUnit::tokens, 100)),
            (std::vector<std::string>{"0", "4 Ki", "8 Ki"}))
      << "large totals count so even when they are odd";
  EXPECT_EQ(texts(make_ticks(Axis(100, {}, 0, 500), AxisUnit::tokens, 60)),
            (std::vector<std::string>{"0", "20", "40", "60", "80", "100"}));
  EXPECT_EQ(texts(make_ticks(Axis(3, {}, 0, 500), AxisUnit::count, 20)),
            (std::vector<std::string>{"0", "1", "2", "3"}));
  EXPECT_EQ(texts(make_ticks(Axis(50'000, {}, 0, 300), AxisUnit::nanoseconds, 100)),
            (std::vector<std::string>{"0 us", "20 us", "40 us"}));
}

TEST(Axis, TicksAreAscendingApartAndShownForAnyCamera) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> any(-3, 4);
  for (int n = 0; n < 20'000; ++n) {
    const double total = std::exp2(std::uniform_real_distribution<double>(0, 31)(random));
    const double width = std::exp2(std::uniform_real_distribution<double>(-40, 3)(random));
    const double lo = any(random);
    const Axis axis(total, AxisSpan{lo, lo + width}, 10, 500);
    const AxisUnit unit = static_cast<AxisUnit>(n % 3);
    const std::vector<Tick> ticks = make_ticks(axis, unit, 50);
    ASSERT_LE(ticks.size(), 11U);
    float last = -1e9F;
    for (const Tick& tick : ticks) {
      ASSERT_TRUE(std::isfinite(tick.pixel));
      ASSERT_GE(tick.pixel - last, 49.9F) << tick.text;
      ASSERT_GE(tick.pixel, 9.5F);
      ASSERT_LE(tick.pixel, 500.5F);
      if (unit != AxisUnit::nanoseconds) {
        ASSERT_EQ(tick.value, std::floor(tick.value));
      }
      last = tick.pixel;
    }
  }
}

TEST(Axis, SurvivesCamerasThatAreNoNumbers) {
  const double nan = std::nan("");
  EXPECT_EQ(gui::sane_span({nan, 1}), AxisSpan{});
  EXPECT_EQ(gui::sane_span({0, INFINITY}), AxisSpan{});
  const AxisSpan turned = gui::sane_span({0.75, 0.25});
  EXPECT_EQ(turned, (AxisSpan{0.25, 0.75}));
  const AxisSpan point = gui::sane_span({0.5, 0.5});
  EXPECT_GT(point.hi, point.lo);
  const AxisSpan away = gui::sane_span({7, 8});
  EXPECT_LT(away.lo, 1);
}

TEST(Ruler, NumbersNeitherOverlapNorLeaveTheBox) {
  gui::ViewInput input;
  const gui::Theme theme;
  input.theme = &theme;
  input.text_width = fixed_width;
  for (const int64_t total :
       {int64_t{2048}, int64_t{20'000}, int64_t{640'000}, int64_t{50'000}, int64_t{1'048'576}})
    for (const AxisSpan span : {AxisSpan{0, 1}, AxisSpan{0.3, 0.3001}, AxisSpan{0.9, 1}}) {
      gui::Drawing drawing;
      const gui::Box box{20, 0, 420, 20};
      add_ruler(drawing, input, Axis(static_cast<double>(total), span, 20, 420), box, {});
      float last = box.x0 - 4;
      int labels = 0;
      for (const gui::Mark& mark : drawing.marks) {
        const auto* label = std::get_if<gui::Label>(&mark);
        if (label == nullptr) continue;
        const float half = fixed_width(label->text, label->size, label->face) / 2;
        EXPECT_GE(label->at.x - half, last + 3.99F) << label->text;
        last = label->at.x + half;
        EXPECT_LE(last, box.x1 + 0.01F) << label->text;
        ++labels;
      }
      EXPECT_GE(labels, span.hi - span.lo < 0.001 ? 0 : 1) << total;
    }
}

TEST(Texts, AreCutWhereTheyDoNotFit) {
  EXPECT_EQ(gui::fit_text(fixed_width, "rank 3", 10, gui::Face::body, 36), "rank 3");
  EXPECT_EQ(gui::fit_text(fixed_width, "rank 3 of 8", 10, gui::Face::body, 48), "rank 3..");
  EXPECT_EQ(gui::fit_text(fixed_width, "rank 3 of 8", 10, gui::Face::body, 10), "");
}

TEST(FirstThatFits, TakesTheLongestThatHasRoomAndCutsOnlyTheLast) {
  const auto choose = [](float room) {
    return gui::first_that_fits(even_width, {"a long sentence", "a short one", "word"}, 10,
                                gui::Face::mono, room);
  };
  EXPECT_EQ(choose(15 * 6), "a long sentence");
  EXPECT_EQ(choose(15 * 6 - 1), "a short one");
  EXPECT_EQ(choose(11 * 6 - 1), "word");
  EXPECT_EQ(choose(4 * 6 - 1), gui::fit_text(even_width, "word", 10, gui::Face::mono, 4 * 6 - 1));
}

TEST(Legend, LeavesASentenceOutThatDoesNotFitAsAWhole) {
  gui::ViewInput input;
  input.theme = &gui::theme_of(gui::ThemeName::dark);
  input.text_width = even_width;
  gui::LegendEntry entry;
  entry.text = "one two three four five six seven eight";
  entry.starts_line = true;
  for (float height = 0; height < 200; height += 1) {
    gui::Drawing drawing;
    add_legend_flow(drawing, input, {0, 0, 100, height}, {entry, entry});
    std::string text;
    for (const gui::Mark& mark : drawing.marks) text += std::get<gui::Label>(mark).text + " ";
    const bool is_whole =
        text.empty() || text == entry.text + " " || text == entry.text + " " + entry.text + " ";
    EXPECT_TRUE(is_whole) << height << ": " << text;
  }
}

TEST(LineBreak, IsNeverInsideANumber) {
  EXPECT_EQ(gui::find_line_break("2 337 265 of 8 386 816 pairs"), 9U);
  EXPECT_EQ(gui::find_line_break("2 337 265 of 8 386 816 pairs", 13), 22U);
  EXPECT_EQ(gui::find_line_break("[1 798, 1 928)"), 7U);
  EXPECT_EQ(gui::find_line_break("4 2000"), 1U) << "two numbers";
  EXPECT_EQ(gui::find_line_break("131 072"), std::string_view::npos);
}

}  // namespace
}  // namespace cpscope::tests
