// What a right click offers, what is copied, and where a double click goes.
#include "gui/app/copy.h"
#include "gui/app/document/player.h"
#include "gui/app/find/find.h"
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
using gui::compat::Mods;

std::unique_ptr<AppState> open_zigzag() { return open_example_of(CPSCOPE_SCENARIOS, "zigzag"); }

std::string copied_text(Hand& hand) {
  std::string copied;
  hand.offscreen().frame([&] { copied = ImGui::GetClipboardText(); });
  return copied;
}

TEST(ContextMenu, CopiesFromAViewAndSelectsWhatIsUnderTheMouse) {
  const auto state = open_zigzag();
  Hand hand(*state);
  hand.right_click("layout/rank/2");
  EXPECT_EQ(state->selected(), Target(gui::RankTarget{2}));
  EXPECT_EQ(state->focus_view, ViewKind::layout);
  ASSERT_TRUE(hand.find("context/edit.copy"));
  save_png_for_review("context_menu", hand.picture());
  hand.click("context/edit.copy");
  EXPECT_TRUE(copied_text(hand).starts_with("Rank 2\n")) << copied_text(hand);
  EXPECT_EQ(hand.hits().find("context/edit.copy"), nullptr) << "the menu is closed";
  hand.right_click("layout/rank/1");
  hand.click("context/edit.copy_scenario");
  EXPECT_EQ(copied_text(hand), state->document.text());
  hand.right_click("mask/pair/32/0");
  hand.click("context/edit.copy_command");
  EXPECT_TRUE(copied_text(hand).starts_with("cpscope render ")) << copied_text(hand);
  EXPECT_NE(copied_text(hand).find(" --view mask "), std::string::npos) << copied_text(hand);
  hand.right_click("mask/pair/32/0");
  hand.click("context/view.enlarge");
  EXPECT_TRUE(state->is_enlarged);
}

TEST(ContextMenu, IsNoAnswerToAQuestion) {
  const auto state = open_zigzag();
  Hand hand(*state);
  state->answer.ranks = {1};
  hand.right_click("layout/rank/2");
  EXPECT_EQ(state->answer.ranks, (std::vector<int32_t>{1}));
}

TEST(Clipboard, GetsTheInspectorsTextWithCtrlC) {
  const auto state = open_zigzag();
  Hand hand(*state);
  hand.click("layout/rank/3");
  hand.key(gui::compat::key_of('C'), Mods{.ctrl = true});
  EXPECT_TRUE(copied_text(hand).starts_with("Rank 3\n")) << copied_text(hand);
  ASSERT_FALSE(state->messages.empty());
  EXPECT_EQ(state->messages.back().text, "Copied the inspector's text");
}

/// The word after an option of a command line, without quotes.
std::string option_of(const std::string& command, const std::string& name) {
  const size_t at = command.find(" " + name + " ");
  if (at == std::string::npos) return "";
  size_t begin = at + name.size() + 2;
  const bool is_quoted = command[begin] == '\'';
  begin += is_quoted ? 1 : 0;
  return command.substr(begin, command.find(is_quoted ? '\'' : ' ', begin) - begin);
}

TEST(RedrawCommand, NamesTheStepTheRankAndWhatIsSelected) {
  const auto state = open_zigzag();
  state->focus_view = ViewKind::traffic;
  state->theme = gui::ThemeName::light;
  state->playhead = seek_step(*state->plan(), state->playhead, 5);
  const gui::PlanIndex& plan = *state->plan();
  for (const Target& target :
       {Target(gui::RankTarget{3}), Target(gui::TokenRange{Side::q, 32, 64}),
        Target(gui::TokenRange{Side::kv, 0, 7}), Target(gui::LinkTarget{1, 2}),
        Target(gui::StepTarget{6}), Target(gui::PairRange{0, 64, 32, 96}),
        Target(ItemId{Direction::backward, StageKind::compute, 3})}) {
    select(*state, target);
    const std::string command = redraw_command(*state);
    EXPECT_EQ(option_of(command, "--step"), "5");
    EXPECT_EQ(option_of(command, "--theme"), "light");
    EXPECT_EQ(option_of(command, "--rank"), std::to_string(state->focus_rank));
    const gui::FindAnswer answer = find_targets(plan, option_of(command, "--select"));
    ASSERT_FALSE(answer.found.empty()) << command;
    EXPECT_EQ(answer.found.front().target, target) << command;
  }
}

TEST(RedrawCommand, QuotesAPathForTheShell) {
  const auto state = open_zigzag();
  ASSERT_TRUE(open_text(*state, state->document.text(), "it's mine.toml"));
  settle(*state);
  EXPECT_NE(redraw_command(*state).find("render 'it'\\''s mine.toml' --view"), std::string::npos)
      << redraw_command(*state);
}

TEST(DoubleClick, OnATileOfTheMaskGoesToItsStepAndElsewhereShowsEverything) {
  const auto state = open_zigzag();
  Hand hand(*state);
  const auto* item = [&]() -> const ItemId* {
    hand.double_click("mask/pair/96/0");
    return std::get_if<ItemId>(&state->selected());
  }();
  ASSERT_NE(item, nullptr);
  const gui::PlanIndex& plan = *state->plan();
  EXPECT_EQ(step_of(plan, state->playhead), plan.step_of_stage(plan.stage_of(*item)));
  EXPECT_GT(step_of(plan, state->playhead), 0);
  state->camera(ViewKind::layout).x = {0.25, 0.5};
  hand.settle();
  hand.double_click("layout/rank/0");
  EXPECT_EQ(state->camera(ViewKind::layout), gui::Camera{});
}

TEST(FullScreen, IsOfferedOnlyByAWindowThatCan) {
  const auto state = open_zigzag();
  Hand hand(*state);
  hand.key(gui::compat::function_key(11));
  EXPECT_FALSE(state->is_full_screen);
  state->services.has_full_screen = true;
  hand.key(gui::compat::function_key(11));
  EXPECT_TRUE(state->is_full_screen);
}

}  // namespace
}  // namespace cpscope::tests
