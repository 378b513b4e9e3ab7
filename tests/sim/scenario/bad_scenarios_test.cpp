#include "sim/plan/planner/planner.h"
#include "sim/scenario/key_place.h"
#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
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

struct RefusedPlace {
  const char* file;
  const char* line;  // | marks the place
};

constexpr RefusedPlace kRefusedPlaces[] = {
    {"a2a_fewer_heads_than_ranks", "heads = |6"},
    {"chunks_too_many", "chunk_size = |1"},
    {"contiguous_tokens_misfit", "lengths = |[1000, 137]"},
    {"dual_chunk_kv_length_misfits", "kv_lengths = [|1001, 136]"},
    {"dual_chunk_length_misfits", "lengths = [1000, |137]"},
    {"dual_chunk_packed_tokens_misfit", "lengths = |[1000, 140]"},
    {"hierarchical_fewer_heads_than_ranks", "heads = |3"},
    {"indices_too_many", "indices_file = |\"indices_too_many.json\""},
    {"lpt_chunks_too_many", "dispatch_chunk = |1"},
    {"lpt_fewer_chunks_than_ranks", "|[parallel]"},
    {"p2p_plan_too_large", "cp_size = |65536"},
    {"padded_batch_too_large", "lengths = |[2147483647]"},
    {"slots_too_large", "lengths = [|2147483647]"},
    {"striped_tokens_misfit", "lengths = |[1000, 140]"},
};

/// The line of a "path:line:column" in the text, with | at the column.
std::string mark_place(const std::string& text, const std::string& where) {
  const size_t colon = where.rfind(':'), before = where.rfind(':', colon - 1);
  std::istringstream lines(text);
  std::string line;
  for (int64_t i = std::stoll(where.substr(before + 1)); i > 0; --i) std::getline(lines, line);
  const size_t column = std::stoul(where.substr(colon + 1)) - 1;
  return column <= line.size() ? line.insert(column, "|") : line;
}

TEST(BadScenarios, RefusedByThePlannerSayWhereTheKeyAtFaultStands) {
  const std::filesystem::path folder =
      std::filesystem::path(CPSCOPE_SOURCE_DIR) / "scenarios" / "bad";
  for (const auto& [file, line] : kRefusedPlaces) {
    const std::filesystem::path path = folder / (std::string(file) + ".toml");
    const std::string first = read_first_line(path);
    ASSERT_TRUE(first.starts_with(kRefused)) << path;
    const Result<LoadedScenario> loaded = load_scenario(path.string());
    ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
    const Result<Plan> plan = make_plan(loaded.value().scenario);
    ASSERT_FALSE(plan.ok()) << path << " is planned";
    const Error error = locate_keys(plan.error(), loaded.value().text, path.string());
    EXPECT_EQ(error.kind, ErrorKind::refused);
    ASSERT_EQ(error.complaints.size(), 1u);
    const Complaint& complaint = error.complaints.front();
    expect_contains(complaint.what, first.substr(kRefused.size()));
    ASSERT_TRUE(is_place(complaint.where)) << path << ": " << complaint.where;
    EXPECT_EQ(mark_place(loaded.value().text, complaint.where), line) << path;
    EXPECT_FALSE(complaint.hint.empty());
  }
}

TEST(BadScenarios, RefusedByThePlannerAreAllLookedAt) {
  size_t refused = 0;
  for (const std::filesystem::path& path : list_bad_scenarios())
    refused += read_first_line(path).starts_with(kRefused) ? 1 : 0;
  EXPECT_EQ(refused, std::size(kRefusedPlaces));
}

TEST(BadScenarios, SayInTheirFirstLineWhatIsExpected) {
  for (const std::filesystem::path& path : list_bad_scenarios()) {
    const std::string line = read_first_line(path);
    EXPECT_TRUE(line.starts_with(kExpect) || line.starts_with(kRefused)) << path << ": " << line;
  }
}

}  // namespace
}  // namespace cpscope
