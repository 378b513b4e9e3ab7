// What moves while a step runs: packets in the traffic, tiles of the mask.
#include "gui/app/command.h"
#include "gui/app/document/player.h"
#include "gui/model/mask/mask_view.h"
#include "gui/model/traffic/traffic_view.h"
#include "tests/gui/model/view_probe.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Color;
using gui::Point;
using gui::View;
using gui::ViewKind;

/// The places of the packets with this name, in the order of their links.
std::vector<Point> packets(const View& view, std::string_view name) {
  std::vector<Point> places;
  for (const gui::Mark& mark : view.drawing.marks) {
    const auto* label = std::get_if<gui::Label>(&mark);
    if (label != nullptr && label->text == name && label->face == gui::Face::strong)
      places.push_back(label->at);
  }
  return places;
}

/// A view of a plan in a step, at a place inside the step.
View draw_at(const gui::PlanIndex& plan, ViewKind kind, int32_t step, double progress) {
  const gui::Projection nothing;
  gui::ViewInput input = probe_input(plan, nothing, {900, 700});
  input.moment = plan.moment_of_step(step);
  input.progress = progress;
  return kind == ViewKind::mask ? gui::draw_mask(input) : gui::draw_traffic(input);
}

double distance(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

TEST(Motion, TakesPacketsFromSenderToReceiver) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  const gui::PlanIndex& plan = *state->plan();
  EXPECT_TRUE(packets(draw_at(plan, ViewKind::traffic, 0, 1), "kv").empty()) << "at rest";
  const View begin = draw_at(plan, ViewKind::traffic, 0, 0);
  const auto first = packets(begin, "kv"),
             middle = packets(draw_at(plan, ViewKind::traffic, 0, 0.5), "kv");
  const auto last = packets(draw_at(plan, ViewKind::traffic, 0, 0.98), "kv");
  ASSERT_EQ(first.size(), 4U) << "one for each link of the ring";
  ASSERT_EQ(middle.size(), 4U);
  ASSERT_EQ(last.size(), 4U);
  // Links are by sender: rank n sends to rank n + 1.
  for (size_t link = 0; link < first.size(); ++link) {
    const auto place_of = [&](size_t rank) {
      return find_hit(begin, "node/" + std::to_string(rank % 4))->box.center();
    };
    EXPECT_LT(distance(first[link], place_of(link)), distance(first[link], place_of(link + 1)));
    EXPECT_GT(distance(last[link], place_of(link)), distance(last[link], place_of(link + 1)));
    EXPECT_NEAR(distance(middle[link], place_of(link)), distance(middle[link], place_of(link + 1)),
                1);
  }
}

TEST(Motion, NamesKeysAndGradientsOfTheBackward) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  const gui::PlanIndex& plan = *state->plan();
  const View view = draw_at(plan, ViewKind::traffic, 5, 0.5);
  EXPECT_EQ(packets(view, "kv").size(), 4U);
  ASSERT_EQ(packets(view, "dkv").size(), 4U);
  EXPECT_GT(distance(packets(view, "kv")[0], packets(view, "dkv")[0]), 5) << "one after another";
}

/// Number of cells of the mask with a colour.
int64_t count_cells(const View& view, Color color) {
  int64_t cells = 0;
  for (const gui::Mark& mark : view.drawing.marks) {
    if (const auto* pixels = std::get_if<gui::Pixels>(&mark))
      cells += std::count(pixels->colors.begin(), pixels->colors.end(), color);
  }
  return cells;
}

TEST(Motion, FillsTheTilesOfTheStepRowByRow) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  const gui::PlanIndex& plan = *state->plan();
  // The colour of full tiles of now: what the end of the step has more of than its begin.
  const View begin = draw_at(plan, ViewKind::mask, 1, 0), end = draw_at(plan, ViewKind::mask, 1, 1);
  Color now{};
  int64_t most = 0;
  for (const gui::Mark& mark : end.drawing.marks) {
    const auto* pixels = std::get_if<gui::Pixels>(&mark);
    if (pixels == nullptr) continue;
    for (const Color& color : pixels->colors) {
      if (color == now || count_cells(begin, color) > 0) continue;
      now = color;
      most = count_cells(end, color);
    }
  }
  ASSERT_GT(most, 0);
  int64_t last = 0;
  for (const double progress : {0.25, 0.5, 0.75}) {
    const int64_t cells = count_cells(draw_at(plan, ViewKind::mask, 1, progress), now);
    EXPECT_NEAR(static_cast<double>(cells) / static_cast<double>(most), progress, 0.05);
    EXPECT_GT(cells, last);
    last = cells;
  }
}

TEST(Motion, FollowsTheTrackBothWays) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  const auto track = hand.find("track");
  ASSERT_TRUE(track);
  const float y = track->center().y, step = track->width() / 8;
  const auto drag_to = [&](float places) {
    hand.drag({track->x0 + step * 0.5F, y}, {track->x0 + step * places, y});
    return hand.picture();
  };
  const gui::Image quarter = drag_to(2.25F);
  EXPECT_EQ(state->playhead.index, 2);
  EXPECT_NEAR(state->playhead.progress, 0.25, 0.05);
  const gui::Image later = drag_to(2.75F), back = drag_to(2.25F);
  EXPECT_NE(quarter.pixels, later.pixels);
  EXPECT_EQ(quarter.pixels, back.pixels) << "the same place is the same picture";
  save_png_for_review("motion_scrubbed", quarter);
  hand.click_at({track->x0 + step * 2.25F, y});
  EXPECT_EQ(state->playhead.progress, 1) << "a click goes to the end of the step";
}

TEST(Motion, RunsWhilePlayingForwardsAndBackwardsAndRestsWhenPaused) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  state->playhead = {false, 1, 1.0};
  for (const double speed : {1.0, -1.0}) {
    state->player = start_playing(*state->plan(), {false, 1, 1.0}, speed, 0);
    update(*state, 0.3);
    const double moving = view_input(*state, ViewKind::traffic).progress;
    EXPECT_NEAR(moving, speed > 0 ? 0.3 : 0.7, 0.02);
    EXPECT_EQ(view_input(*state, ViewKind::mask).progress, moving);
    EXPECT_EQ(view_input(*state, ViewKind::timeline).progress, 1) << "needs no new picture";
    ASSERT_TRUE(apply_command(*state, "play"));
    EXPECT_EQ(view_input(*state, ViewKind::traffic).progress, 1) << "paused";
  }
}

TEST(Motion, IsPaintableInEveryTheme) {
  for (const gui::ThemeName theme : gui::kThemeNames) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    state->theme = theme;
    state->playhead = {false, 5, 0.5};
    Hand hand(*state);
    save_png_for_review("motion_" + std::string(to_name(theme)), hand.picture());
    expect_paintable(draw_at(*state->plan(), ViewKind::traffic, 5, 0.5));
  }
}

}  // namespace
}  // namespace cpscope::tests
