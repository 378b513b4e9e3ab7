#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

constexpr std::string_view kExpect = "# expect: ";
constexpr std::string_view kRefused = "# refused: ";

std::string read_first_line(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<std::filesystem::path> list_bad_scenarios() {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder =
      std::filesystem::path(CPSCOPE_SOURCE_DIR) / "scenarios" / "bad";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".toml") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(BadScenarios, FailWithTheirExpectedMessageAndPlace) {
  int64_t checked = 0;
  for (const std::filesystem::path& path : list_bad_scenarios()) {
    const std::string line = read_first_line(path);
    if (!line.starts_with(kExpect)) continue;
    ++checked;
    const Result<LoadedScenario> loaded = load_scenario(path.string());
    ASSERT_FALSE(loaded.ok()) << path << " is accepted";
    const std::string message = to_text(loaded.error());
    EXPECT_NE(message.find(line.substr(kExpect.size())), std::string::npos) << path << " says\n"
                                                                            << message << "\nnot\n"
                                                                            << line;
    for (const Complaint& complaint : loaded.error().complaints) {
      EXPECT_TRUE(is_place(complaint.where)) << path << ": " << complaint.where;
      EXPECT_FALSE(complaint.hint.empty()) << path << ": " << complaint.what;
    }
  }
  EXPECT_GE(checked, 25);
}

TEST(BadScenarios, SayInTheirFirstLineWhatIsExpected) {
  for (const std::filesystem::path& path : list_bad_scenarios()) {
    const std::string line = read_first_line(path);
    EXPECT_TRUE(line.starts_with(kExpect) || line.starts_with(kRefused)) << path << ": " << line;
  }
}

}  // namespace
}  // namespace cpscope
