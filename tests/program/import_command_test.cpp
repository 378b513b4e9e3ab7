// `cpscope import` as its users meet it.
#include "tests/program/program_run.h"
#include "tests/support/archive_bytes.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

TEST(ImportCommand, WritesAnOrderThatAScenarioPlansBy) {
  const ProgramRun made = run_cpscope(
      "import --from usp --layout zigzag --cp-size 4 --ulysses-degree 2 --tokens 32 --out "
      "usp.json");
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_NE(made.out.find("layout = \"indices\"\n  indices_file = \"usp.json\""), std::string::npos)
      << made.out;
  const std::string file = write_file(
      "usp.toml", small_scenario("cp_size = 4\nlayout = \"indices\"\nindices_file = \"usp.json\"",
                                 "lengths = [32]"));
  const json layout = json::parse(run_cpscope("layout " + file + " --json").out);
  EXPECT_EQ(layout["ranks"][1]["q_runs"], (json{{24, 32, 1}}));
  EXPECT_EQ(run_cpscope("run " + file).exit_code, 0);
}

TEST(ImportCommand, ReadsTransformerEnginesListsAndSaysWhatTheyAre) {
  write_file("te.json", R"({"cu_seqlens": [0, 7, 10], "cu_seqlens_padded": [0, 8, 12],
 "indices": [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]})");
  const ProgramRun text = run_cpscope("import --from te te.json");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* words :
       {"te: 2 ranks, 12 tokens, each has one owner",
        "checked: the lists are those of thd_get_partitioned_indices", "lengths = [7, 3]",
        "slots = [8, 4]", "layout = \"dual_chunk\"", "no file was written"})
    EXPECT_NE(text.out.find(words), std::string::npos) << words << "\nis not in\n" << text.out;
  const json document = json::parse(run_cpscope("import --from te te.json --json").out);
  EXPECT_EQ(document["same_layout"], "dual_chunk");
  EXPECT_EQ(document["ranks"][1], (json{2, 3, 4, 5, 9, 10}));
}

TEST(ImportCommand, TakesDocumentsFromPositionsAndNamesWhatItIgnores) {
  write_file("positions.json", R"({"cp_size": 2, "max_seqlen_q": 8,
 "position_ids": [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]]})");
  const ProgramRun text = run_cpscope("import --from te positions.json");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("ignored: max_seqlen_q\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("lengths = [8, 4]"), std::string::npos) << text.out;
  const json document = json::parse(run_cpscope("import --from te positions.json --json").out);
  EXPECT_EQ(document["ignored"], (json{"max_seqlen_q"}));
  EXPECT_EQ(document["slots"], (json{8, 4}));
}

TEST(ImportCommand, ReadsMegatronsPackedSeqParams) {
  write_file("packed.json", R"({"qkv_format": "thd", "cu_seqlens_q": [0, 7, 10],
 "cu_seqlens_kv": [0, 7, 10], "cu_seqlens_q_padded": [[0, 8, 12]], "cu_seqlens_kv_padded": [[0, 8, 12]],
 "max_seqlen_q": 8, "max_seqlen_kv": 8, "local_cp_size": 2, "cp_group": null})");
  const ProgramRun run = run_cpscope("import --from megatron packed.json --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = json::parse(run.out);
  EXPECT_EQ(document["from"], "megatron");
  EXPECT_EQ(document["lengths"], (json{7, 3}));
  EXPECT_EQ(document["slots"], (json{8, 4}));
  EXPECT_EQ(document["ranks"][1], (json{2, 3, 4, 5, 9, 10}));
  // The archive that numpy writes of the same, without the words; a size that cuts sequences off.
  const auto ints = [](const std::string& shape, const std::vector<int32_t>& values) {
    return testing_support::npy_of("'<i4'", shape, testing_support::bytes_of(values));
  };
  write_file("packed.npz",
             testing_support::zip_of({{"cu_seqlens_q.npy", ints("(3,)", {0, 7, 10})},
                                      {"cu_seqlens_q_padded.npy", ints("(1, 3)", {0, 8, 12})},
                                      {"max_seqlen_q.npy", ints("()", {6})}}));
  const ProgramRun low = run_cpscope("import --from megatron packed.npz --cp-size 2");
  EXPECT_EQ(low.exit_code, 1) << low.err;
  EXPECT_NE(low.out.find("differs: max_seqlen_q is below the longest sequence: 6, 7 tokens"),
            std::string::npos)
      << low.out;
}

TEST(ImportCommand, ReadsAStepOfVllmFromAFileOfEachRank) {
  // Two ranks, blocks of 4 slots, interleave 2: requests of 5 cached and 2 new tokens, and of 3
  // new.
  const auto file_of = [](int rank, const std::string& slots) {
    return write_file("step.rank" + std::to_string(rank) + ".json",
                      R"({"query_start_loc": [0, 2, 5], "seq_lens": [7, 3], "block_size": 4,
 "block_table": [[6, 0], [9, 0]], "num_reqs": 2, "slot_mapping": )" +
                          slots + "}");
  };
  const std::string first = file_of(0, "[26, -1, 36, 37, -1]"),
                    last = file_of(1, "[-1, 26, -1, -1, 36]");
  const ProgramRun run = run_cpscope("import --from vllm " + first + " " + last + " --json");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  json document = json::parse(run.out);
  EXPECT_EQ(document["differences"],
            (json{"position 5 of request 0 is in slot 26 of rank 0; its block table and interleave "
                  "2 give slot 27 (1 of 5 new keys)",
                  "rank 0 stores position 4 of request 0 and position 5 of request 0 in slot 26, "
                  "where position 4 of request 0 was in the cache before"}));
  file_of(0, "[27, -1, 36, 37, -1]");
  const ProgramRun right = run_cpscope("import --from vllm " + first + " " + last + " --json");
  EXPECT_EQ(right.exit_code, 0) << right.out << right.err;
  document = json::parse(right.out);
  EXPECT_EQ(document["interleaves"], (json{{2, 2}}));
  EXPECT_EQ(document["ignored"], (json{"num_reqs"}));
  EXPECT_EQ(document["kv_lengths"], (json{7, 3}));
  EXPECT_EQ(document["ranks"], (json{{0, 2, 3}, {1, 4}}));
  EXPECT_EQ(document["kv_ranks"], (json{{0, 1, 4, 5, 7, 8}, {2, 3, 6, 9}}));
  // The lines that it prints make a decoder with these keys on these ranks.
  const ProgramRun lines = run_cpscope("import --from vllm " + first + " " + last + " --out " +
                                       (work_folder() / "vllm_order.json").string());
  ASSERT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_NE(lines.out.find("layout = \"striped\", stripe = 2, kv_slots = [8, 4]"),
            std::string::npos)
      << lines.out;
  const size_t begin = lines.out.find("for a scenario:\n");
  ASSERT_NE(begin, std::string::npos) << lines.out;
  std::string text = lines.out.substr(begin + std::string("for a scenario:\n").size());
  text.insert(text.find("[attention]") + std::string("[attention]").size(),
              "\nheads = 4\nhead_dim = 8");
  const std::string decoder = write_file("decoder.toml", "schema = 1\n" + text);
  for (const std::string command : {"run ", "probe "}) {
    const ProgramRun done = run_cpscope(command + decoder);
    EXPECT_EQ(done.exit_code, 0) << command << done.out << done.err;
  }
  const json layout = json::parse(run_cpscope("layout " + decoder + " --json --full").out);
  EXPECT_EQ(layout["ranks"][1]["kv_index"], (json{2, 3, 6, 9}));
  EXPECT_EQ(layout["ranks"][1]["q_index"], (json{0, 1, 2, 3, 4}));
  const ProgramRun swapped = run_cpscope("import --from vllm " + last + " " + first);
  EXPECT_EQ(swapped.exit_code, 2);
  EXPECT_NE(swapped.err.find("the files are not listed by rank: 0 after 1"), std::string::npos)
      << swapped.err;
}

TEST(ImportCommand, RefusesWithoutLeavingAFile) {
  write_file("lost.json",
             R"({"cu_seqlens_padded": [0, 8], "indices": [[0, 1, 6, 7], [2, 3, 4, 4]]})");
  const ProgramRun run = run_cpscope("import --from te lost.json --out lost_order.json");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err.find("lost.json: the query lists are not a partition of tokens 0 to 7: token 4 "
                         "(sequence 0, position 4) appears twice"),
            0u)
      << run.err;
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "lost_order.json"));
  EXPECT_EQ(run_cpscope("import --from nobody").exit_code, 2);
  EXPECT_EQ(run_cpscope("import --from te nowhere.json").exit_code, 2);
  EXPECT_EQ(run_cpscope("import --from usp --layout basic --cp-size 2 --tokens 8 --out "
                        "no/such/folder.json")
                .exit_code,
            2);
}

TEST(ImportCommand, WritesTheSlicesOfAMaskFile) {
  write_file("topk.json", R"({"keys": [[0], [0, 1], [0, 2], [3, 1]]})");
  const ProgramRun text = run_cpscope("import --mask topk.json");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out,
            "topk.json: 4 queries x 4 keys, 7 visible pairs, 3 slices\n"
            "for a scenario:\n  [attention]\n  attn_mask_type = \"slices\"\n  slices = [\n"
            "    [0, 2, 0, 2, \"causal\"],\n    [2, 4, 0, 2, \"bi_causal\"],\n"
            "    [2, 4, 2, 4, \"bi_causal\"],\n  ]\n");
  const json document = json::parse(run_cpscope("import --mask topk.json --json").out);
  EXPECT_EQ(document["visible_pairs"], 7);
  EXPECT_EQ(document["slices"].size(), 3u);
  EXPECT_EQ(document["slices"][0], (json{0, 2, 0, 2, "causal"}));
}

TEST(ImportCommand, NamesTheFileOfAMaskOfManySlices) {
  json keys = json::array();
  for (int row = 0; row < 64; ++row) keys.push_back(json{row % 2, 7 + 3 * (row % 2)});
  write_file("many.json", json{{"keys", keys}}.dump());
  const ProgramRun text = run_cpscope("import --mask many.json");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("  mask = { file = \"many.json\" }\n"), std::string::npos) << text.out;
  const std::string scenario =
      small_scenario("cp_size = 2", "lengths = [64]",
                     "attn_mask_type = \"slices\"\nmask = { file = \"many.json\" }");
  const ProgramRun run = run_cpscope("run " + write_file("many.toml", scenario));
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err << scenario;
}

TEST(ImportCommand, FindsLengthsAndPadSideOfAnAttentionMask) {
  write_file("tokens.json", R"({"input_ids": [[9, 9, 4, 5], [1, 2, 3, 4]],
 "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]})");
  const ProgramRun text = run_cpscope("import --attention-mask tokens.json");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  const std::string lines =
      "  [batch]\n  qkv_format = \"bshd\"\n  lengths = [2, 4]\n  seqlen = 4\n  pad_side = "
      "\"left\"\n";
  EXPECT_EQ(
      text.out,
      "tokens.json: 2 rows of 4 tokens, 6 valid, padded on the left\nfor a scenario:\n" + lines);
  const std::string scenario = small_scenario(
      "cp_size = 2", "qkv_format = \"bshd\"\nlengths = [2, 4]\nseqlen = 4\npad_side = \"left\"");
  EXPECT_EQ(run_cpscope("run " + write_file("left.toml", scenario)).exit_code, 0);
  // NumPy's array of the same form, padded on the right.
  write_file("tokens.npy", testing_support::npy_of(
                               "'<i8'", "(2, 3)",
                               testing_support::bytes_of(std::vector<int64_t>{1, 1, 1, 1, 0, 0})));
  const json document = json::parse(run_cpscope("import --attention-mask tokens.npy --json").out);
  EXPECT_EQ(document["lengths"], (json{3, 1}));
  EXPECT_EQ(document["seqlen"], 3);
  EXPECT_EQ(document["pad_side"], "right");
}

TEST(ImportCommand, RefusesAttentionMasksThatAreNoPaddedRows) {
  const auto refusal = [](const std::string& rows) {
    write_file("holes.json", rows);
    const ProgramRun run = run_cpscope("import --attention-mask holes.json");
    EXPECT_EQ(run.exit_code, 2) << rows;
    EXPECT_EQ(run.out, "") << rows;
    return run.err;
  };
  EXPECT_EQ(refusal("[[1, 1, 1], [1, 0, 1]]")
                .find("holes.json: padding lies between the tokens of a row: row 1, column 1"),
            0u);
  EXPECT_NE(refusal("[[0, 1, 1], [1, 1, 0]]").find("padding on different sides"),
            std::string::npos);
  EXPECT_NE(refusal("[[0, 2]]").find("row 0, column 1 is 2"), std::string::npos);
  EXPECT_NE(refusal("[]").find("the mask has no tokens"), std::string::npos);
  EXPECT_NE(refusal(R"({"a": [[1]], "b": [[1]]})").find("no lists are called attention_mask"),
            std::string::npos);
  EXPECT_EQ(run_cpscope("import --attention-mask holes.json --mask topk.json").exit_code, 2);
}

TEST(ImportCommand, RefusesMasksItCannotRead) {
  write_file("partial.json", R"({"kv_num_blocks": [1], "kv_indices": [[0]],
 "full_kv_num_blocks": [0], "full_kv_indices": [[0]]})");
  const ProgramRun run = run_cpscope("import --mask partial.json");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err.find("partial.json:1:1: row 0 has blocks that are visible in part"), 0u)
      << run.err;
  EXPECT_EQ(run_cpscope("import --mask nowhere.npy").exit_code, 2);
  EXPECT_EQ(run_cpscope("import --mask partial.json --from te").exit_code, 2);
  const ProgramRun nothing = run_cpscope("import");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("--from, --mask and --attention-mask are missing"), std::string::npos)
      << nothing.err;
}

}  // namespace
}  // namespace cpscope::tests
