// A window with a plan that is too large to be visited within a frame: work on other threads must
// give the same picture.
#include "gui/app/app_state.h"
#include "gui/app/inspect.h"
#include "gui/app/projection_memo.h"
#include "gui/model/project.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/hand.h"

#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;

/// A ring of 112 ranks: more than a hundred thousand items.
std::unique_ptr<AppState> open_large() {
  auto state = std::make_unique<AppState>();
  const auto error = state->document.load_text(
      "schema = 1\n[attention]\nheads = 2\nhead_dim = 64\n[batch]\nlengths = [8960]\n"
      "[parallel]\ncp_size = 112\n",
      "");
  EXPECT_FALSE(error) << to_text(*error);
  settle(*state);
  EXPECT_TRUE(state->plan()->is_large()) << state->plan()->size();
  return state;
}

template <class Holds>
bool wait_until(Holds holds) {
  for (int i = 0; i < 60'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(LargePlan, EndsInTheSamePictureInTheBackgroundAndAtOnce) {
  gui::Image pictures[2];
  for (const bool in_background : {false, true}) {
    const auto state = open_large();
    Hand hand(*state, {.size = {1200, 760}, .in_background = in_background});
    // A camera, a moment of the backward and a selection that all need new computations.
    state->camera(gui::ViewKind::mask) = {{0.25, 0.5}, {0.3, 0.55}};
    hand.settle(20'000);
    state->playhead.index = 130;
    hand.settle(20'000);
    select(*state, gui::RankTarget{17});
    hand.settle(20'000);
    pictures[in_background ? 1 : 0] = hand.picture();
  }
  EXPECT_TRUE(pictures[0] == pictures[1]);
}

TEST(LargePlan, ShowsTheLastMaskWhileTheNextOneIsMade) {
  const auto state = open_large();
  Hand hand(*state, {.size = {1200, 760}, .in_background = true});
  hand.settle(20'000);
  state->camera(gui::ViewKind::mask) = {{0.25, 0.5}, {0.3, 0.55}};
  hand.frames(1);
  EXPECT_NE(hand.hits().find("mask/canvas"), nullptr);
  hand.click("step.next");
  EXPECT_EQ(state->playhead.index, 1) << "the window answers meanwhile";
}

TEST(ProjectionMemo, FindsTheSameLaterAsAtOnce) {
  const auto state = open_large();
  const gui::SharedPlan& plan = state->document.plan();
  for (const gui::Target& target :
       {gui::Target(gui::RankTarget{5}), gui::Target(gui::TokenRange{Side::q, 100, 300}),
        gui::Target(gui::LinkTarget{4, 5}), gui::Target(gui::Nothing{}),
        gui::Target(gui::RankTarget{112})}) {
    gui::ProjectionMemo memo;
    memo.find(plan, target, true);
    ASSERT_TRUE(wait_until([&] {
      memo.find(plan, target, true);
      return !memo.is_waiting();
    }));
    const gui::SharedProjection later = memo.find(plan, target, true);
    const gui::SharedProjection at_once = gui::ProjectionMemo().find(plan, target, false);
    EXPECT_EQ(later->items, at_once->items);
    EXPECT_EQ(later->ranks, at_once->ranks);
    EXPECT_EQ(later->links, at_once->links);
    EXPECT_EQ(later->steps, at_once->steps);
    EXPECT_EQ(at_once->is_empty(), !is_present(*plan, target) || target == gui::Target{});
  }
}

TEST(ProjectionMemo, DropsWhatNobodyWantsAnyMore) {
  const auto state = open_large();
  const gui::SharedPlan& plan = state->document.plan();
  gui::ProjectionMemo memo;
  memo.find(plan, gui::RankTarget{5}, true);
  EXPECT_TRUE(memo.find(plan, gui::Nothing{}, true)->is_empty());
  EXPECT_FALSE(memo.is_waiting());
  memo.find(plan, gui::RankTarget{6}, true);
  ASSERT_TRUE(wait_until([&] {
    memo.find(plan, gui::RankTarget{6}, true);
    return !memo.is_waiting();
  }));
  EXPECT_EQ(memo.find(plan, gui::RankTarget{6}, true)->ranks, std::vector<int32_t>{6});
}

TEST(InspectionMemo, AnswersLaterAsAtOnce) {
  const auto state = open_large();
  gui::InspectionMemo memo;
  memo.inspect(*state, gui::RankTarget{9}, true);
  ASSERT_TRUE(wait_until([&] {
    memo.inspect(*state, gui::RankTarget{9}, true);
    return !memo.is_waiting();
  }));
  EXPECT_EQ(memo.inspect(*state, gui::RankTarget{9}, true),
            gui::inspect(*state, gui::RankTarget{9}));
}

}  // namespace
}  // namespace cpscope::tests
