// Phones, and laptops at a zoom of 200 %: one view at a time, and nothing off the edge.
#include "gui/app/app_state.h"
#include "gui/app/lesson.h"
#include "gui/panel/narrow_panel.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <memory>
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

TEST(NarrowScreen, GoesToTheNextViewByAStrokeUnlessThereIsSomethingToMove) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state, kScreens[0].options);
  ASSERT_TRUE(gui::can_swipe(*state));
  for (const char* name : {"mask", "traffic", "timeline", "numbers", "balance", "layout"}) {
    gui::swipe(*state, 1);
    hand.settle();
    EXPECT_NE(hand.hits().find(std::string(name) + "/canvas"), nullptr) << name;
  }
  gui::swipe(*state, -1);
  EXPECT_EQ(state->focus_view, ViewKind::balance);
  state->camera(ViewKind::balance).x = {0.2, 0.6};
  EXPECT_FALSE(gui::can_swipe(*state)) << "a stroke moves what is zoomed";
  state->camera(ViewKind::balance) = {};
  state->dialog = gui::Dialog::help;
  EXPECT_FALSE(gui::can_swipe(*state));
}

TEST(NarrowScreen, ShowsTheVerdictBesideTheOtherButtons) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  auto run = std::make_shared<gui::RunView>();
  run->passed = false;
  state->run_a = run;
  state->run_a_plan = state->document.plan();
  Hand hand(*state, kScreens[0].options);
  const auto verdict = hand.find("verdict"), menu = hand.find("menu/Help"),
             lessons = hand.find("lesson.list");
  ASSERT_TRUE(verdict && menu && lessons);
  EXPECT_TRUE(is_inside(*verdict, kScreens[0].options));
  EXPECT_GT(verdict->y0, menu->y1) << "over no menu";
  EXPECT_GT(verdict->x0, lessons->x1);
}

TEST(EmbeddedView, IsShownAloneWithItsSteps) {
  for (const Hand::Options& options :
       {Hand::Options{.size = {640, 480}}, Hand::Options{.size = {390, 500}}}) {
    for (const ViewKind kind : gui::kViewKinds) {
      const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
      state->only_view = kind;
      Hand hand(*state, options);
      hand.settle();
      const std::string name(to_name(kind));
      const auto canvas = hand.find(name + "/canvas");
      ASSERT_TRUE(canvas);
      EXPECT_GT(canvas->height(), options.size.height * 0.7F) << name;
      for (const char* other : {"editor", "inspector", "caption", "tabs", "lesson.list", "run.cpu"})
        EXPECT_EQ(hand.hits().find(other), nullptr) << other << " in " << name;
      const int32_t before = state->playhead.index;
      hand.click("step.next");
      EXPECT_EQ(state->playhead.index, before + 1);
      const auto track = hand.find("track");
      ASSERT_TRUE(track);
      EXPECT_TRUE(is_inside(*track, options));
      EXPECT_GT(track->width(), 150);
      save_png_for_review("embedded_" + name, hand.picture());
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
