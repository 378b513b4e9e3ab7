// The window without a mouse.
#include "gui/app/app_state.h"
#include "gui/app/document/player.h"
#include "gui/app/lesson.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::KeyArea;
using gui::compat::Key;

TEST(Keyboard, EditsTheScenario) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  hand.key(gui::compat::function_key(6));
  ASSERT_EQ(state->key_area, KeyArea::scenario);
  const int32_t place = state->playhead.index;
  // Down to the field of ranks, in it, and another number.
  hand.key(Key::down);
  hand.key(Key::enter);
  hand.key(gui::compat::key_of('A'), gui::compat::Mods{.ctrl = true});
  hand.type("2");
  hand.key(Key::enter);
  EXPECT_EQ(state->plan()->num_ranks(), 2);
  EXPECT_EQ(state->playhead.index, place) << "no shortcut was meant";
  save_png_for_review("keyboard_scenario", hand.picture());
  hand.key(Key::escape);
  EXPECT_EQ(state->key_area, KeyArea::views);
  hand.key(Key::right);
  EXPECT_EQ(state->playhead.index, place + 1) << "the keys are the views' again";
}

TEST(Keyboard, ChoosesALesson) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  hand.key(gui::compat::key_of('L'));
  hand.key(Key::down);
  hand.key(Key::down);
  hand.key(Key::enter);
  EXPECT_GE(state->lesson.lesson, 0);
  EXPECT_EQ(state->dialog, gui::Dialog::none);
}

TEST(Keyboard, OpensMenusAndChoosesACommand) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  hand.key(gui::compat::function_key(10));
  EXPECT_NE(hand.hits().find("menu/File/file.open"), nullptr);
  hand.key(Key::down);
  hand.key(Key::enter);
  hand.settle();
  EXPECT_NE(state->dialog, gui::Dialog::none) << "a command of the menu File";
}

}  // namespace
}  // namespace cpscope::tests
