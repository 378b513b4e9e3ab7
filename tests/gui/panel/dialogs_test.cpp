// Dialogs, menus and what an error leaves on the screen.
#include "gui/app/app_state.h"
#include "gui/app/glossary.h"
#include "gui/app/scenario_menu.h"
#include "sim/scenario/scenario_file.h"
#include "tests/gui/scenario_files.h"
#include "tests/support/hand.h"
#include "tests/support/review_picture.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Dialog;
using gui::ViewKind;
using gui::compat::Key;

std::unique_ptr<AppState> open_case(const std::string& name) {
  return open_example_of(CPSCOPE_SCENARIOS, name);
}

TEST(Dialogs, KeepMouseAndKeysFromTheViewsBehind) {
  const auto state = open_case("zigzag");
  Hand hand(*state);
  const auto chunk = hand.find("layout/chunk/q/32");
  ASSERT_TRUE(chunk);
  hand.key(gui::compat::key_of('L'));
  ASSERT_EQ(state->dialog, Dialog::lessons);
  hand.click_at(chunk->center());
  EXPECT_EQ(state->selected(), gui::Target(gui::Nothing{})) << "a click behind the dialog";
  hand.move_to("layout/chunk/q/32");
  EXPECT_EQ(state->hovered, gui::Target(gui::Nothing{}));
  hand.key(Key::space);
  EXPECT_FALSE(state->player.is_playing);
  hand.key(gui::compat::key_of('C'));
  EXPECT_FALSE(state->is_cumulative);
  hand.key(gui::compat::key_of('3'));
  EXPECT_EQ(state->lesson, (gui::LessonPlace{2, 0})) << "the third lesson";
  EXPECT_EQ(state->dialog, Dialog::none);
}

TEST(Dialogs, WelcomeWithThreeChoices) {
  for (const char* choice : {"welcome/lesson", "welcome/explore", "welcome/own"}) {
    const auto state = open_case("zigzag");
    state->dialog = Dialog::welcome;
    Hand hand(*state);
    save_png_for_review("dialogs_welcome", hand.picture());
    hand.click(choice);
    EXPECT_EQ(state->lesson.lesson, std::string(choice) == "welcome/lesson" ? 0 : -1);
    EXPECT_EQ(state->dialog,
              std::string(choice) == "welcome/own" ? Dialog::open_file : Dialog::none);
  }
}

TEST(Dialogs, AskForANameBeforeAShippedScenarioIsSaved) {
  const auto state = open_case("zigzag");
  Hand hand(*state);
  hand.click("edit/parallel.cp_size/double");
  hand.click("file.save");
  EXPECT_EQ(state->dialog, Dialog::save_file);
  EXPECT_FALSE(std::filesystem::exists("zigzag.toml")) << "nothing is written yet";
  // What is typed replaces the suggested name.
  const auto folder = std::filesystem::temp_directory_path() / "cpscope_dialogs_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "mine.toml").string();
  hand.type(path);
  hand.key(Key::enter);
  EXPECT_EQ(state->document.path(), path);
  EXPECT_NE(read_text(path).find("cp_size      = 8"), std::string::npos);
  EXPECT_NE(read_text(path).find("# The sequence of contiguous_idle"), std::string::npos);
  hand.click("edit/parallel.cp_size/half");
  hand.click("file.save");
  EXPECT_EQ(state->dialog, Dialog::none) << "it has a file now";
  EXPECT_NE(read_text(path).find("cp_size      = 4"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(ScenarioMenu, HasATitleAndAQuestionForEveryShippedScenario) {
  AppState state;
  state.services.scenario_source = read_scenarios_of(CPSCOPE_SCENARIOS);
  for (const auto& file : std::filesystem::directory_iterator(CPSCOPE_SCENARIOS))
    if (file.path().extension() == ".toml")
      state.services.scenario_names.push_back(file.path().stem().string());
  std::sort(state.services.scenario_names.begin(), state.services.scenario_names.end());
  const auto groups = gui::group_scenarios(state.services);
  size_t count = 0;
  for (const gui::ScenarioGroup& group : groups) {
    EXPECT_NE(group.title, "Others") << group.entries.front().name << " is in no group";
    for (const auto& entry : group.entries) {
      ++count;
      EXPECT_NE(entry.title, entry.name);
      EXPECT_FALSE(entry.question.empty()) << entry.name;
      const auto loaded = load_scenario(CPSCOPE_SCENARIOS "/" + entry.name + ".toml");
      ASSERT_TRUE(loaded) << entry.name;
      EXPECT_EQ(entry.title, loaded.value().scenario.title);
      EXPECT_EQ(entry.question, loaded.value().scenario.question);
    }
  }
  EXPECT_EQ(count, state.services.scenario_names.size());
  EXPECT_EQ(groups.front().entries[1].name, "zigzag") << "teaching order";
}

TEST(ScenarioMenu, OpensAScenarioFromItsGroup) {
  const auto state = open_case("zigzag");
  Hand hand(*state);
  hand.click("menu/Scenarios");
  hand.move_to("menu/Scenarios/Padding");
  hand.offscreen().wait(30);
  hand.settle();
  save_png_for_review("dialogs_menu", hand.picture());
  hand.click("menu/Scenarios");
  hand.move_to("menu/Scenarios/Balance");
  hand.click("menu/Scenarios/striped");
  EXPECT_EQ(state->plan()->plan().layout.kind, LayoutKind::striped);
}

TEST(StalePicture, IsGreyAndNamesItsPlan) {
  const auto state = open_case("zigzag");
  Hand hand(*state);
  const gui::Image before = hand.picture();
  EXPECT_EQ(hand.hits().find("mask/stale"), nullptr);
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 100000;
  edit_scenario(*state, scenario, "parallel.cp_size");
  hand.settle();
  ASSERT_TRUE(state->document.refusal());
  for (const ViewKind kind : gui::kViewKinds)
    EXPECT_NE(hand.hits().find(std::string(to_name(kind)) + "/stale"), nullptr);
  const auto mask = hand.find("mask/canvas");
  ASSERT_TRUE(mask);
  const gui::Image after = hand.picture();
  save_png_for_review("dialogs_stale", after);
  const int x = static_cast<int>(mask->center().x), y = static_cast<int>(mask->center().y);
  EXPECT_FALSE(before.at(x, y) == after.at(x, y)) << "the picture is veiled";
}

TEST(Help, ShowsTheWordsAndTheColoursOfHighlights) {
  const auto state = open_example_of(CPSCOPE_SCENARIOS, "zigzag");
  Hand hand(*state);
  hand.key(gui::compat::function_key(1));
  ASSERT_EQ(state->dialog, Dialog::help);
  const auto is_shown = [&](const std::string& name) {
    const auto dialog = hand.find("dialog"), box = hand.find(name);
    return dialog && box && box->y0 >= dialog->y0 && box->y1 <= dialog->y1;
  };
  EXPECT_FALSE(is_shown("help/word/triple"));
  hand.click("help/words");
  EXPECT_TRUE(is_shown("help/word/triple"));
  save_png_for_review("help_words", hand.picture());
  hand.click("help/colors");
  EXPECT_TRUE(is_shown("help/light/related"));
  EXPECT_TRUE(is_shown("help/light/selected"));
  save_png_for_review("help_colors", hand.picture());
  hand.click("help/keys");
  EXPECT_FALSE(is_shown("help/light/related"));
}

TEST(Help, HasEveryWordOnceInAlphabeticalOrder) {
  const auto words = gui::glossary();
  ASSERT_GT(words.size(), 20U);
  const auto lower = [](std::string_view word) {
    std::string text(word);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  };
  for (size_t n = 1; n < words.size(); ++n)
    EXPECT_LT(lower(words[n - 1].word), lower(words[n].word));
  for (const gui::Term& term : words) EXPECT_EQ(term.meaning.back(), '.') << term.word;
}

}  // namespace
}  // namespace cpscope::tests
