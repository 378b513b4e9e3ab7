#include "sim/base/whole_file.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cpscope::tests {
namespace {

namespace fs = std::filesystem;

/// A folder for this test only.
fs::path make_folder(const std::string& name) {
  const fs::path folder =
      fs::temp_directory_path() / ("cpscope_whole_file_" + name + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(WholeFile, LeavesNothingBehindWhenASignalEndsTheProcess) {
  const fs::path folder = make_folder("signal");
  const std::string path = (folder / "kept").string();
  ASSERT_TRUE(write_whole_file(path, "before", "the file").ok());
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      // The parent of the test may ignore these signals; here they have their default.
      std::signal(number, SIG_DFL);
      const auto written = write_whole_file(
          path,
          [&](std::ostream& stream) {
            stream << "half" << std::flush;
            std::raise(number);
          },
          "the file");
      _exit(written.ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << "it still ends the process";
    EXPECT_EQ(read(path), "before");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  }
  fs::remove_all(folder);
}

TEST(WholeFile, FollowsALinkToWhatIsNotThereYet) {
  const fs::path folder = make_folder("link");
  fs::create_symlink("later", folder / "middle");
  fs::create_symlink("middle", folder / "link");
  ASSERT_TRUE(write_whole_file((folder / "link").string(), "text", "the file").ok());
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_TRUE(fs::is_symlink(folder / "middle"));
  EXPECT_EQ(read(folder / "later"), "text");
  fs::create_symlink("round", folder / "circle");
  fs::create_symlink("circle", folder / "round");
  const auto refused = write_whole_file((folder / "round").string(), "text", "the file");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(to_text(refused.error()).find("in a circle"), std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cpscope::tests
