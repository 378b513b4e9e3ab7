// The real window on a display of its own, driven from outside as a user would.
#include "gui/draw/png_file.h"
#include "tests/program/program_run.h"
#include "tests/support/virtual_display.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using gui::Color;
using gui::Image;
using nlohmann::json;

constexpr double kPatience = 60;  // seconds, for machines that have much to do

TEST(GuiCommand, NamesTheWayOutWhereThereIsNoDisplay) {
  const std::string file = write_file("nowhere.toml", small_scenario());
  unsetenv("DISPLAY");
  unsetenv("WAYLAND_DISPLAY");
  const ProgramRun run = run_cpscope("gui " + file);
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_NE(run.err.find("cpscope render"), std::string::npos) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(GuiCommand, AnswersMistakesBeforeItOpensAnything) {
  EXPECT_EQ(run_cpscope("gui missing.toml").exit_code, 2);
  const std::string file = write_file("mistake.toml", small_scenario());
  EXPECT_EQ(run_cpscope("gui " + file + " --size tiny").exit_code, 2);
  EXPECT_EQ(run_cpscope("gui " + file + " --theme neon").exit_code, 2);
  EXPECT_EQ(run_cpscope("gui " + file + " --screenshot nowhere/a.png").exit_code, 2);
  EXPECT_EQ(run_cpscope("gui " + file + " --state missing.json --screenshot a.png").exit_code, 2);
}

/// The window of one scenario, on a display of its own.
class OpenWindow {
 public:
  explicit OpenWindow(const std::string& file,
                      std::vector<std::string> options = {"--size", "1280x800"})
      : folder_(work_folder() / "watch"), display_(1400, 900) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    std::vector<std::string> words = {CPSCOPE_PROGRAM, "gui",           file, "--scale", "1",
                                      "--watch",       folder_.string()};
    words.insert(words.end(), options.begin(), options.end());
    program_ = std::make_unique<Process>(
        words,
        std::vector<std::string>{"DISPLAY=" + display_.name(), "LIBGL_ALWAYS_SOFTWARE=1",
                                 "XDG_STATE_HOME=" + (work_folder() / "state").string()},
        "");
  }

  /// What the window shows, once it fulfils `holds`; null when it never does.
  json wait_until(const std::function<bool(const json&)>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kPatience);
    while (std::chrono::steady_clock::now() < end) {
      std::ifstream file(folder_ / "hits.json");
      const json seen = json::parse(file, nullptr, false);
      if (!seen.is_discarded() && holds(seen)) return seen;
      if (program_->wait(0)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  }
  void click(const json& seen, const std::string& name) {
    ASSERT_TRUE(seen["hits"].contains(name)) << name;
    const json& box = seen["hits"][name];
    const auto middle = [&](int lo, int hi) {
      return std::to_string(static_cast<int>((box[lo].get<double>() + box[hi].get<double>()) / 2));
    };
    display_.hand("mousemove " + middle(0, 2) + " " + middle(1, 3) +
                  " sleep 0.3 mousedown 1 sleep 0.2 mouseup 1");
  }
  void press(const std::string& key) { display_.hand("key " + key); }
  /// Places the window where the screen begins, and gives it the keyboard.
  void focus() {
    display_.hand("search --sync --onlyvisible --name cpscope windowmove 0 0 windowfocus");
  }
  Image picture(const std::string& name) {
    const Result<gui::PngFile> file = gui::read_png((folder_ / name).string());
    EXPECT_TRUE(file.ok());
    return file ? file.value().image : Image();
  }
  std::optional<int> wait_for_end() { return program_->wait(kPatience); }
  const VirtualDisplay& display() const { return display_; }

 private:
  std::filesystem::path folder_;
  VirtualDisplay display_;
  std::unique_ptr<Process> program_;
};

int32_t furthest_channel(Color a, Color b) {
  return std::max({std::abs(a.r - b.r), std::abs(a.g - b.g), std::abs(a.b - b.b)});
}

TEST(Window, OpensPaintsAsTheRasteriserDoesAnswersAndCloses) {
  for (const char* tool : {"Xvfb", "xdotool"})
    if (!has_program(tool)) GTEST_SKIP() << "requires display: " << tool << " is missing";
  const std::string file = write_file(
      "window.toml", small_scenario("cp_size = 4", "lengths = [256]", "", "dtype = \"bf16\""));
  OpenWindow window(file);
  if (window.display().name().empty()) GTEST_SKIP() << "requires display: Xvfb does not start";
  json seen = window.wait_until([](const json&) { return true; });
  if (seen.is_null()) {
    ASSERT_EQ(window.wait_for_end(), 3);
    GTEST_SKIP() << "requires display: this build has no window, or no OpenGL is here";
  }
  window.focus();

  // The card's pixels are those of the rasteriser, which all other tests look at.
  const Image card = window.picture("card.png"), raster = window.picture("raster.png");
  ASSERT_EQ(card.width, 1280);
  ASSERT_EQ(card.height, 800);
  ASSERT_EQ(raster.pixels.size(), card.pixels.size());
  int64_t different = 0, far = 0;
  for (size_t i = 0; i < card.pixels.size(); ++i) {
    const int32_t off = furthest_channel(card.pixels[i], raster.pixels[i]);
    different += off > 0;
    far += off > 8;
  }
  const auto pixels = static_cast<double>(card.pixels.size());
  EXPECT_LE(static_cast<double>(different) / pixels, 0.10);
  EXPECT_LE(static_cast<double>(far) / pixels, 0.002);

  window.click(seen, "step.next");
  seen = window.wait_until([](const json& now) { return now["place"] == 1; });
  ASSERT_FALSE(seen.is_null()) << "a click on step.next moves the playhead";
  window.press("End");
  seen = window.wait_until([](const json& now) { return now["place"] == 7; });
  ASSERT_FALSE(seen.is_null()) << "the key End moves the playhead to the last of 8 steps";
  window.click(seen, "edit/parallel.cp_size/double");
  seen = window.wait_until([](const json& now) { return now["hits"].contains("layout/rank/7"); });
  ASSERT_FALSE(seen.is_null()) << "an edit replans";
  window.press("ctrl+q");
  seen = window.wait_until([](const json& now) { return now["hits"].contains("unsaved/discard"); });
  ASSERT_FALSE(seen.is_null()) << "Ctrl+Q asks about the edit, however quickly it is pressed";
  window.click(seen, "unsaved/discard");
  EXPECT_EQ(window.wait_for_end(), 0);
}

TEST(Window, FillsTheScreenAndRemembersItsSizeAndTheme) {
  for (const char* tool : {"Xvfb", "xdotool"})
    if (!has_program(tool)) GTEST_SKIP() << "requires display: " << tool << " is missing";
  const std::string file = write_file("remember.toml", small_scenario());
  const std::filesystem::path folder = work_folder() / "state" / "cpscope";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "window") << "size 1000 700\ntheme light\n";
  OpenWindow window(file, {});
  if (window.display().name().empty()) GTEST_SKIP() << "requires display: Xvfb does not start";
  json seen = window.wait_until([](const json&) { return true; });
  if (seen.is_null()) {
    ASSERT_EQ(window.wait_for_end(), 3);
    GTEST_SKIP() << "requires display: this build has no window, or no OpenGL is here";
  }
  window.focus();
  EXPECT_EQ(window.picture("card.png").width, 1000);
  EXPECT_EQ(window.picture("card.png").height, 700);
  const auto has_width = [&](int32_t width) {
    return window.wait_until(
        [&](const json&) { return window.picture("card.png").width == width; });
  };
  window.press("F11");
  EXPECT_FALSE(has_width(1400).is_null()) << "F11 fills the screen";
  // A frame carries out one shortcut: each gets frames of its own, and the keyboard, which a window
  // without a window manager may lose when it changes.
  const auto press_alone = [&](const std::string& key) {
    window.focus();
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    window.press(key);
  };
  press_alone("F11");
  EXPECT_FALSE(has_width(1000).is_null()) << "F11 makes it a window again";
  press_alone("ctrl+t");
  press_alone("ctrl+q");
  EXPECT_EQ(window.wait_for_end(), 0);
  std::ifstream written(folder / "window");
  const std::string text{std::istreambuf_iterator<char>(written), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text, "size 1000 700\ntheme print\nborders 0 0.56 0.4 0.71 0.46 0.74\n");
}

}  // namespace
}  // namespace cpscope::tests
