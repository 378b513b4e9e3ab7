// The borders between the views, dragged by hand.
#include "gui/app/command.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Borders;
using gui::ViewKind;

TEST(Borders, AreMovedByADragAndPutBackByADoubleClick) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  const float mask = hand.find("mask")->width(), side = hand.find("editor")->width();
  const gui::Point at = hand.find("border/top_right")->center();
  hand.drag(at, {at.x + 120, at.y});
  EXPECT_NEAR(hand.find("mask")->width(), mask + 120, 3);
  const gui::Point edge = hand.find("border/side")->center();
  hand.drag(edge, {edge.x - 60, edge.y});
  EXPECT_NEAR(hand.find("editor")->width(), side - 60, 3);
  const gui::Point rows = hand.find("border/rows")->center();
  hand.drag(rows, {rows.x, 5000});
  EXPECT_GT(hand.find("balance")->height(), 60) << "no view disappears";
  save_png_for_review("borders_moved", hand.picture());
  hand.double_click("border/rows");
  EXPECT_EQ(state->borders, Borders{});
  EXPECT_EQ(hand.find("mask")->width(), mask);
}

TEST(Borders, GiveTheFocusedViewMostOfTheRoom) {
  for (const ViewKind kind : gui::kViewKinds) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    Hand hand(*state);
    state->focus_view = kind;
    hand.key(gui::compat::Key::enter, {.shift = true});
    const std::string name(to_name(kind));
    const auto large = hand.find(name);
    ASSERT_TRUE(large);
    for (const ViewKind other : gui::kViewKinds) {
      const auto box = hand.find(std::string(to_name(other)));
      ASSERT_TRUE(box) << "all stay in sight";
      if (other == kind) continue;
      EXPECT_GT(large->width() * large->height(), 1.5F * box->width() * box->height());
    }
    save_png_for_review("room_for_" + name, hand.picture());
    hand.key(gui::compat::Key::enter, {.shift = true});
    EXPECT_EQ(state->borders, Borders{});
  }
}

TEST(Magnification, GoesUpAndDownInStepsWithinItsLimits) {
  gui::AppState state;
  EXPECT_FALSE(apply_command(state, "view.smaller"));
  int32_t steps = 0;
  while (apply_command(state, "view.larger")) {
    ++steps;
    EXPECT_FLOAT_EQ(state.magnification, 1 + 0.25F * static_cast<float>(steps));
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(state.magnification, gui::kMostMagnification);
  while (apply_command(state, "view.smaller")) --steps;
  EXPECT_EQ(steps, 0);
  EXPECT_EQ(state.magnification, 1);
}

}  // namespace
}  // namespace cpscope::tests
