// Animated pictures: what a viewer shows of the file, and which moments it shows.
#include "gui/window/animate.h"

#include "gui/draw/glyph_widths.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/animation_reader.h"
#include "tests/support/hand.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AnimationWriter;
using gui::AppState;
using gui::Image;
using gui::ViewKind;

/// A picture with one bright square.
Image square_at(int32_t x, int32_t y) {
  Image image(40, 30, {10, 20, 30, 255});
  for (int32_t dy = 0; dy < 5; ++dy)
    for (int32_t dx = 0; dx < 5; ++dx) image.at(x + dx, y + dy) = {200, 150, 0, 255};
  return image;
}

TEST(Animation, ShowsTheFramesThatWereAdded) {
  const std::vector<Image> frames = {square_at(0, 0), square_at(3, 1), square_at(3, 1),
                                     square_at(30, 20)};
  AnimationWriter writer;
  for (const Image& frame : frames) ASSERT_FALSE(writer.add(frame, 100));
  const Result<std::string> bytes = writer.finish({{"Title", "a square"}});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes.value(), writer.finish({{"Title", "a square"}}).value());
  const std::vector<ShownFrame> shown = play_animation(bytes.value());
  ASSERT_EQ(shown.size(), 3U) << "equal frames are one";
  EXPECT_EQ(shown[0].image, frames[0]);
  EXPECT_EQ(shown[1].image, frames[1]);
  EXPECT_EQ(shown[2].image, frames[3]);
  EXPECT_EQ(shown[1].duration_ms, 200);
  EXPECT_EQ(writer.duration_ms(), 400);
  EXPECT_EQ(shown[1].width, 8) << "only what changed is stored";
  EXPECT_EQ(shown[1].height, 6);
  EXPECT_EQ(shown[2].x, 3);
  EXPECT_EQ(shown[2].y, 1);
}

/// The animation of views of a shipped scenario.
Result<gui::PaintedAnimation> animate(AppState& state, const std::vector<ViewKind>& kinds,
                                      const gui::AnimationOrder& order) {
  const gui::Size size{1000, 640};
  return gui::paint_animation(
      state,
      [&](const gui::TextWidth& width) {
        return gui::draw_picture({&state, "a test", width, "", 2}, kinds, size);
      },
      size, gui::FontChoice::built_in, 1, order);
}

std::vector<ShownFrame> play(AppState& state, const std::vector<ViewKind>& kinds,
                             const gui::AnimationOrder& order) {
  Result<gui::PaintedAnimation> painted = animate(state, kinds, order);
  EXPECT_TRUE(painted.ok());
  return play_animation(painted.value().writer.finish({}).value());
}

TEST(Animation, TakesPacketsAndTilesThroughEveryStepOfThePass) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  state->playhead = {false, 5, 1.0};
  const auto frames = play(*state, {ViewKind::mask, ViewKind::traffic}, {.frames_per_step = 4});
  ASSERT_EQ(frames.size(), 16U) << "four steps of four frames";
  EXPECT_EQ(state->playhead, (gui::Playhead{false, 5, 1.0})) << "the state is as it was";
  for (size_t n = 0; n < frames.size(); ++n) {
    const bool is_end = n % 4 == 3, is_last = n + 1 == frames.size();
    EXPECT_EQ(frames[n].duration_ms, is_last ? 6000 : is_end ? 1500 : 300) << n;
  }
  // The last step of the ring sends nothing: there only tiles fill, and the traffic rests.
  const auto moves_right = [&](size_t n) {
    return frames[n].x + frames[n].width > 1000 / 2 + 8;  // in the view of the traffic
  };
  EXPECT_TRUE(moves_right(1));
  EXPECT_TRUE(moves_right(6));
  EXPECT_FALSE(moves_right(14));
  // The views stay where they are: the caption has the same room in every frame.
  for (const ShownFrame& frame : frames)
    EXPECT_EQ(frame.image.at(500, 400), frames[0].image.at(500, 400)) << "between the two views";
  // Each step ends as the picture of that step.
  const auto ends = play(*state, {ViewKind::mask, ViewKind::traffic}, {.frames_per_step = 1});
  ASSERT_EQ(ends.size(), 4U);
  for (size_t step = 0; step < ends.size(); ++step)
    EXPECT_EQ(frames[4 * step + 3].image, ends[step].image) << step;
}

TEST(Animation, ShowsTheStagesOfAPlanOfOneStep) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "thd_padding_a2a");
  const gui::PlanIndex& plan = *state->plan();
  const auto moments = gui::list_moments(plan, {.frames_per_step = 2});
  ASSERT_TRUE(moments.ok());
  for (const gui::Playhead& moment : moments.value()) {
    EXPECT_TRUE(moment.is_by_stage);
    EXPECT_EQ(plan.stages()[static_cast<size_t>(moment.index)].direction, Direction::forward);
  }
  EXPECT_GT(moments.value().size(), 6U);
}

TEST(Animation, ShowsOnePassOrBoth) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  const auto count = [&](bool forward, bool backward) {
    const auto moments = gui::list_moments(
        *state->plan(), {.has_forward = forward, .has_backward = backward, .frames_per_step = 3});
    return moments ? moments.value().size() : 0;
  };
  EXPECT_EQ(count(true, false), 12U);
  EXPECT_EQ(count(false, true), 12U);
  EXPECT_EQ(count(true, true), 24U);
}

}  // namespace
}  // namespace cpscope::tests
