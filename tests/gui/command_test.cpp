#include "gui/app/command.h"

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

}  // namespace
}  // namespace cpscope::tests
