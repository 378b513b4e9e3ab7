#include "gui/app/command.h"

#include "sim/scenario/scenario_file.h"
#include "tests/support/walker_cases.h"

#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::Command;

TEST(CommandTable, HasNoTwoCommandsOfOneIdOrTitle) {
  std::set<std::string_view> ids, titles;
  for (const Command& command : gui::all_commands()) {
    EXPECT_TRUE(ids.insert(command.id).second) << command.id;
    EXPECT_TRUE(titles.insert(command.title).second) << command.title;
  }
}

TEST(CommandTable, HasNoTwoCommandsOfOneShortcut) {
  std::set<std::string> taken;
  for (const Command& command : gui::all_commands()) {
    for (const gui::Chord& chord : chords_of(command))
      EXPECT_TRUE(taken.insert(to_text(chord)).second) << to_text(chord) << " of " << command.id;
  }
}

TEST(CommandTable, WritesOnlyChordsThatCanBeRead) {
  for (const Command& command : gui::all_commands()) {
    size_t written = 0;
    for (const char c : command.shortcuts) written += c == ' ';
    written += command.shortcuts.empty() ? 0 : 1;
    EXPECT_EQ(chords_of(command).size(), written) << command.id << ": " << command.shortcuts;
  }
}

TEST(CommandTable, GivesEveryCommandAMenuAndOneSentenceOfHelp) {
  for (const Command& command : gui::all_commands()) {
    EXPECT_FALSE(command.menu.empty()) << command.id;
    ASSERT_FALSE(command.help.empty()) << command.id;
    EXPECT_EQ(command.help.back(), '.') << command.id;
    EXPECT_NE(command.is_enabled, nullptr) << command.id;
    EXPECT_NE(command.apply, nullptr) << command.id;
  }
}

TEST(CommandTable, HelpNamesEveryCommandOnce) {
  const auto lines = gui::make_help();
  ASSERT_EQ(lines.size(), gui::all_commands().size());
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].title, gui::all_commands()[i].title);
}

TEST(Chord, ReadsWhatItWrites) {
  for (const char* text :
       {"Ctrl+Shift+Z", "Space", "Alt+Left", "F12", ",", "+", "Ctrl++", "?", "1"}) {
    const auto chord = gui::parse_chord(text);
    ASSERT_TRUE(chord) << text;
    EXPECT_EQ(to_text(*chord), text);
  }
  for (const char* text : {"", "Ctrl", "Ctrl+", "z", "F13", "F0", "Ctrl+Ctrl+A", "Foo+A", "AB"})
    EXPECT_FALSE(gui::parse_chord(text)) << text;
}

TEST(CommandTable, HasTheShortcutsOfTheDesign) {
  const std::vector<std::pair<const char*, const char*>> wanted = {{"Space", "play"},
                                                                   {"Left", "step.previous"},
                                                                   {"Right", "step.next"},
                                                                   {",", "step.previous"},
                                                                   {".", "step.next"},
                                                                   {"Home", "step.first"},
                                                                   {"End", "step.last"},
                                                                   {"Shift+Left", "event.previous"},
                                                                   {"Shift+Right", "event.next"},
                                                                   {"F", "view.frame"},
                                                                   {"1", "view.focus.layout"},
                                                                   {"6", "view.focus.balance"},
                                                                   {"[", "rank.previous"},
                                                                   {"]", "rank.next"},
                                                                   {"Tab", "select.related"},
                                                                   {"B", "run.swap"},
                                                                   {"C", "traffic.cumulative"},
                                                                   {"Ctrl+O", "file.open"},
                                                                   {"Ctrl+F", "edit.find"},
                                                                   {"Ctrl+S", "file.screenshot"},
                                                                   {"Ctrl+E", "file.export"},
                                                                   {"F1", "help.keys"},
                                                                   {"?", "help.keys"},
                                                                   {"Esc", "select.clear"},
                                                                   {"Alt+Left", "select.previous"},
                                                                   {"Alt+Right", "select.next"},
                                                                   {"W", "view.zoom_in"},
                                                                   {"A", "view.pan_left"},
                                                                   {"S", "view.zoom_out"},
                                                                   {"D", "view.pan_right"},
                                                                   {"Ctrl+Z", "edit.undo"}};
  for (const auto& [keys, id] : wanted) {
    const Command* command = gui::find_command(*gui::parse_chord(keys));
    ASSERT_NE(command, nullptr) << keys;
    EXPECT_EQ(command->id, id) << keys;
  }
}

TEST(Commands, AreSafeInAnyOrderFromAnyState) {
  std::mt19937_64 random(7);
  gui::AppState state;
  const auto commands = gui::all_commands();
  for (int i = 0; i < 20'000; ++i) {
    const Command& command = commands[random() % commands.size()];
    SCOPED_TRACE(command.id);
    apply_command(state, command.id);
    if (i == 500) {
      ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({64}, 4)), ""));
    }
    if (i % 7 == 0) update(state, i / 60.0);
    if (i % 100 == 99 && state.plan() != nullptr) {
      Scenario next = state.document.scenario();
      next.parallel.cp_size = static_cast<int32_t>(random() % 9);
      edit_scenario(state, next, "parallel.cp_size");
    }
    if (i % 50 == 49 && state.plan() != nullptr)
      select(state, gui::RankTarget{static_cast<int32_t>(random() % 9)});
    for (const gui::Camera& camera : state.cameras) {
      for (const gui::AxisSpan& span : {camera.x, camera.y})
        ASSERT_TRUE(span.lo >= 0.0 && span.lo < span.hi && span.hi <= 1.0);
    }
    if (state.plan() == nullptr) continue;
    ASSERT_LT(state.playhead.index, count_places(*state.plan(), state.playhead.is_by_stage));
    ASSERT_LT(state.focus_rank, state.plan()->num_ranks());
  }
  EXPECT_NE(state.plan(), nullptr);
}

TEST(Commands, StepPlayheadAndFrameTheSelection) {
  gui::AppState state;
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({256}, 4)), ""));
  apply_command(state, "step.next");
  apply_command(state, "step.next");
  apply_command(state, "step.previous");
  EXPECT_EQ(state.playhead.index, 1);
  apply_command(state, "step.last");
  EXPECT_EQ(state.playhead.index, 7);
  apply_command(state, "step.next");
  EXPECT_EQ(state.playhead.index, 7);
  apply_command(state, "play.unit");
  EXPECT_TRUE(state.playhead.is_by_stage);
  select(state, gui::TokenRange{Side::q, 64, 96});
  ASSERT_TRUE(apply_command(state, "view.frame"));
  const gui::AxisSpan shown = state.camera(gui::ViewKind::layout).x;
  EXPECT_LT(shown.lo, 64.0 / 256);
  EXPECT_GT(shown.hi, 96.0 / 256);
  EXPECT_LT(shown.hi - shown.lo, 0.5);
  apply_command(state, "view.whole");
  EXPECT_EQ(state.camera(gui::ViewKind::layout), gui::Camera{});
}

TEST(Commands, UndoEdits) {
  gui::AppState state;
  ASSERT_FALSE(state.document.load_text(print_scenario(walker_case({256}, 4)), ""));
  EXPECT_FALSE(apply_command(state, "edit.undo"));
  Scenario next = state.document.scenario();
  next.parallel.cp_size = 2;
  edit_scenario(state, next, "parallel.cp_size");
  ASSERT_TRUE(apply_command(state, "edit.undo"));
  EXPECT_EQ(state.plan()->num_ranks(), 4);
  ASSERT_TRUE(apply_command(state, "edit.redo"));
  EXPECT_EQ(state.plan()->num_ranks(), 2);
}

}  // namespace
}  // namespace cpscope::tests
