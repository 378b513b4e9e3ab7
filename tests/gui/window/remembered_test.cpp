#include "gui/window/remembered.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(RememberedWindow, IsWrittenAndReadAgain) {
  const std::string path = testing::TempDir() + "/remembered/deep/window";
  std::filesystem::remove_all(testing::TempDir() + "/remembered");
  EXPECT_FALSE(gui::read_remembered(path).has_value()) << "there is none";
  const gui::Borders room = gui::borders_around(gui::ViewKind::timeline);
  ASSERT_TRUE(gui::write_remembered(path, {{1280, 801}, gui::ThemeName::print, room}));
  const auto read = gui::read_remembered(path);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->size.width, 1280);
  EXPECT_EQ(read->size.height, 801);
  EXPECT_EQ(read->theme, gui::ThemeName::print);
  EXPECT_EQ(read->borders, room) << "the timeline has most of the room again";
}

TEST(RememberedWindow, IsReadFromAFileWithoutBorders) {
  const std::string path = testing::TempDir() + "/window_without_borders";
  std::ofstream(path) << "size 1280 800\ntheme light\n";
  const auto read = gui::read_remembered(path);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->borders, gui::Borders{});
}

TEST(RememberedWindow, IsForgottenWhenTheFileIsDamaged) {
  const std::string path = testing::TempDir() + "/damaged_window";
  for (const char* text :
       {"", "size", "size 1280 800", "size 1280 800\ntheme pink\n", "size 1 1\ntheme dark\n",
        "size nan 800\ntheme dark\n", "size 1e9 800\ntheme dark\n",
        "size 1280 800\ntheme dark\nborders 0 0.5 0.9\n",
        "size 1280 800\ntheme dark\nborders 0 0.5 0.9 0.2 0.3 0.6\n",
        "size 1280 800\ntheme dark\nborders 0 nan 0.4 0.7 0.3 0.6\n", "\xff\xfe"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(gui::read_remembered(path).has_value()) << text;
  }
  EXPECT_FALSE(gui::write_remembered("", {}));
  EXPECT_FALSE(gui::write_remembered("/proc/none/window", {}));
}

}  // namespace
}  // namespace cpscope::tests
