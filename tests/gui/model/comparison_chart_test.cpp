#include "gui/model/ways/comparison_chart.h"

#include "gui/draw/glyph_widths.h"
#include "gui/model/ways/comparison_list.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::gui {
namespace {

Candidate candidate_of(CommType type, const std::string& name, double us, int64_t bytes) {
  Candidate candidate;
  candidate.parallel.comm_type = type;
  candidate.name = name;
  candidate.forward_us = us;
  candidate.bytes_sent = bytes;
  return candidate;
}

/// Three possible ways, one that does not fit, one that is rejected.
Candidates some_ways() {
  Candidates ways;
  ways.cluster = "h200x8";
  ways.candidates = {candidate_of(CommType::a2a, "a2a, contiguous", 1000, 1 << 20),
                     candidate_of(CommType::p2p, "p2p, dual_chunk", 2000, 8 << 20),
                     candidate_of(CommType::p2p, "p2p, striped", 4000, 8 << 20),
                     candidate_of(CommType::all_gather, "all_gather, lpt 512", 9000, 9 << 20),
                     candidate_of(CommType::a2a_p2p, "a2a+p2p of 3", 0, 0)};
  ways.candidates[0].is_pareto = true;
  ways.candidates[1].is_own = true;
  ways.candidates[3].fits = false;
  ways.candidates[4].refusal = "7 heads are not divisible by 3";
  ways.best = 0;
  ways.own = 1;
  return ways;
}

struct Seen {
  int shapes = 0;
  std::string text;
  bool is_inside = true;
};

Seen look_at(const Candidates& ways, Size size) {
  const Drawing drawing = draw_comparison(
      {&ways, "a batch", size, &theme_of(ThemeName::dark), TextWidth(estimate_width)});
  Seen seen;
  for (const Mark& mark : drawing.marks) {
    if (const auto* polygon = std::get_if<Polygon>(&mark)) {
      ++seen.shapes;
      for (const Point point : polygon->points)
        seen.is_inside &= point.x >= 0 && point.x <= size.width && point.y >= 0 &&
                          point.y <= size.height && std::isfinite(point.x + point.y);
    }
    if (const auto* label = std::get_if<Label>(&mark)) seen.text += label->text + "\n";
  }
  return seen;
}

TEST(ComparisonChart, ShowsEveryWayThatCanBeAndNamesTheBestAndTheOwn) {
  const Seen seen = look_at(some_ways(), {1080, 720});
  EXPECT_EQ(seen.shapes, 4 + 5 + 3) << "points, and the legend's types and meanings";
  EXPECT_TRUE(seen.is_inside);
  for (const char* text : {"best: a2a, contiguous", "own: p2p, dual_chunk", "all_gather, lpt 512",
                           "1 more are refused", "h200x8", "predicted, not measured", "Take a2a"})
    EXPECT_NE(seen.text.find(text), std::string::npos) << text << " in\n" << seen.text;
  EXPECT_EQ(seen.text.find("\np2p, striped\n"), std::string::npos) << "one label a type";
}

TEST(ComparisonChart, StandsWhenNothingOrOneWayCanBeOrAllAreEqual) {
  Candidates none;
  EXPECT_TRUE(look_at(none, {400, 300}).is_inside);
  Candidates ways = some_ways();
  for (Candidate& candidate : ways.candidates) candidate.forward_us = candidate.bytes_sent = 0;
  EXPECT_TRUE(look_at(ways, {1080, 720}).is_inside) << "one rank sends nothing";
  ways = some_ways();
  for (size_t i = 1; i < ways.candidates.size(); ++i) ways.candidates[i].refusal = "no";
  ways.own = 1;
  const Seen one = look_at(ways, {1080, 720});
  EXPECT_EQ(one.shapes, 1 + 5 + 3);
  EXPECT_TRUE(one.is_inside);
}

ComparisonChart bare_chart(const Candidates& ways, int64_t lit) {
  return {.comparison = &ways,
          .title = "",
          .size = {470, 600},
          .theme = &theme_of(ThemeName::dark),
          .text_width = TextWidth(estimate_width),
          .lit = lit,
          .is_bare = true};
}

TEST(ComparisonChart, AnswersWithTheWayThatIsPointedAt) {
  const Candidates ways = some_ways();
  const CandidateView view = view_comparison(bare_chart(ways, -1));
  ASSERT_EQ(view.candidates.size(), 4U) << "the refused one has no place";
  for (size_t i = 0; i < view.candidates.size(); ++i) {
    const Box& box = view.view.hits[i].box;
    EXPECT_EQ(candidate_at(view, box.center()), view.candidates[i]);
    const std::string& name = ways.candidates[static_cast<size_t>(view.candidates[i])].name;
    EXPECT_EQ(view.view.hits[i].name, "way/" + name);
    EXPECT_TRUE(view.view.hits[i].tooltip.starts_with(name)) << view.view.hits[i].tooltip;
  }
  EXPECT_EQ(candidate_at(view, {1, 1}), -1);
  EXPECT_EQ(describe_candidate(ways, 1), "p2p, dual_chunk: 2 ms, 100 % longer than the best");
  Candidates equal = ways;
  equal.candidates[1].forward_us = std::nextafter(equal.candidates[0].forward_us, 0);
  EXPECT_EQ(describe_candidate(equal, 1), "p2p, dual_chunk: 1 ms, as fast as the best");
}

TEST(ComparisonChart, CountsBytesInTheUnitOfTheList) {
  for (const auto& [bytes, unit] : {std::pair{int64_t{300}, " B"},
                                    {int64_t{3} << 10, " KiB"},
                                    {int64_t{3} << 20, " MiB"},
                                    {int64_t{3} << 30, " GiB"}}) {
    Candidates ways = some_ways();
    for (Candidate& way : ways.candidates) way.bytes_sent = bytes;
    ways.candidates[1].bytes_sent = 2 * bytes;
    std::string numbers;
    for (const Mark& mark : draw_comparison(bare_chart(ways, -1)).marks) {
      const auto* label = std::get_if<Label>(&mark);
      if (label != nullptr && label->face == Face::mono && label->anchor == Anchor::center_top)
        numbers += label->text + "\n";
    }
    const std::string round = bytes == 300 ? "500" : "4";
    EXPECT_NE(numbers.find(round + unit + "\n"), std::string::npos) << numbers;
  }
}

TEST(ComparisonChart, LightsOneWayWithoutMovingAnother) {
  const Candidates ways = some_ways();
  const std::string before = print_drawing(view_comparison(bare_chart(ways, -1)).view.drawing);
  EXPECT_EQ(before.find("striped"), std::string::npos);
  const std::string lit = print_drawing(view_comparison(bare_chart(ways, 2)).view.drawing);
  EXPECT_TRUE(lit.starts_with(before.substr(0, before.find("left_middle"))));
  EXPECT_NE(lit.find("p2p, striped"), std::string::npos);
  EXPECT_EQ(print_drawing(view_comparison(bare_chart(ways, 4)).view.drawing), before)
      << "what is refused is no point";
}

TEST(ComparisonChart, PutsNoNumberOfAScaleOverAnother) {
  for (const double spread : {1.0, 1.01, 3.0, 1e2, 1e6}) {
    for (const bool sends : {true, false}) {
      Candidates ways = some_ways();
      ways.candidates[1].forward_us *= spread;
      for (Candidate& way : ways.candidates)
        way.bytes_sent = sends ? static_cast<int64_t>(4096 * spread) : 0;
      ways.candidates[2].bytes_sent = sends ? 4096 : 0;
      for (const Size size : {Size{470, 600}, Size{200, 140}, Size{1500, 300}}) {
        ComparisonChart chart = bare_chart(ways, -1);
        chart.size = size;
        std::vector<Box> numbers;
        for (const Mark& mark : draw_comparison(chart).marks) {
          const auto* label = std::get_if<Label>(&mark);
          if (label == nullptr || label->face != Face::mono) continue;
          const float width = estimate_width(label->text, label->size, label->face);
          const float x0 =
              label->anchor == Anchor::center_top ? label->at.x - width / 2 : label->at.x - width;
          const float y0 = label->anchor == Anchor::center_top ? label->at.y : label->at.y - 5;
          numbers.push_back({x0, y0, x0 + width, y0 + 10});
        }
        EXPECT_GE(numbers.size(), 1U);
        for (size_t i = 0; i < numbers.size(); ++i)
          for (size_t j = 0; j < i; ++j)
            EXPECT_FALSE(numbers[i].x0 < numbers[j].x1 && numbers[j].x0 < numbers[i].x1 &&
                         numbers[i].y0 < numbers[j].y1 && numbers[j].y0 < numbers[i].y1)
                << "spread " << spread << ", " << size.width << " wide: " << i << " and " << j;
      }
    }
  }
}

/// Widths of the filled parts of each bar: [row] from left to right.
std::vector<std::vector<float>> bars_of(const Drawing& drawing, size_t rows) {
  std::vector<std::vector<float>> bars(rows);
  for (const Mark& mark : drawing.marks) {
    const Box* box = nullptr;
    if (const auto* filled = std::get_if<FilledBox>(&mark)) box = &filled->box;
    if (const auto* outlined = std::get_if<OutlinedBox>(&mark)) box = &outlined->box;
    // Highlights and frames have the full height of a row; parts of bars are lower.
    if (box == nullptr || box->height() > kListRow - 1) continue;
    bars[static_cast<size_t>(box->y0 / kListRow)].push_back(box->width());
  }
  return bars;
}

TEST(ComparisonList, DrawsWhereTheTimeGoesOnOneScale) {
  Candidates ways = some_ways();
  ways.candidates[0].mean = {600, 100, 200, 100};
  ways.candidates[1].mean = {600, 100, 1300, 0};
  ways.candidates[2].mean = {3900, 0, 0, 100};  // beyond the scale, which ends at twice the best
  const CandidateView view =
      view_list({&ways, 900, &theme_of(ThemeName::dark), TextWidth(estimate_width), -1});
  const auto bars = bars_of(view.view.drawing, ways.candidates.size() + 1);
  ASSERT_EQ(bars[0].size(), 4U);
  const float per_us = bars[0][0] / 600;
  EXPECT_NEAR(bars[0][1], 100 * per_us, 1e-3);
  EXPECT_NEAR(bars[0][2], 200 * per_us, 1e-3);
  EXPECT_NEAR(bars[0][3], 100 * per_us, 1e-3);
  ASSERT_EQ(bars[1].size(), 3U) << "nobody waits";
  EXPECT_NEAR(bars[1][2], 1300 * per_us, 1e-3);
  ASSERT_EQ(bars[2].size(), 1U) << "the rest lies beyond the end";
  EXPECT_NEAR(bars[2][0], 2000 * per_us, 1e-2);
}

TEST(ComparisonList, HasARowForEveryWayAndSaysWhyOneIsRefused) {
  const Candidates ways = some_ways();
  for (const float width : {1200.0F, 640.0F, 200.0F, 40.0F}) {
    const ComparisonList list{&ways, width, &theme_of(ThemeName::print), TextWidth(estimate_width),
                              3};
    const CandidateView view = view_list(list);
    ASSERT_EQ(view.view.hits.size(), 5U);
    EXPECT_EQ(view.candidates, (std::vector<int64_t>{0, 1, 2, 3, 4}));
    EXPECT_EQ(view.view.hits[4].tooltip, "a2a+p2p of 3 is refused: 7 heads are not divisible by 3");
    EXPECT_EQ(view.view.hits.back().box.y1, list_height(ways));
    for (size_t i = 1; i < 5; ++i)
      EXPECT_GE(view.view.hits[i].box.y0, view.view.hits[i - 1].box.y1) << "rows do not overlap";
    if (width < 640) continue;
    std::string text;
    for (const Drawing& drawing : {view.view.drawing, draw_list_header(list)}) {
      for (const Mark& mark : drawing.marks)
        if (const auto* label = std::get_if<Label>(&mark)) text += label->text + "\n";
    }
    for (const char* part : {"1 refused\n", "7 heads are not divisible by 3", "best\n", "own\n",
                             "too large", "total", "sent", "waiting"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

TEST(ComparisonList, KeepsTheTimesOfANarrowListInside) {
  const Candidates ways = some_ways();
  const ComparisonList list{&ways, 340, &theme_of(ThemeName::print), TextWidth(estimate_width), -1};
  for (const Drawing& drawing : {view_list(list).view.drawing, draw_list_header(list)}) {
    for (const Mark& mark : drawing.marks) {
      const auto* label = std::get_if<Label>(&mark);
      if (label == nullptr) continue;
      const float width = label->anchor == Anchor::right_middle
                              ? 0
                              : list.text_width(label->text, label->size, label->face);
      EXPECT_LE(label->at.x + width, list.width) << label->text;
    }
  }
}

}  // namespace
}  // namespace cpscope::gui
