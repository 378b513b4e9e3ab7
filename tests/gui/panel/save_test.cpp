// Files that the window writes: scenarios when quitting, pictures and figures of a view.
#include "gui/app/app_state.h"
#include "gui/app/command.h"
#include "gui/draw/png_file.h"
#include "gui/window/screenshot.h"
#include "tests/gui/scenario_files.h"
#include "tests/sim/run/scratch_folder.h"
#include "tests/support/animation_reader.h"
#include "tests/support/hand.h"

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::AppState;
using gui::Dialog;
using gui::compat::Key;
using gui::compat::Mods;

/// A file of the test's own folder, which is removed when the program ends.
std::string scratch(const std::string& name) {
  static const testing_support::ScratchFolder folder;
  return folder.file(name);
}

/// A copy of a shipped scenario, opened from its file and edited.
std::unique_ptr<AppState> open_and_edit(const std::string& path) {
  std::filesystem::copy_file(CPSCOPE_SCENARIOS "/zigzag.toml", path,
                             std::filesystem::copy_options::overwrite_existing);
  auto state = std::make_unique<AppState>();
  EXPECT_TRUE(open_scenario(*state, path));
  settle(*state);
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 8;
  edit_scenario(*state, scenario, "parallel.cp_size");
  settle(*state);
  return state;
}

void press_quit(Hand& hand) { hand.key(gui::compat::key_of('Q'), Mods{.ctrl = true}); }

TEST(Leaving, EndsAtOnceWhereNothingIsUnsaved) {
  const std::string path = scratch("same.toml");
  const auto state = open_and_edit(path);
  undo_edit(*state);
  Hand hand(*state);
  press_quit(hand);
  EXPECT_TRUE(state->wants_quit);
  EXPECT_EQ(state->dialog, Dialog::none);
}

TEST(Leaving, StaysWhenItIsCancelled) {
  const std::string path = scratch("cancel.toml");
  const auto state = open_and_edit(path);
  Hand hand(*state);
  press_quit(hand);
  EXPECT_FALSE(state->wants_quit);
  EXPECT_EQ(state->dialog, Dialog::unsaved);
  hand.click("unsaved/cancel");
  EXPECT_EQ(state->dialog, Dialog::none);
  EXPECT_FALSE(state->wants_quit);
  press_quit(hand);
  hand.key(Key::escape);
  EXPECT_EQ(state->dialog, Dialog::none);
  EXPECT_FALSE(state->wants_quit);
  EXPECT_EQ(read_text(path), read_text(CPSCOPE_SCENARIOS "/zigzag.toml"));
}

TEST(Leaving, LosesTheChangesOnlyWhenTold) {
  const std::string path = scratch("discard.toml");
  const auto state = open_and_edit(path);
  Hand hand(*state);
  press_quit(hand);
  hand.click("unsaved/discard");
  EXPECT_TRUE(state->wants_quit);
  EXPECT_EQ(read_text(path), read_text(CPSCOPE_SCENARIOS "/zigzag.toml"));
}

TEST(Leaving, SavesTheChangesFirst) {
  const std::string path = scratch("save.toml");
  const auto state = open_and_edit(path);
  Hand hand(*state);
  press_quit(hand);
  hand.click("unsaved/save");
  EXPECT_TRUE(state->wants_quit);
  EXPECT_NE(read_text(path).find("cp_size      = 8"), std::string::npos) << read_text(path);
}

TEST(Leaving, StaysWhenTheChangesCannotBeSaved) {
  const std::string path = scratch("folder/gone.toml");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const auto state = open_and_edit(path);
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
  Hand hand(*state);
  press_quit(hand);
  hand.click("unsaved/save");
  EXPECT_FALSE(state->wants_quit);
  ASSERT_FALSE(state->messages.empty());
  EXPECT_TRUE(state->messages.back().is_error);
}

TEST(Leaving, AsksForANameWhereThereIsNone) {
  const std::string path = scratch("named.toml");
  auto state = std::make_unique<AppState>();
  ASSERT_FALSE(state->document.load_text(read_text(CPSCOPE_SCENARIOS "/zigzag.toml"), ""));
  settle(*state);
  Scenario scenario = state->document.scenario();
  scenario.parallel.cp_size = 2;
  edit_scenario(*state, scenario, "parallel.cp_size");
  Hand hand(*state);
  press_quit(hand);
  hand.click("unsaved/save");
  EXPECT_EQ(state->dialog, Dialog::save_file);
  EXPECT_FALSE(state->wants_quit);
  hand.type(path);
  hand.key(Key::enter);
  EXPECT_TRUE(state->wants_quit);
  EXPECT_NE(read_text(path).find("cp_size      = 2"), std::string::npos);
  // If the dialog for a name was closed without a name, the next save must not quit.
  state->wants_quit = false;
  scenario.parallel.cp_size = 4;
  edit_scenario(*state, scenario, "parallel.cp_size");
  state->quits_when_saved = true;
  state->dialog = Dialog::save_file;
  hand.key(Key::escape);
  EXPECT_FALSE(state->quits_when_saved);
}

/// Types a name into the export dialog.
void export_to(Hand& hand, AppState& state, const std::string& path) {
  hand.key(gui::compat::key_of('E'), Mods{.ctrl = true});
  EXPECT_EQ(state.dialog, Dialog::export_file);
  hand.type(path);
  hand.key(Key::enter);
  EXPECT_EQ(state.dialog, Dialog::none);
  grant_wish(state, {.fonts = gui::FontChoice::built_in});
}

TEST(Export, WritesTheFocusedViewAsAPictureOrAsFigures) {
  const auto state = open_and_edit(scratch("export.toml"));
  Hand hand(*state);
  hand.key(gui::compat::key_of('3'));
  EXPECT_EQ(state->focus_view, gui::ViewKind::traffic);
  const std::string svg = scratch("view.svg"), png = scratch("view.png"), csv = scratch("view.csv");
  export_to(hand, *state, svg);
  const std::string text = read_text(svg);
  EXPECT_TRUE(text.starts_with("<?xml") || text.starts_with("<svg")) << text.substr(0, 80);
  EXPECT_NE(text.find("Traffic"), std::string::npos);
  EXPECT_NE(text.find(to_hex(state->plan()->plan().hash)), std::string::npos);
  EXPECT_EQ(state->messages.back().text, "Wrote " + svg);
  export_to(hand, *state, png);
  const auto image = gui::read_png(png);
  ASSERT_TRUE(image.ok());
  EXPECT_GT(image.value().image.width, 1000);
  Scenario small = state->document.scenario();
  small.parallel.cp_size = 2;
  edit_scenario(*state, small, "parallel.cp_size");
  settle(*state);
  const std::string moving = scratch("view.apng");
  export_to(hand, *state, moving);
  EXPECT_EQ(state->messages.back().text, "Wrote " + moving);
  EXPECT_EQ(play_animation(read_text(moving)).size(), 16U + 1)
      << "of two steps, the last sends nothing";
  export_to(hand, *state, csv);
  EXPECT_TRUE(hand.wait_until([&] { return !is_working(*state); }));
  EXPECT_TRUE(read_text(csv).starts_with("pass,item,step,stage_of_step,source_rank"));
  export_to(hand, *state, scratch("view.doc"));
  EXPECT_TRUE(state->messages.back().is_error);
  EXPECT_FALSE(std::filesystem::exists(scratch("view.doc")));
  export_to(hand, *state, "/no/such/folder/view.svg");
  EXPECT_TRUE(state->messages.back().is_error) << state->messages.back().text;
}

TEST(Export, OfFiguresIsShownAndCancelled) {
  const auto state = open_and_edit(scratch("cancelled.toml"));
  Hand hand(*state);
  // Work that ends only when it is stopped.
  state->saving.path = "endless.csv";
  state->saving.task.start([](gui::TaskControl& control) -> std::optional<Error> {
    control.progress = 0.25;
    while (!control.is_stopped) std::this_thread::yield();
    return std::nullopt;
  });
  hand.frames(3);
  EXPECT_TRUE(hand.find("run.progress").has_value());
  EXPECT_TRUE(is_working(*state));
  hand.click("run.cancel");
  EXPECT_FALSE(is_working(*state));
  EXPECT_EQ(state->messages.back().text, "Writing endless.csv was cancelled");
}

TEST(Numbers, AreOfTheAnswerOrOfTheStepBesideTheOracleOrRunB) {
  const auto state = open_and_edit(scratch("numbers.toml"));
  undo_edit(*state);
  settle(*state);
  const auto run = [&](const std::string& name) {
    auto made = std::make_shared<gui::RunView>();
    made->name = name;
    made->errors.emplace_back();
    made->without_steps = "No steps of " + name + ".";
    return made;
  };
  state->run_a = run("a");
  state->run_a_plan = state->document.plan();
  Hand hand(*state);
  hand.click("numbers/of/on");
  EXPECT_TRUE(state->is_by_step);
  EXPECT_EQ(hand.hits().find("numbers/beside/on"), nullptr) << "there is no B";
  state->run_b = run("b");
  state->run_b_plan = state->document.plan();
  hand.frames(2);
  hand.click("numbers/beside/on");
  EXPECT_TRUE(state->is_beside_b);
  hand.key(gui::compat::key_of('E'));
  EXPECT_FALSE(state->is_by_step);
}

}  // namespace
}  // namespace cpscope::tests
