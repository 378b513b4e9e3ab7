// What the program prints of layouts, plans and comparisons for readers.
#include "tests/program/program_run.h"

#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

TEST(LayoutText, CountsPaddingAndNamesTheWholeMask) {
  const ProgramRun run = run_cpscope(
      "layout " + write_file("layout_text.toml",
                             small_scenario("cp_size = 2", "lengths = [7, 4]\nkv_lengths = [8, 4]",
                                            "attn_mask_type = \"padding\"\nwindow_size = [5, 0]")));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("2 ranks, layout dual_chunk, mask padding, window [5, 0]\n"),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("rank 0: q [0, 2) [6, 9) [11, 12), 1 of 6 is padding; kv [0, 2) "),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("rank 1: q [2, 6) [9, 11); kv"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find(" padding\n"), std::string::npos) << "all keys are valid\n" << run.out;
}

TEST(PlanText, NamesWindowAndChunkInItsHeader) {
  const auto header_of = [](const std::string& attention) {
    const std::string file =
        write_file("mask.toml", small_scenario("cp_size = 2", "lengths = [8]", attention));
    const ProgramRun run = run_cpscope("plan " + file + " --text --lines 2");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out.substr(0, run.out.find('\n'));
  };
  EXPECT_NE(header_of("").find("layout dual_chunk, mask causal, thd; plan "), std::string::npos);
  EXPECT_NE(header_of("window_size = [5, 0]\nchunk_size = 4")
                .find("layout dual_chunk, mask causal, window [5, 0], chunk 4, thd; plan "),
            std::string::npos);
}

TEST(CompareText, SaysWhatIsUnneeded) {
  // Every chunk of 8 lies on one rank: no rank needs keys of another one.
  const std::string file = write_file(
      "unneeded.toml",
      small_scenario("cp_size = 2", "lengths = [32]", "chunk_size = 8", "dtype = \"bf16\""));
  const std::string command = "compare " + file + " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml";
  const json comparison = json::parse(run_cpscope(command + " --json").out);
  std::set<std::string> seen;
  for (const json& candidate : comparison["candidates"]) {
    if (candidate["status"] == "refused") continue;
    const json& kv = candidate["kv_bytes"];
    if (kv["necessary"] > 0) {
      EXPECT_EQ(kv["moved_over_necessary"].get<double>(),
                kv["moved"].get<double>() / kv["necessary"].get<double>());
      EXPECT_FALSE(kv.contains("reason"));
    } else {
      EXPECT_TRUE(kv["moved_over_necessary"].is_null());
      seen.insert(kv["reason"].get<std::string>());
      EXPECT_EQ(kv["reason"].get<std::string>().find("unneeded") != std::string::npos,
                kv["moved"] > 0)
          << kv;
    }
  }
  EXPECT_EQ(seen.size(), 2U);
  const std::string text = run_cpscope(command + " --full").out;
  for (const std::string line : {" p2p, dual_chunk ", "group_cast, dual_chunk "}) {
    const size_t begin = text.find(line);
    ASSERT_NE(begin, std::string::npos) << text;
    const std::string row = text.substr(begin, text.find('\n', begin) - begin);
    EXPECT_EQ(row.find("1.00     1.000"), std::string::npos) << row;
    EXPECT_NE(row.find(line[0] == ' ' ? "unneeded" : "   -  "), std::string::npos) << row;
  }
}

}  // namespace
}  // namespace cpscope::tests
