// The pictures that README shows are what the program draws. CPSCOPE_BLESS=1 draws them anew: look
// at them before they are committed.
#include "gui/app/app_state.h"
#include "gui/draw/png_file.h"
#include "sim/scenario/scenario_file.h"
#include "tests/program/program_run.h"
#include "tests/support/animation_reader.h"
#include "tests/support/golden_image.h"

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

void expect_readme_picture(const std::string& arguments, const std::string& name) {
  const std::string shown = std::string(CPSCOPE_SOURCE_DIR) + "/gui/pictures/" + name;
  const bool is_blessed = std::getenv("CPSCOPE_BLESS") != nullptr;
  const std::string drawn = is_blessed ? shown : (work_folder() / name).string();
  const ProgramRun run = run_cpscope(arguments + " '" + drawn + "'");
  if (run.exit_code == 3) GTEST_SKIP() << "requires imgui: this build cannot write PNG";
  ASSERT_EQ(run.exit_code, 0) << run.err;
  if (run.err.find("not installed") != std::string::npos)
    GTEST_SKIP() << "requires fonts: " << run.err;
  const Result<gui::PngFile> expected = gui::read_png(shown), seen = gui::read_png(drawn);
  ASSERT_TRUE(expected.ok()) << to_text(expected.error());
  ASSERT_TRUE(seen.ok()) << to_text(seen.error());
  EXPECT_TRUE(is_same_picture(expected.value().image, seen.value().image))
      << shown << " is not what the program draws now: " << drawn
      << "; CPSCOPE_BLESS=1 replaces it";
}

const std::string kScenario = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/thd_padding_p2p.toml";

TEST(ReadmePictures, PosterIsWhatRenderDraws) {
  expect_readme_picture("render " + kScenario + " --view all --theme light --out", "poster.png");
}

TEST(ReadmePictures, RingIsWhatRenderAnimates) {
  expect_readme_picture("render " CPSCOPE_SOURCE_DIR
                        "/scenarios/zigzag.toml --view mask,traffic "
                        "--animate --size 1000x640 --out",
                        "ring.png");
  const std::string path = std::string(CPSCOPE_SOURCE_DIR) + "/gui/pictures/ring.png";
  EXPECT_LT(std::filesystem::file_size(path), 600'000U) << "everybody loads it with the README";
  EXPECT_EQ(play_animation(read_text(path)).size(), 64U);
}

TEST(ReadmePictures, WindowIsWhatGuiShows) {
  expect_readme_picture("gui " + kScenario + " --run cpu --step 1 --screenshot", "window.png");
}

TEST(ReadmePictures, WaysAreWhatGuiShowsOfThem) {
  gui::AppState state;
  // By a name that is the same wherever the picture is drawn.
  const Result<LoadedScenario> loaded = load_scenario(kScenario);
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(open_text(state, loaded.value().text, "thd_padding_p2p.toml"));
  settle(state);
  state.shows_ways = true;
  const std::string saved = write_file("ways.json", save_state(state));
  const std::string cluster = CPSCOPE_CLUSTERS "/h200x8.toml";
  expect_readme_picture("gui --state " + saved + " --cluster " + cluster + " --screenshot",
                        "ways.png");
}

}  // namespace
}  // namespace cpscope::tests
