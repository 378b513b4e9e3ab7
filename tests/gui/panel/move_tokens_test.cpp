// A chunk is given to another rank by hand.
#include "gui/app/move_tokens.h"

#include "gui/app/app_state.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;

void drop_chunk(Hand& hand, const std::string& chunk, const std::string& rank) {
  const auto from = hand.find(chunk), to = hand.find(rank);
  ASSERT_TRUE(from && to);
  hand.drag(from->center(), to->center());
}

TEST(MoveTokens, GivesAChunkToTheRankOnWhoseLaneItIsDropped) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  const double before = state->plan()->summary().rank_max_over_mean;
  ASSERT_EQ(state->plan()->owner(Side::q, 224).rank, 0);
  drop_chunk(hand, "layout/chunk/q/224", "layout/rank/2");
  ASSERT_FALSE(state->document.refusal()) << to_text(*state->document.refusal());
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::indices);
  for (const int64_t token : {224, 240, 255})
    EXPECT_EQ(state->plan()->owner(Side::q, token).rank, 2);
  EXPECT_EQ(state->plan()->owner(Side::kv, 230).rank, 2) << "keys move with their queries";
  EXPECT_GT(state->plan()->summary().rank_max_over_mean, before) << "proved, and less balanced";
  EXPECT_EQ(state->camera(gui::ViewKind::layout), gui::Camera{}) << "the picture stays";
  save_png_for_review("move_tokens", hand.picture());
  hand.click("edit.undo");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::dual_chunk) << "one change";
}

TEST(MoveTokens, DoesNothingOnTheOwnLane) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  drop_chunk(hand, "layout/chunk/q/224", "layout/rank/0");
  EXPECT_FALSE(state->document.is_modified());
}

TEST(MoveTokens, KeepsTheOrderInASavedStateAndBesideASavedFile) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  ASSERT_TRUE(move_tokens(*state, gui::TokenRange{Side::q, 0, 32}, 3));
  AppState again;
  ASSERT_EQ(load_state(again, save_state(*state), "state.json"), std::nullopt);
  EXPECT_EQ(again.plan()->plan().hash, state->plan()->plan().hash);
  const auto folder = std::filesystem::temp_directory_path() / "cpscope_move_tokens_test";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(save_scenario(*state, (folder / "mine.toml").string()));
  gui::Document read;
  EXPECT_EQ(read.load((folder / "mine.toml").string()), std::nullopt);
  read.wait();
  EXPECT_EQ(read.plan()->plan().hash, state->plan()->plan().hash);
  std::filesystem::remove_all(folder);
}

TEST(MoveTokens, KeepsTheIdsOfPaddedSequences) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "thd_padding_p2p");
  const int64_t tokens = state->plan()->tokens(Side::q);
  const int64_t visible = state->plan()->summary().visible_pairs;
  ASSERT_TRUE(move_tokens(*state, gui::TokenRange{Side::q, 0, 88}, 1));
  ASSERT_FALSE(state->document.refusal()) << to_text(*state->document.refusal());
  EXPECT_EQ(state->plan()->tokens(Side::q), tokens);
  EXPECT_EQ(state->plan()->summary().visible_pairs, visible);
}

TEST(MoveTokens, SaysThatAnOrderIsOfAnotherNumberOfRanks) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  ASSERT_TRUE(move_tokens(*state, gui::TokenRange{Side::q, 0, 32}, 3));
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 2;
  edit_scenario(*state, scenario, "parallel.cp_size");
  EXPECT_TRUE(state->document.refusal().has_value());
}

}  // namespace
}  // namespace cpscope::tests
