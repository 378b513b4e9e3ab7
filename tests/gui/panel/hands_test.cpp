// What the mouse and the keys of a first-time user do.
#include "gui/app/app_state.h"
#include "gui/app/document/player.h"
#include "gui/app/lesson.h"
#include "gui/model/plan_index.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>
#include <imgui.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Target;
using gui::ViewKind;
using gui::compat::Key;
using gui::compat::Mods;

std::unique_ptr<AppState> open_shipped_example(const std::string& name) {
  return open_example_of(CPSCOPE_SCENARIOS, name);
}

/// The share of a view's axis that is at a share of the shown part.
double place_of(const gui::AxisSpan& span, double share) {
  return span.lo + (span.hi - span.lo) * share;
}

TEST(Hands, ZoomLayoutAndTimelineWhereTheMouseIs) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  // Left and right edge of a chunk of the layout, and of a step of the timeline: both have a place
  // on the whole axis.
  const auto first = hand.find("layout/chunk/q/0"), last = hand.find("layout/chunk/q/224");
  ASSERT_TRUE(first && last);
  const float width = last->x1 - first->x0, x = first->x0 + width * 0.1875F;
  hand.wheel_at({x, first->center().y}, 3);
  const gui::AxisSpan tokens = state->camera(ViewKind::layout).x;
  EXPECT_LT(tokens.hi - tokens.lo, 0.6);
  EXPECT_NEAR(place_of(tokens, 0.1875), 0.1875, 0.01);
  const auto begin = hand.find("timeline/step/0"), end = hand.find("timeline/step/7");
  ASSERT_TRUE(begin && end);
  const float room = end->x1 - begin->x0;
  hand.wheel_at({begin->x0 + room * 0.25F, begin->center().y + 40}, 3);
  const gui::AxisSpan steps = state->camera(ViewKind::timeline).x;
  EXPECT_LT(steps.hi - steps.lo, 0.6);
  EXPECT_NEAR(place_of(steps, 0.25), 0.25, 0.02);
}

TEST(Hands, TakeTheRankOfAChunkFirstAndThenItsTokens) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  hand.click("layout/chunk/q/32");
  EXPECT_EQ(state->selected(), Target(gui::RankTarget{1}));
  hand.click("layout/chunk/q/32");
  EXPECT_EQ(state->selected(), Target(gui::TokenRange{Side::q, 32, 64}));
  hand.click("layout/chunk/q/192");
  EXPECT_EQ(state->selected(), Target(gui::TokenRange{Side::q, 192, 224})) << "also rank 1's";
  hand.click("layout/chunk/q/0");
  EXPECT_EQ(state->selected(), Target(gui::RankTarget{0})) << "another rank";
}

TEST(Hands, SelectTheTokensThatAShiftDragMeets) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  const auto from = hand.find("layout/chunk/q/32"), to = hand.find("layout/chunk/q/64");
  ASSERT_TRUE(from && to);
  hand.drag({from->x0 + 1, from->center().y}, {to->x1 - 1, to->center().y}, Mods{.shift = true});
  const auto* tokens = std::get_if<gui::TokenRange>(&state->selected());
  ASSERT_NE(tokens, nullptr);
  EXPECT_NEAR(static_cast<double>(tokens->begin), 32, 1);
  EXPECT_NEAR(static_cast<double>(tokens->end), 96, 1);
  EXPECT_EQ(state->camera(ViewKind::layout), gui::Camera{}) << "nothing is moved";
}

TEST(Hands, GoToTheStepThatIsClicked) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  for (const int32_t step : {3, 6, 1}) {
    hand.click("timeline/step/" + std::to_string(step));
    EXPECT_EQ(step_of(*state->plan(), state->playhead), step);
  }
}

TEST(Hands, SeeWhichViewHasTheFocus) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  state->focus_view = ViewKind::mask;
  const gui::Image mask = hand.picture();
  state->focus_view = ViewKind::traffic;
  const gui::Image traffic = hand.picture();
  int64_t changed = 0;
  for (int y = 0; y < mask.height; ++y) {
    for (int x = 0; x < mask.width; ++x) changed += mask.at(x, y) == traffic.at(x, y) ? 0 : 1;
  }
  EXPECT_GT(changed, 2000) << "two outlines";
  save_png_for_review("hands_focus", traffic);
}

TEST(Hands, OpenTheFirstNameThatMatchesWithEnter) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  hand.key(gui::compat::key_of('O'), Mods{.ctrl = true});
  hand.type("strip");
  hand.key(Key::enter);
  hand.settle();
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::striped);
  EXPECT_TRUE(state->messages.empty());
}

TEST(Hands, SeeWhetherARunPassedAndOfWhichScenarioItIs) {
  const auto state = open_shipped_example("zigzag");
  state->services.executors = {"cpu"};
  auto run = std::make_shared<gui::RunView>();
  run->name = "cpu (bf16)";
  run->verdict = "Fails: out is wrong.";
  run->passed = false;
  Hand hand(*state);
  EXPECT_EQ(hand.hits().find("verdict"), nullptr) << "nothing has run";
  state->run_a = run;
  state->run_a_plan = state->document.plan();
  hand.settle();
  hand.click("verdict");
  EXPECT_EQ(state->focus_view, ViewKind::numbers);
  save_png_for_review("hands_verdict", hand.picture());
  ASSERT_TRUE(open_shipped(*state, "striped"));
  settle(*state);
  hand.settle();
  EXPECT_EQ(hand.hits().find("verdict"), nullptr) << "the run is of another scenario";
}

TEST(Hands, FinishTheFirstExerciseByClickingAnyPartOfARank) {
  for (const char* part : {"layout/chunk/q/0", "layout/rank/2"}) {
    const auto state = open_shipped_example("zigzag");
    Hand hand(*state);
    hand.click("lesson.list");
    hand.click("lesson/0");
    hand.settle();
    hand.click(part);
    EXPECT_TRUE(std::holds_alternative<gui::RankTarget>(state->selected())) << part;
  }
}

TEST(Hands, ChooseALayoutOfDispatchedChunksThatFitTheBatch) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  hand.click("edit/parallel.layout");
  hand.click("edit/parallel.layout/lpt");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::lpt);
  EXPECT_EQ(state->plan()->tokens(Side::q), 256) << "no padding to chunks of 512";
  EXPECT_LT(state->plan()->summary().rank_max_over_mean, 1.3);
}

TEST(Hands, LoseMessagesButNotErrorsAfterAWhile) {
  const auto state = open_shipped_example("zigzag");
  tell(*state, "Wrote a.png");
  tell(*state, "No such file", true);
  update(*state, 5);
  EXPECT_EQ(state->messages.size(), 2U);
  update(*state, 60);
  ASSERT_EQ(state->messages.size(), 1U);
  EXPECT_TRUE(state->messages.front().is_error);
}

TEST(Hands, CopyWhatTheInspectorSays) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  hand.click("layout/rank/2");
  hand.click("inspector.copy");
  std::string copied;
  hand.offscreen().frame([&] { copied = ImGui::GetClipboardText(); });
  EXPECT_TRUE(copied.starts_with("Rank 2\n")) << copied;
  EXPECT_NE(copied.find("visible pairs"), std::string::npos) << copied;
}

TEST(Hands, ReadAboutTheRankOfWhatIsSelected) {
  const auto state = open_shipped_example("zigzag");
  Hand hand(*state);
  select(*state, gui::TokenRange{Side::q, 64, 96});
  EXPECT_EQ(state->focus_rank, 2) << "the owner of the tokens";
  hand.click("mask/pair/32/0");
  ASSERT_TRUE(std::holds_alternative<ItemId>(state->selected()));
  EXPECT_EQ(state->focus_rank, 1) << "who computes the tile";
}

}  // namespace
}  // namespace cpscope::tests
