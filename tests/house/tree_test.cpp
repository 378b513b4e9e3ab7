#include "tests/house/name_rules.h"
#include "tests/house/tree_rules.h"
#include "tests/house/word_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::house {
namespace {

using Findings = std::vector<std::string>;

/// The project's own tree, read once for the whole program.
const std::vector<SourceFile>& project_tree() {
  static const std::vector<SourceFile> kTree = load_tree(CPSCOPE_SOURCE_DIR);
  return kTree;
}

void expect_none(const Findings& findings) {
  for (const std::string& finding : findings) ADD_FAILURE() << finding;
}

SourceFile file_with(std::string path, std::vector<std::string> lines) {
  return {.path = std::move(path), .lines = std::move(lines)};
}

TEST(Tree, IsTheWholeProject) {
  const auto holds = [](const std::string& path) {
    return std::any_of(project_tree().begin(), project_tree().end(),
                       [&](const SourceFile& file) { return file.path == path; });
  };
  EXPECT_TRUE(holds("CMakeLists.txt"));
  EXPECT_TRUE(holds("sim/run/dtype.h"));
  EXPECT_TRUE(holds("tests/house/tree_test.cpp"));
}

TEST(Tree, IncludesInOneDirection) { expect_none(find_wrong_directions(project_tree())); }

TEST(Tree, HasAPlaceForEveryFolder) { expect_none(find_homeless_files(project_tree())); }

TEST(Tree, NamesTheRoomOfEveryInclude) { expect_none(find_unknown_includes(project_tree())); }

TEST(Tree, KeepsThirdPartyTypesOutOfSimHeaders) {
  expect_none(find_foreign_headers(project_tree()));
}

TEST(Tree, NamesNoPlaceOnOneMachine) { expect_none(find_absolute_paths(project_tree())); }

TEST(Tree, HasNoFileTooLongToRead) { expect_none(find_long_files(project_tree(), 600)); }

TEST(Tree, GuardsEveryHeader) { expect_none(find_unguarded_headers(project_tree())); }

TEST(Tree, RangesOverNothingThatMayBeGone) { expect_none(find_lost_ranges(project_tree())); }

TEST(Tree, GivesEveryTypeANameOfItsOwn) { expect_none(find_twin_types(project_tree())); }

TEST(Tree, SpeaksTheFieldsWords) { expect_none(find_banned_words(project_tree())); }

TEST(Tree, KeepsNoNameTwiceInOneFolder) { expect_none(find_shared_names(project_tree())); }

TEST(Tree, HasEvidenceOfItsKernelsFromAGpu) {
  if (const std::string stale = find_stale_evidence(project_tree()); !stale.empty())
    GTEST_SKIP() << stale;
}

// The rules themselves, on trees that break them.

TEST(TreeRules, FindEvidenceThatIsStale) {
  std::vector<SourceFile> files = {file_with("kernels/a.cu", {"void run();"}),
                                   file_with("kernels/emulator/b.h", {"int x;"})};
  EXPECT_NE(find_stale_evidence(files), "");
  const std::string hash = hash_kernels(files);
  EXPECT_EQ(hash.size(), 16u);
  const auto evidence = [](const std::string& of) {
    return std::vector<std::string>{" \"kernels_hash\": \"" + of + "\","};
  };
  files.push_back(file_with("tests/gpu/evidence/1.json", evidence("0123456789abcdef")));
  EXPECT_NE(find_stale_evidence(files), "");
  files.push_back(file_with("tests/gpu/evidence/2.json", evidence(hash)));
  EXPECT_EQ(find_stale_evidence(files), "");
  // Names of one day sort by machine, not by time.
  files.push_back(file_with("tests/gpu/evidence/3.json", evidence("0123456789abcdef")));
  EXPECT_EQ(find_stale_evidence(files), "");
  files[1].lines.push_back("int y;");
  EXPECT_EQ(find_stale_evidence(files), "");
  files[0].lines.push_back("");
  EXPECT_NE(find_stale_evidence(files), "");
}

TEST(TreeRules, FindLoopsOverWhatMayBeGone) {
  const std::vector<SourceFile> files = {
      file_with("sim/a.cpp", {"  for (const Rank& rank : predict(plan).value().ranks) {",
                              "  for (const json& row : json::parse(text)[\"rows\"]) {",
                              "    for (const Slot& slot : of.plan().plan().layout.slots)",
                              "  for (const Run& run : layout.runs(side)[rank]) {",
                              "  for (const Note& note : join(plan).notes.computes)",
                              "  for (size_t i = 0; i < a(b).c().size(); ++i) {",
                              "  for (const json& row : table[\"rows\"]) {"})};
  const Findings findings = find_lost_ranges(files);
  ASSERT_EQ(findings.size(), 3U);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(findings[i].substr(0, 12), "sim/a.cpp:" + std::to_string(i + 1) + ":");
}

TEST(TreeRules, FindTypesOfOneName) {
  const std::vector<SourceFile> files = {
      file_with("sim/a/a.h", {"namespace cpscope {", "struct Stretch {", "struct Other;"}),
      file_with("sim/b/b.h", {"namespace cpscope {", "class Stretch {", "struct Other {"}),
      file_with("gui/c.h", {"namespace cpscope::gui {", "struct Stretch {"}),
      file_with("sim/b/b.cpp", {"namespace cpscope {", "struct Other {"})};
  const Findings findings = find_twin_types(files);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0], "sim/b/b.h:2: cpscope::Stretch is defined in sim/a/a.h:2 too");
}

TEST(TreeRules, KnowWhoMayIncludeWhom) {
  const struct {
    const char *from, *to;
    bool is_allowed;
  } cases[] = {{"sim/run/a.cpp", "sim/base/b.h", true},
               {"sim/run/a.cpp", "reference/b.h", false},
               {"sim/run/a.cpp", "kernels/b.h", false},
               {"sim/app/commands.cpp", "gui/b.h", false},
               {"sim/app/main.cpp", "gui/b.h", true},
               {"sim/app/main.cpp", "tests/b.h", false},
               {"sim/app/page_main.cpp", "gui/b.h", true},
               {"reference/python/pictures.cpp", "gui/b.h", true},
               {"reference/python/runs.cpp", "gui/b.h", false},
               {"reference/a.cpp", "sim/b.h", true},
               {"reference/a.cpp", "kernels/b.h", false},
               {"kernels/a.cu", "reference/b.h", false},
               {"kernels/a.cuh", "gui/b.h", false},
               {"gui/a.cpp", "kernels/b.h", false},
               {"gui/a.h", "tests/b.h", false},
               {"gui/a.h", "sim/findings/b.h", true},
               {"gui/a.h", "sim/app/cli/b.h", false},
               {"tests/sim/a.cpp", "kernels/b.h", true},
               {"sim/plan/a.h", "sim/run/b.h", false},
               {"sim/run/a.cpp", "sim/plan/b.h", true},
               {"kernels/lower/a.cpp", "kernels/run/b.h", false},
               {"kernels/run/a.cpp", "kernels/lower/b.h", true},
               {"kernels/device/a.h", "kernels/emulator/b.h", true},
               {"kernels/rows/a.h", "kernels/emulator/b.h", false},
               {"gui/model/a.h", "gui/model/mask/b.h", false},
               {"gui/model/mask/a.h", "gui/model/b.h", true},
               {"gui/app/a.h", "gui/panel/b.h", false}};
  for (const auto& one : cases) {
    for (const std::string quotes : {"\"\"", "<>"}) {
      const std::string line =
          "  # include " + quotes.substr(0, 1) + one.to + quotes[1] + " // why";
      EXPECT_EQ(find_wrong_directions({file_with(one.from, {line})}).empty(), one.is_allowed)
          << one.from << " " << line;
    }
  }
}

TEST(TreeRules, FindIncludesWithoutARoomOrWithoutAFile) {
  const std::vector<SourceFile> files = {
      file_with("sim/a.h", {}),
      file_with("sim/a.cpp", {"#include \"sim/a.h\"", "#include \"a.h\"", "#include \"sim/b.h\"",
                              "#include <vector>"})};
  EXPECT_EQ(find_unknown_includes(files), (Findings{"sim/a.cpp:2: the room is missing in a.h",
                                                    "sim/a.cpp:3: no such file: sim/b.h"}));
}

TEST(TreeRules, FindForeignHeadersInSimHeadersOnly) {
  for (const std::string target :
       {"Eigen/Dense", "cuda_runtime.h", "nccl.h", "imgui.h", "GLFW/glfw3.h"}) {
    const std::vector<std::string> lines = {"#pragma once", "#include <" + target + ">"};
    EXPECT_EQ(find_foreign_headers({file_with("sim/a.h", lines)}).size(), 1u) << target;
    EXPECT_TRUE(find_foreign_headers({file_with("sim/a.cpp", lines)}).empty()) << target;
    EXPECT_TRUE(find_foreign_headers({file_with("gui/a.h", lines)}).empty()) << target;
  }
}

TEST(TreeRules, FindPlacesOnOneMachine) {
  // Written in two parts, or this file would break the rule.
  const std::string somebody = std::string("/ho") + "me/somebody/data";
  EXPECT_EQ(find_absolute_paths({file_with("a.md", {"", "see " + somebody})}).size(), 1u);
  EXPECT_EQ(find_absolute_paths({file_with("a.md", {somebody})}).size(), 1u);
  EXPECT_TRUE(find_absolute_paths({file_with("a.md", {"https://example.org" + somebody})}).empty());
  EXPECT_TRUE(find_absolute_paths({file_with("a.cmake", {"${prefix}" + somebody})}).empty());
}

TEST(TreeRules, CountLinesOfCodeOnly) {
  const std::vector<std::string> lines(600, "x");
  EXPECT_EQ(find_long_files({file_with("sim/a.cpp", lines)}, 600).size(), 1u);
  EXPECT_TRUE(find_long_files({file_with("sim/a.cpp", lines)}, 601).empty());
  EXPECT_TRUE(find_long_files({file_with("LICENSE", lines)}, 600).empty());
}

TEST(TreeRules, FindHeadersWithoutAGuard) {
  EXPECT_TRUE(
      find_unguarded_headers({file_with("sim/a.h", {"// what", "", "#pragma once"})}).empty());
  EXPECT_EQ(find_unguarded_headers({file_with("sim/a.h", {"#include <vector>"})}).size(), 1u);
}

TEST(TreeRules, ReadTheNamesThatAFileKeepsToItself) {
  const SourceFile file =
      file_with("sim/a.cpp", {"#define LOUD(x) \\",
                              "  int x;",
                              "namespace cpscope {",
                              "static int counter;",
                              "int seen_by_all(int a);",
                              "namespace {",
                              "constexpr std::array<int, 2> kPair = {1, 2};",
                              "// struct Comment {};",
                              "struct Row { int inner; int member() { return 1; } };",
                              "using Rows = std::vector<Row>;",
                              "template <class T, class U = std::pair<T, T>>",
                              "std::map<T, U> find_all(const T& of, char quote = '\"', const char* "
                              "text = \"int fake() {\") {",
                              "  int local = 0;",
                              "  return {};",
                              "}",
                              "enum class Kind { a, b };",
                              "double rate[3];",
                              "const char* const kRaw = R\"(void raw() { )\";",
                              "int64_t big = 1'000;",
                              "TEST(Suite, Case) {}",
                              "bool operator<(const Row& a, const Row& b);",
                              "}  // namespace",
                              "Row::Row() = default;",
                              "}"});
  std::string names;
  for (const OwnName& own : find_own_names(file)) {
    names += own.name + ":" + std::to_string(own.line) + " ";
  }
  EXPECT_EQ(names,
            "LOUD:1 counter:4 kPair:7 Row:9 Rows:10 find_all:12 Kind:16 rate:17 kRaw:18 big:19 "
            "operator<:21 ");
}

TEST(TreeRules, FindNamesThatTwoFilesOfAFolderKeepToThemselves) {
  const std::vector<std::string> lines = {"namespace {", "int take(int a) { return a; }", "}"};
  EXPECT_EQ(find_shared_names({file_with("sim/a/a.cpp", lines), file_with("sim/a/b.cpp", lines),
                               file_with("sim/b/c.cpp", lines), file_with("sim/a/d.h", lines)}),
            (Findings{"sim/a/b.cpp:2: take is a name of sim/a/a.cpp too, and both may be compiled "
                      "in one batch"}));
}

TEST(WordRules, FindWordsInMessagesAndPages) {
  const std::vector<SourceFile> files = {
      file_with("sim/a.cpp", {"say(\"rank 2 deals heads\");", "say(\"deals\");  // deals heads",
                              "say(\"it \\\"deals\\\" \" + name + \"of kv heads\");"}),
      file_with("tests/a.cpp", {"say(\"rank 2 deals heads\");"}),
      file_with("sim/a.md", {"A page that wants words.", "    a line that wants code", "`wants`",
                             "```", "wants", "```", "unwanted, wants_it"})};
  EXPECT_EQ(
      find_banned_words(files),
      (std::vector<std::string>{
          "sim/a.cpp:1: deals: use assigns, splits", "sim/a.cpp:3: deals: use assigns, splits",
          "sim/a.cpp:3: kv heads: use KV heads", "sim/a.md:1: wants: use needs"}));
}

}  // namespace
}  // namespace cpscope::house
