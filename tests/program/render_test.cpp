#include "tests/program/program_run.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

constexpr const char* kViews[] = {"layout",  "mask",    "traffic", "timeline",
                                  "numbers", "balance", "all"};

std::string read_bytes(const std::string& name) {
  std::ifstream file(work_folder() / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// PNG needs a library that a build may lack; then the program says so with code 3.
bool has_png() {
  static const bool kHasPng = run_cpscope("render " + write_file("has_png.toml", small_scenario()) +
                                          " --view layout --out has_png.png")
                                  .exit_code != 3;
  return kHasPng;
}

TEST(RenderCommand, DrawsEveryViewInEveryThemeTheSameTwice) {
  if (!has_png()) GTEST_SKIP() << "requires imgui: this build cannot write PNG";
  const std::string file = write_file("views.toml", small_scenario());
  for (const std::string view : kViews) {
    for (const std::string theme : {"dark", "light", "print"}) {
      const std::string command =
          "render " + file + " --view " + view + " --size 720x560 --theme " + theme;
      const ProgramRun run = run_cpscope(command + " --out one.png");
      ASSERT_EQ(run.exit_code, 0) << command << '\n' << run.err;
      ASSERT_EQ(run_cpscope(command + " --out two.png").exit_code, 0);
      const std::string one = read_bytes("one.png");
      EXPECT_EQ(one.substr(1, 3), "PNG") << command;
      EXPECT_NE(one.find("IEND"), std::string::npos) << command;
      EXPECT_EQ(one, read_bytes("two.png")) << command;
    }
  }
}

TEST(RenderCommand, PrintsALessonOnOnePage) {
  const ProgramRun run = run_cpscope("render --lesson 3 --out lesson.svg --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto said = nlohmann::json::parse(run.out);
  EXPECT_EQ(said["lesson"], 3);
  EXPECT_LT(said["width"], said["height"]) << "upright";
  const std::string page = read_bytes("lesson.svg");
  for (const char* words :
       {"3. Zigzag: two chunks a rank", "3 - Question", "Predict:", "Hint:", "Answer:", "[0, 32)"})
    EXPECT_NE(page.find(words), std::string::npos) << words;
  ASSERT_EQ(run_cpscope("render --lesson 3 --answers --out answers.svg").exit_code, 0);
  const std::string answers = read_bytes("answers.svg");
  EXPECT_NE(answers.find("Right:"), std::string::npos);
  EXPECT_EQ(answers.find("Hint:"), std::string::npos);
}

TEST(RenderCommand, RefusesAHandoutThatItCannotPrint) {
  for (const auto& [arguments, words] :
       std::vector<std::pair<std::string, std::string>>{{"--lesson 99", "there is no lesson 99"},
                                                        {"--lesson 24", "has room for 6 pages"},
                                                        {"--lesson 3 --view mask", "excludes"},
                                                        {"--answers", "requires"},
                                                        {"", "FILE is required"},
                                                        {"x.toml", "--view is required"}}) {
    const ProgramRun run = run_cpscope("render --out page.svg " + arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_NE(run.err.find(words), std::string::npos) << arguments << ": " << run.err;
  }
}

TEST(RenderCommand, WritesSvgThatAnyXmlParserReads) {
  const std::string file = write_file("svg.toml", small_scenario());
  std::string names;
  for (const std::string view : kViews) {
    for (const std::string theme : {"dark", "light", "print"}) {
      const std::string command =
          "render " + file + " --view " + view + " --size 720x560 --theme " + theme;
      const std::string name = view + "." + theme + ".svg";
      ASSERT_EQ(run_cpscope(command + " --out " + name).exit_code, 0) << command;
      ASSERT_EQ(run_cpscope(command + " --out two.svg").exit_code, 0);
      EXPECT_EQ(read_bytes(name), read_bytes("two.svg")) << command;
      names += " " + name;
    }
  }
  if (std::system(CPSCOPE_PYTHON " -c 'import xml.dom.minidom'") != 0)
    GTEST_SKIP() << "requires python3: its XML parser is missing";
  const std::string script =
      "import sys, xml.dom.minidom as m; "
      "[m.parse(f).getElementsByTagName(\"rect\")[0] for f in sys.argv[1:]]";
  const std::string command =
      "cd '" + work_folder().string() + "' && " + CPSCOPE_PYTHON + " -c '" + script + "'" + names;
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(RenderCommand, TellsThePngWhatItShows) {
  if (!has_png()) GTEST_SKIP() << "requires imgui: this build cannot write PNG";
  const std::string file = write_file("told.toml", small_scenario());
  ASSERT_EQ(
      run_cpscope("render " + file + " --view mask --step 2 --rank 3 --out told.png").exit_code, 0);
  const std::string bytes = read_bytes("told.png");
  for (const char* word : {"scenario_hash", "plan_hash",
                           "cpscope render told.toml --view mask "
                           "--step 2 --rank 3"})
    EXPECT_NE(bytes.find(word), std::string::npos) << word;
}

TEST(RenderCommand, SaysWhatItWroteAsOneDocument) {
  if (!has_png()) GTEST_SKIP() << "requires imgui: this build cannot write PNG";
  const std::string file = write_file("json.toml", small_scenario());
  const ProgramRun run =
      run_cpscope("render " + file + " --view layout --size 640x480 --scale 2 --out j.png --json");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json document = nlohmann::json::parse(run.out);
  EXPECT_EQ(document["width"], 1280);
  EXPECT_EQ(document["height"], 960);
  EXPECT_EQ(document["out"], "j.png");
  EXPECT_EQ(document["bytes"], std::filesystem::file_size(work_folder() / "j.png"));
}

TEST(RenderCommand, AnimatesTheStepsOfAPass) {
  if (!has_png()) GTEST_SKIP() << "requires imgui: this build cannot write PNG";
  const std::string file = write_file("moving.toml", small_scenario("cp_size = 4"));
  const std::string command = "render " + file +
                              " --view mask,traffic --size 1000x640 --animate "
                              "--frames-per-step 3 --json --out ";
  const ProgramRun run = run_cpscope(command + "one.png");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json document = nlohmann::json::parse(run.out);
  EXPECT_EQ(document["frames"], 12);
  EXPECT_EQ(document["duration_ms"], 4 * 2 * 400 + 3 * 5 * 400 + 20 * 400);
  ASSERT_EQ(run_cpscope(command + "two.png").exit_code, 0);
  const std::string bytes = read_bytes("one.png");
  EXPECT_EQ(bytes, read_bytes("two.png"));
  EXPECT_EQ(std::string(bytes, bytes.find("acTL") + 4, 4), std::string("\0\0\0\x0c", 4));
  EXPECT_NE(bytes.find("render moving.toml --view mask,traffic --animate --pass forward "
                       "--frames-per-step 3 --step-seconds 1.2 --rank 0"),
            std::string::npos);
}

TEST(RenderCommand, RejectsAnimationsThatItCannotMakeByName) {
  const std::string file =
      write_file("still.toml", small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "",
                                              "dtype = \"fp64\"\nbackward = false"));
  const struct {
    std::string options;
    const char* words;
  } cases[] = {
      {"--view mask --out x.svg --animate", "--animate writes animated PNG: x.svg"},
      {"--view mask --out x.png --animate --step 1", "--step"},
      {"--view mask --out x.png --animate --frames-per-step 65", "--frames-per-step"},
      {"--view mask --out x.png --animate --step-seconds 0", "--step-seconds"},
      {"--view mask --out x.png --animate --pass sideways", "--pass"},
      {"--view mask --out x.png --frames-per-step 3", "--animate"},
      {"--view mask --out x.png --animate --pass backward", "no backward pass"},
      {"--view mask,mask --out x.png", "--view: this view is named twice: mask"},
      {"--view mask,sound --out x.png", "--view: no view has this name: sound"},
      {"--view mask, --out x.png", "--view: no view has this name"},
  };
  for (const auto& one : cases) {
    const ProgramRun run = run_cpscope("render " + file + " " + one.options);
    EXPECT_EQ(run.exit_code, 2) << one.options;
    EXPECT_NE(run.err.find(one.words), std::string::npos) << one.options << '\n' << run.err;
  }
}

TEST(RenderCommand, ShowsWhatAStepWroteAndOfWhichTensor) {
  const std::string file = write_file("per_step.toml", small_scenario("cp_size = 4"));
  const struct {
    std::string options;
    const char* words;
  } cases[] = {
      {"--per-step --step 2", "out as its computes write it in forward step 3 of 4"},
      {"--per-step --step 5", "dq as its computes write it in backward step 2 of 4"},
      {"--per-step --step 5 --tensor dv", "dv as its computes write it in backward step 2 of 4"},
      {"--per-step --step 1 --tensor dk", "dk is written in backward steps"},
      {"--tensor lse", "lse: error "},
  };
  for (const auto& one : cases) {
    const ProgramRun run =
        run_cpscope("render " + file + " --view numbers --out step.svg " + one.options);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NE(read_bytes("step.svg").find(one.words), std::string::npos) << one.options;
  }
  EXPECT_EQ(run_cpscope("render " + file + " --view numbers --out step.svg --tensor dz").exit_code,
            2);
}

TEST(RenderCommand, DrawsPredictedTimesAndSaysThatTheyAre) {
  const std::string file = write_file(
      "bf16.toml", small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\""));
  const std::string cluster = " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml";
  const ProgramRun run = run_cpscope("render " + file + " --view timeline --out t.svg" + cluster);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string picture = read_bytes("t.svg");
  for (const char* words : {"predicted, not measured", "predicted:", "Times are predicted for "})
    EXPECT_NE(picture.find(words), std::string::npos) << words;
  // Another view has no times to show.
  ASSERT_EQ(run_cpscope("render " + file + " --view mask --out with.svg" + cluster).exit_code, 0);
  ASSERT_EQ(run_cpscope("render " + file + " --view mask --out without.svg").exit_code, 0);
  EXPECT_EQ(read_bytes("with.svg"), read_bytes("without.svg"));
}

TEST(RenderCommand, AnswersMistakesInOneSentence) {
  const std::string file = write_file("small.toml", small_scenario());
  const std::string clusters = CPSCOPE_CLUSTERS "/";
  const struct {
    std::string arguments;
    int exit_code;
    std::string words;
  } cases[] = {
      {"render " + file + " --view layout --out a.gif", 2, "end it in .png or .svg"},
      {"render " + file + " --view sideways --out a.svg", 2, "sideways"},
      {"render " + file + " --view layout", 2, "--out"},
      {"render " + file + " --view layout --out nowhere/a.svg", 2, "nowhere"},
      {"render " + file + " --view layout --out a.svg --step 8", 2,
       "use 0 to 7: 0 to 3 forward, 4 to 7 backward"},
      {"render " + file + " --view layout --out a.svg --step -1", 2, "--step"},
      {"render " + file + " --view layout --out a.svg --rank 4", 2, "use 0 to 3"},
      {"render " + file + " --view layout --out a.svg --select 'rank 9'", 2, "--select"},
      {"render " + file + " --view numbers --out a.svg --run abacus", 2, "abacus"},
      {"render " + file + " --view numbers --out a.svg --run cuda", 3, "cuda"},
      {"render " + file + " --view layout --out a.svg --theme neon", 2, "neon"},
      {"render " + file + " --view layout --out a.svg --size big", 2, "1280x860"},
      {"render " + file + " --view layout --out a.svg --size 10x10", 2, "too small"},
      {"render " + file + " --view layout --out a.svg --scale 0", 2, "--scale"},
      {"render " + file + " --view layout --out a.svg --size 90000x90000", 2, "64 Mi pixels"},
      {"render " + file + " --view timeline --out a.svg --cluster " + clusters + "h100.toml", 2,
       "h100.toml"},
      {"render " + file + " --view timeline --out a.svg --cluster " + clusters + "h200x8.toml", 3,
       "no kernel times for fp64"},
      {"render " + file + " --view timeline --out a.svg --stack cpscope", 2, "--cluster"},
      {"render missing.toml --view layout --out a.svg", 2, "missing.toml"},
  };
  for (const auto& one : cases) {
    const ProgramRun run = run_cpscope(one.arguments);
    EXPECT_EQ(run.exit_code, one.exit_code) << one.arguments << '\n' << run.err;
    EXPECT_NE(run.err.find(one.words), std::string::npos) << one.arguments << '\n' << run.err;
    EXPECT_TRUE(run.out.empty()) << one.arguments;
    EXPECT_FALSE(std::filesystem::exists(work_folder() / "a.svg")) << one.arguments;
  }
}

TEST(RenderCommand, NamesTheKeyOfARefusedScenario) {
  const std::string file =
      write_file("refused.toml", small_scenario("cp_size = 5\ncp_comm_type = \"a2a\""));
  const ProgramRun run = run_cpscope("render " + file + " --view layout --out refused.svg");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find(file + ":3:9: a2a requires heads >= cp_size"), std::string::npos)
      << run.err;
}

}  // namespace
}  // namespace cpscope::tests
