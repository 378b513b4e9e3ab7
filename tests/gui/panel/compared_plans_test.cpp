// The numbers of two plans, compared by hand: run, pin, split in another way, run, compare.
#include "gui/app/command.h"
#include "gui/app/run_views.h"
#include "tests/gui/model/numbers_cases.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::ViewKind;

void split_by_all_to_all(AppState& state) {
  Scenario scenario = state.document.scenario();
  scenario.parallel.comm_type = CommType::a2a;
  scenario.parallel.layout = LayoutKind::contiguous;
  edit_scenario(state, scenario, "parallel.cp_comm_type");
  settle(state);
}

TEST(ComparedPlans, ShowWhereTheNumbersOfARingAndOfAnAllToAllDiffer) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Toolbox toolbox = make_numbers_toolbox();
  state->services.run = gui::make_runner(toolbox);
  state->services.executors = {"cpu"};
  Hand hand(*state, {.size = {1600, 1000}});
  const auto is_idle = [&] { return !is_working(*state); };
  hand.key(gui::compat::key_of('R'));
  ASSERT_TRUE(hand.wait_until(is_idle));
  hand.key(gui::compat::key_of('P'));
  EXPECT_EQ(state->run_b, state->run_a) << "the pinned plan keeps its run";
  split_by_all_to_all(*state);
  EXPECT_FALSE(apply_command(*state, "numbers.beside")) << "this plan has not run yet";
  hand.key(gui::compat::key_of('R'));
  ASSERT_TRUE(hand.wait_until(is_idle));
  ASSERT_TRUE(hand.wait_until([&] { return state->comparison.view != nullptr; }));
  hand.settle();
  save_png_for_review("compared_plans_pinned", hand.picture());
  hand.click("compare.numbers");
  EXPECT_TRUE(state->is_beside_b);
  const gui::ViewInput input = view_input(*state, ViewKind::numbers);
  ASSERT_NE(input.run_a, nullptr);
  EXPECT_EQ(input.run_a->against, "cpu (fp32) (p2p, dual_chunk)");
  EXPECT_TRUE(input.run_a->errors[0].passed);
  hand.settle();
  EXPECT_TRUE(hand.find("numbers/beside/off")) << "back to the oracle";
  save_png_for_review("compared_plans", hand.picture());
  hand.click("numbers/part/0/2");
  EXPECT_EQ(state->selected(), gui::Target(gui::RankTarget{2}));
  // The ranks of the other plan are none of the shown one.
  ASSERT_TRUE(hand.find("numbers/part/1/3"));
  // Back to the ring: its run is now compared with that of the all-to-all.
  undo_edit(*state);
  settle(*state);
  state->run_b_plan = state->document.plan();
  hand.settle();
  ASSERT_TRUE(hand.wait_until([&] { return state->comparison.view != nullptr; }));
  EXPECT_EQ(view_input(*state, ViewKind::numbers).run_a->against, "cpu (fp32) (a2a, contiguous)");
}

TEST(ComparedPlans, OfDifferentBatchesAreNotOffered) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Toolbox toolbox = make_numbers_toolbox();
  state->services.run = gui::make_runner(toolbox);
  state->services.executors = {"cpu"};
  Hand hand(*state, {.size = {1600, 1000}});
  const auto is_idle = [&] { return !is_working(*state); };
  hand.key(gui::compat::key_of('R'));
  ASSERT_TRUE(hand.wait_until(is_idle));
  hand.key(gui::compat::key_of('P'));
  Scenario scenario = state->document.scenario();
  scenario.attention.window_left = 16;
  edit_scenario(*state, scenario, "attention.window_size");
  settle(*state);
  hand.key(gui::compat::key_of('R'));
  ASSERT_TRUE(hand.wait_until(is_idle));
  hand.settle();
  EXPECT_FALSE(apply_command(*state, "numbers.beside"));
  EXPECT_TRUE(state->messages.empty() || !state->messages.back().is_error);
}

}  // namespace
}  // namespace cpscope::tests
