// Phones, and laptops at a zoom of 200 %: one view at a time, and nothing off the edge.
#include "gui/app/app_state.h"
#include "gui/app/lesson.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::ViewKind;

struct NarrowScreen {
  const char* name;
  Hand::Options options;
};

const NarrowScreen kScreens[] = {
    {"phone", {.size = {390, 844}, .fonts = gui::FontChoice::packages}},
    {"zoomed", {.size = {720, 450}, .scale = 2, .fonts = gui::FontChoice::packages}}};

bool is_inside(const gui::Box& box, const Hand::Options& options) {
  return box.x0 >= 0 && box.y0 >= 0 && box.x1 <= options.size.width * options.scale &&
         box.y1 <= options.size.height * options.scale;
}

TEST(NarrowScreen, ShowsEveryViewByItsTab) {
  for (const NarrowScreen& screen : kScreens) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    Hand hand(*state, screen.options);
    for (const ViewKind kind : gui::kViewKinds) {
      const std::string name(to_name(kind));
      hand.click("tab/" + name);
      const auto canvas = hand.find(name + "/canvas");
      ASSERT_TRUE(canvas) << screen.name;
      EXPECT_GT(canvas->height(), screen.options.size.height * screen.options.scale * 0.35F)
          << screen.name << " " << name;
      EXPECT_TRUE(is_inside(*canvas, screen.options)) << screen.name << " " << name;
      save_png_for_review("narrow_" + std::string(screen.name) + "_" + name, hand.picture());
    }
    EXPECT_NE(hand.hits().find("balance/canvas"), nullptr);
    EXPECT_EQ(hand.hits().find("mask/canvas"), nullptr) << "one at a time";
    hand.click("tab/scenario");
    hand.click("edit/parallel.cp_size/double");
    EXPECT_EQ(state->plan()->num_ranks(), 8);
    hand.click("tab/selection");
    EXPECT_NE(hand.hits().find("inspector"), nullptr);
  }
}

TEST(NarrowScreen, KeepsTheButtonsOfALessonInPlace) {
  for (const NarrowScreen& screen : kScreens) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    Hand hand(*state, screen.options);
    ASSERT_TRUE(open_lesson(*state, {2, 0}));
    hand.settle();
    std::optional<gui::Box> first;
    for (int page = 0; page < 3; ++page) {
      const auto next = hand.find("lesson.next");
      ASSERT_TRUE(next) << screen.name;
      EXPECT_TRUE(is_inside(*next, screen.options)) << screen.name;
      if (!first) first = next;
      EXPECT_EQ(next->y0, first->y0) << screen.name << ": the button moved on page " << page;
      EXPECT_NE(hand.hits().find(std::string(to_name(*state->focus_view)) + "/canvas"), nullptr)
          << "the view of the page is shown";
      save_png_for_review("narrow_lesson_" + std::string(screen.name) + std::to_string(page),
                          hand.picture());
      hand.click("lesson.next");
    }
  }
}

TEST(NarrowScreen, LeavesNothingOffTheEdge) {
  for (const NarrowScreen& screen : kScreens) {
    const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
    state->services.executors = {"cpu", "cuda"};
    Hand hand(*state, screen.options);
    for (const char* name : {"step.first", "play", "step.last", "place", "track", "focus_rank",
                             "rank.next", "run.cpu", "lesson.list", "menu/Help", "tab/selection"}) {
      const auto box = hand.find(name);
      ASSERT_TRUE(box) << screen.name;
      EXPECT_TRUE(is_inside(*box, screen.options)) << name << " on the " << screen.name;
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
