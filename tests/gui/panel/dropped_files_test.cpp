#include "gui/app/run_views.h"
#include "gui/window/services.h"
#include "sim/run/record/run_record.h"
#include "tests/gui/model/numbers_cases.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace cpscope::tests {
namespace {

using gui::AppState;

/// The files of one test, in a folder of their own.
class Files {
 public:
  Files() : folder_(std::filesystem::temp_directory_path() / name()) {
    std::filesystem::create_directories(folder_);
  }
  ~Files() { std::filesystem::remove_all(folder_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  static std::string name() { return "cpscope_dropped_" + std::to_string(getpid()); }
  std::filesystem::path folder_;
};

std::string scenario(int32_t ranks, const std::string& title) {
  return "schema = 1\ntitle = \"" + title +
         "\"\n[attention]\nheads = 2\nhead_dim = 8\n[batch]\nlengths = [32]\n[parallel]\n"
         "cp_size = " +
         std::to_string(ranks) + "\n[numerics]\ndtype = \"fp32\"\n";
}

/// Runs frames until everything that was dropped is open.
void drop(AppState& state, std::deque<std::string> paths) {
  for (double now_s = 0; !paths.empty() || state.job.task.is_running(); now_s += 0.01) {
    open_dropped(state, paths);
    update(state, now_s);
  }
}

/// A record of a scenario, run on the walker.
std::string record_of(const Files& files, const std::string& text, const std::string& name) {
  Toolbox toolbox = make_numbers_toolbox();
  AppState state;
  EXPECT_FALSE(state.document.load_text(text, ""));
  settle(state);
  gui::TaskControl control;
  const auto run = gui::make_runner(toolbox)("cpu", state.document.plan(), control);
  EXPECT_TRUE(run.ok());
  RunRecord record = *run.value()->record;
  record.scenario_text = text;
  EXPECT_TRUE(write_record(record, files.path(name)).ok());
  return files.path(name);
}

TEST(DroppedFiles, OpenScenariosInOrder) {
  const Files files;
  AppState state;
  drop(state,
       {files.write("a.toml", scenario(2, "first")), files.write("b.toml", scenario(4, "second"))});
  EXPECT_EQ(state.document.scenario().title, "second");
  EXPECT_EQ(state.plan()->num_ranks(), 4);
  EXPECT_TRUE(state.messages.empty());
}

TEST(DroppedFiles, SayWhatIsWrongAndKeepWhatIsOpen) {
  const Files files;
  AppState state;
  const std::string good = files.write("a.toml", scenario(2, "first"));
  drop(state, {good, files.write("bad.toml", "schema = 1\nnonsense = 3\n"), files.path("none.toml"),
               files.write("picture.png", "not a scenario"),
               files.write("broken.safetensors", "short"), files.path("")});
  EXPECT_EQ(state.document.path(), good);
  ASSERT_EQ(state.messages.size(), 5u);
  for (const gui::Message& message : state.messages) EXPECT_TRUE(message.is_error) << message.text;
  EXPECT_NE(state.messages[0].text.find("nonsense"), std::string::npos) << state.messages[0].text;
  EXPECT_NE(state.messages[1].text.find("none.toml"), std::string::npos) << state.messages[1].text;
}

TEST(DroppedFiles, OpenARecordWithItsScenarioAndTheNextOneBesideIt) {
  const Files files;
  Toolbox toolbox = make_numbers_toolbox();
  AppState state;
  state.services.read_record = gui::make_record_reader(toolbox);
  const std::string text = scenario(2, "recorded");
  const std::string first = record_of(files, text, "first.safetensors");
  const std::string second = record_of(files, text, "second.safetensors");
  drop(state, {first, second});
  EXPECT_EQ(state.document.scenario().title, "recorded");
  ASSERT_TRUE(state.run_a != nullptr && state.run_b != nullptr) << "one after the other";
  EXPECT_EQ(state.run_a_plan, state.document.plan());
  EXPECT_TRUE(state.messages.empty()) << state.messages.front().text;
}

TEST(DroppedFiles, ReplaceRunsOfAnotherScenario) {
  const Files files;
  Toolbox toolbox = make_numbers_toolbox();
  AppState state;
  state.services.read_record = gui::make_record_reader(toolbox);
  drop(state, {record_of(files, scenario(2, "one"), "one.safetensors")});
  const gui::SharedRun one = state.run_a;
  drop(state, {record_of(files, scenario(4, "two"), "two.safetensors")});
  EXPECT_EQ(state.document.scenario().title, "two");
  EXPECT_NE(state.run_a, one);
  EXPECT_EQ(state.run_b, nullptr);
}

}  // namespace
}  // namespace cpscope::tests
