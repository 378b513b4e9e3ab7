#include "tests/program/program_run.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace cpscope::tests {
namespace {

using nlohmann::json;

/// stdout must hold one JSON document and nothing else.
json parse_only_json(const ProgramRun& run) {
  json document = json::parse(run.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded())
      << "not JSON: " << run.out.substr(0, 400) << "\nstderr: " << run.err;
  return document;
}

TEST(CommandLine, EveryCommandExplainsItselfWithAnExample) {
  for (const char* command : {"layout", "plan", "run", "verify", "probe", "diff", "faults",
                              "render", "demo", "timeline", "compare", "forecast", "validate"}) {
    const ProgramRun run = run_cpscope(std::string(command) + " --help");
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_NE(run.out.find("Example: cpscope " + std::string(command)), std::string::npos)
        << run.out;
  }
}

TEST(CommandLine, UnknownWordsAreBadUsage) {
  EXPECT_EQ(run_cpscope("").exit_code, 2);
  EXPECT_EQ(run_cpscope("conjure").exit_code, 2);
  EXPECT_EQ(run_cpscope("run").exit_code, 2);
  EXPECT_EQ(run_cpscope("verify").exit_code, 2);
  const std::string file = write_file("a.toml", small_scenario());
  EXPECT_EQ(run_cpscope("run " + file + " --no-such-option").exit_code, 2);
  EXPECT_EQ(run_cpscope("run " + file + " --executor abacus").exit_code, 2);
  EXPECT_TRUE(run_cpscope("conjure").out.empty()) << "errors belong on stderr";
}

TEST(CommandLine, TimelineGivesEveryItemATimeOnEveryShippedCluster) {
  const std::string file =
      write_file("timeline.toml",
                 small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "", "dtype = \"bf16\""));
  for (const char* name : {"h200x8", "h100x8", "b200x8", "h200_ib", "h100_ib", "b200_ib"}) {
    const ProgramRun run = run_cpscope("timeline " + file +
                                       " --json --cluster " CPSCOPE_CLUSTERS "/" + name + ".toml");
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json timeline = parse_only_json(run);
    EXPECT_EQ(timeline["cluster"], name);
    std::set<int> ranks;
    for (const json& item : timeline["items"]) {
      EXPECT_LE(item["start_ns"].get<int64_t>(), item["end_ns"].get<int64_t>()) << item;
      ranks.insert(item["rank"].get<int>());
    }
    EXPECT_EQ(ranks.size(), 4U);
    for (const char* pass : {"forward", "backward"}) {
      EXPECT_EQ(timeline[pass]["ranks"].size(), 4U);
      const json& rank = timeline[pass]["ranks"][0];
      EXPECT_NEAR(rank["compute_us"].get<double>() + rank["local_us"].get<double>() +
                      rank["exposed_us"].get<double>() + rank["idle_us"].get<double>(),
                  timeline[pass]["total_us"].get<double>(), 1e-6);
    }
  }
  EXPECT_EQ(run_cpscope("timeline " + file + " --cluster h300").exit_code, 2);
  EXPECT_EQ(run_cpscope("timeline " + file).exit_code, 2) << "which cluster?";
  const ProgramRun fp64 = run_cpscope("timeline " + write_file("fp64.toml", small_scenario()) +
                                      " --cluster " CPSCOPE_CLUSTERS "/h200x8.toml");
  EXPECT_EQ(fp64.exit_code, 3) << fp64.err;
  EXPECT_NE(fp64.err.find("no kernel times for fp64"), std::string::npos) << fp64.err;
}

TEST(CommandLine, ForecastDrawsWindowsAndSaysWhatReplicasLose) {
  const std::string file = write_file(
      "forecast.toml",
      small_scenario("cp_size = 4",
                     "generator = { name = \"uniform\", tokens = 262144, min = 8, max = 262144 }",
                     "", "dtype = \"bf16\""));
  const std::string cluster = " --cluster " CPSCOPE_CLUSTERS "/h200_ib.toml";
  const std::string csv = (work_folder() / "forecast.csv").string();
  const ProgramRun run = run_cpscope("forecast " + file + cluster +
                                     " --windows 5 --replicas 6 --seed 11 --json --csv " + csv);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json forecast = parse_only_json(run);
  ASSERT_EQ(forecast["windows"].size(), 5U);
  double sum = 0, most = 0;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(forecast["windows"][i]["seed"], 11 + i);
    sum += forecast["windows"][i]["total_us"].get<double>();
    most = std::max(most, forecast["windows"][i]["total_us"].get<double>());
  }
  EXPECT_NEAR(forecast["distribution"]["total_us"]["mean"].get<double>(), sum / 5, 1e-9 * sum);
  EXPECT_EQ(forecast["distribution"]["total_us"]["max"], most);
  ASSERT_EQ(forecast["replicas"].size(), 4U) << "1, 2, 4 and 6";
  EXPECT_EQ(forecast["replicas"][3]["ranks"], 24);
  EXPECT_LT(forecast["replicas"][3]["efficiency"], forecast["replicas"][1]["efficiency"]);
  std::ifstream table(csv);
  int64_t lines = 0;
  for (std::string line; std::getline(table, line);) ++lines;
  EXPECT_EQ(lines, 6);
  const ProgramRun text = run_cpscope("forecast " + file + cluster + " --windows 3");
  EXPECT_NE(text.out.find("64 replicas wait"), std::string::npos) << text.out << text.err;
  const ProgramRun fixed =
      run_cpscope("forecast " + write_file("a.toml", small_scenario()) + cluster);
  EXPECT_EQ(fixed.exit_code, 2);
  EXPECT_NE(fixed.err.find("the batch has fixed lengths"), std::string::npos) << fixed.err;
  EXPECT_EQ(run_cpscope("forecast " + file + cluster + " --replicas 1025").exit_code, 2);
  EXPECT_EQ(run_cpscope("forecast " + file + cluster + " --windows 0").exit_code, 2);
}

TEST(CommandLine, ThePageOfValidationIsWhatTheProgramPredictsNow) {
  const std::filesystem::path folder = CPSCOPE_CLUSTERS;
  const std::string page = (work_folder() / "page.md").string();
  setenv("CPSCOPE_ROOT", folder.parent_path().parent_path().c_str(), 1);
  const ProgramRun run = run_cpscope("validate --out " + page);
  unsetenv("CPSCOPE_ROOT");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto read = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(read(folder / "README.md"), read(page))
      << "run `cpscope validate --out scenarios/clusters/README.md`";
  EXPECT_EQ(read(folder / "measured/predicted.txt"), run.out)
      << "run `cpscope validate > scenarios/clusters/measured/predicted.txt`";
}

TEST(CommandLine, FindsClustersNextToTheFolderItWasBuiltIn) {
  const std::string file =
      write_file("near.toml", small_scenario("cp_size = 4", "lengths = [64]", "", ""));
  // A repository in small: the program in build/bin.
  const std::filesystem::path root = work_folder() / "clone";
  std::filesystem::create_directories(root / "build/bin");
  std::filesystem::create_directories(root / "scenarios/clusters");
  std::filesystem::copy_file(std::string(CPSCOPE_CLUSTERS) + "/h200x8.toml",
                             root / "scenarios/clusters/mine.toml");
  const std::filesystem::path program = root / "build/bin/cpscope";
  std::filesystem::create_hard_link(CPSCOPE_PROGRAM, program);
  const ProgramRun found = run_program(program, "timeline " + file + " --cluster mine");
  EXPECT_EQ(found.exit_code, 0) << found.err;
  std::filesystem::remove_all(root / "scenarios");
  const ProgramRun lost = run_program(program, "timeline " + file + " --cluster mine");
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_NE(
      lost.err.find("no cluster file is in " + (work_folder() / "scenarios/clusters").string() +
                    " or " + (root / "scenarios/clusters").string() + "; name a .toml file"),
      std::string::npos)
      << lost.err;
}

TEST(CommandLine, AMissingExecutorIsSaidInOneSentenceWithExitCodeThree) {
  const ProgramRun run =
      run_cpscope("run " + write_file("a.toml", small_scenario()) + " --executor cuda");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_NE(run.err.find("executor cuda is not here"), std::string::npos) << run.err;
}

TEST(CommandLine, BadInputNamesFileLineAndColumn) {
  const std::string file = write_file("bad.toml",
                                      "schema = 1\n[attention]\nheads = -3\nhead_dim = "
                                      "8\n[batch]\nlengths = [1]\n[parallel]\ncp_size = 1\n");
  const ProgramRun run = run_cpscope("run " + file + " --record never.safetensors");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find(file + ":3:"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("-3"), std::string::npos) << run.err;
  EXPECT_FALSE(std::filesystem::exists(work_folder() / "never.safetensors"));
}

TEST(CommandLine, RefusalsByRuleExitWithTwoAndNameTheReason) {
  const std::string file =
      write_file("refused.toml", small_scenario("cp_size = 5\ncp_comm_type = \"a2a\""));
  const ProgramRun run = run_cpscope("plan " + file);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("heads = 4, cp_size = 5"), std::string::npos) << run.err;
}

TEST(CommandLine, RefusalsByRuleNameTheKeyAtFaultWhateverTheCommand) {
  // small_scenario writes `heads = 4` in its third line.
  const std::string refused =
      write_file("place.toml", small_scenario("cp_size = 5\ncp_comm_type = \"a2a\""));
  const std::string place = refused + ":3:9: a2a requires heads >= cp_size";
  for (const char* command : {"layout ", "plan ", "run ", "probe "}) {
    const ProgramRun run = run_cpscope(command + refused);
    EXPECT_EQ(run.exit_code, 2) << command;
    EXPECT_EQ(run.err.find(place), 0u) << command << "says\n" << run.err;
  }
  const json rows = parse_only_json(run_cpscope("verify " + refused + " --json"))["rows"];
  EXPECT_EQ(rows[0]["reason"].get<std::string>().find(place), 0u) << rows;
}

TEST(LayoutCommand, WritesTheContractsDocument) {
  const std::string file = write_file(
      "layout.toml", small_scenario("cp_size = 2\ncp_comm_type = \"a2a\"", "lengths = [7, 4]"));
  const json document = parse_only_json(run_cpscope("layout " + file + " --json --full"));
  EXPECT_EQ(document["schema"], 1);
  EXPECT_EQ(document["cp_size"], 2);
  EXPECT_EQ(document["tokens"], 12);
  EXPECT_EQ(document["sequences"][0], (json{{"q_begin", 0},
                                            {"q_valid", 7},
                                            {"q_slot", 8},
                                            {"q_valid_begin", 0},
                                            {"kv_begin", 0},
                                            {"kv_valid", 7},
                                            {"kv_slot", 8},
                                            {"kv_valid_begin", 0}}));
  // TransformerEngine, N = 2, cu_padded [0, 8, 12].
  EXPECT_EQ(document["ranks"][0]["q_index"], (json{0, 1, 6, 7, 8, 11}));
  EXPECT_EQ(document["ranks"][1]["q_index"], (json{2, 3, 4, 5, 9, 10}));
  EXPECT_EQ(document["ranks"][0]["q_sequence"], (json{0, 0, 0, -1, 1, 1}));
  EXPECT_EQ(document["ranks"][0]["q_position"], (json{0, 1, 6, -1, 0, 3}));
  EXPECT_EQ(document["a2a"]["rank_to_sequence"], (json{0, 1, 6, 7, 8, 9, 2, 3, 4, 10, 11, 5}));
}

TEST(LayoutCommand, SaysWhereTheTokensOfALeftPaddedSlotBegin) {
  const std::string file = write_file(
      "left.toml", small_scenario("cp_size = 2", "lengths = [7, 4]\npad_side = \"left\""));
  const json document = parse_only_json(run_cpscope("layout " + file + " --json --full"));
  EXPECT_EQ(document["sequences"][0]["q_begin"], 0);
  EXPECT_EQ(document["sequences"][0]["q_valid_begin"], 1);
  EXPECT_EQ(document["sequences"][1]["kv_valid_begin"], 8);
  EXPECT_EQ(document["ranks"][0]["q_index"], (json{0, 1, 6, 7, 8, 11}));
  EXPECT_EQ(document["ranks"][0]["q_sequence"], (json{-1, 0, 0, 0, 1, 1}));
  EXPECT_EQ(document["ranks"][0]["q_position"], (json{-1, 0, 5, 6, 0, 3}));
  const std::string text = run_cpscope("layout " + file).out;
  EXPECT_NE(text.find("sequence 0: q ids [0, 8), 7 valid from 1 on; kv ids [0, 8), 7 valid from 1"),
            std::string::npos)
      << text;
  EXPECT_NE(
      run_cpscope("plan " + file + " --text").out.find("sequence 0: q 7 valid in [0, 8) from 1 on"),
      std::string::npos);
}

TEST(LayoutCommand, GivesOneReorderAGroupForHierarchicalExchange) {
  const std::string file = write_file(
      "groups.toml",
      small_scenario("cp_size = 4\ncp_comm_type = \"a2a+p2p\"\na2a_size = 2", "lengths = [8]"));
  const json document = parse_only_json(run_cpscope("layout " + file + " --json --full"));
  ASSERT_EQ(document["groups"].size(), 2u);
  // Ranks 0 and 1 own 0 7 | 1 6: ascending 0 1 6 7 stand in rows 0 2 3 1.
  EXPECT_EQ(document["groups"][0]["rank_to_sequence"], (json{0, 2, 3, 1}));
  EXPECT_EQ(document["groups"][1]["rank_to_sequence"], (json{0, 2, 3, 1}));
}

TEST(PlanCommand, SummarisesPairsBalanceBytesAndChecks) {
  const std::string file = write_file("plan.toml", small_scenario("cp_size = 2", "lengths = [8]"));
  const json document = parse_only_json(run_cpscope("plan " + file + " --json --summary"));
  EXPECT_EQ(document["steps"], 2);
  EXPECT_EQ(document["visible_pairs"], 36 * 4);
  EXPECT_EQ(document["pairs_by_rank"], (json{72, 72}));
  EXPECT_EQ(document["imbalance"]["rank_max_over_mean"], 1.0);
  // 4 tokens x 2 kv heads x 16 lanes x 8 bytes: KV once forward; KV and dKV once each backward.
  EXPECT_EQ(document["bytes_sent_by_rank"]["forward"], (json{1024, 1024}));
  EXPECT_EQ(document["bytes_sent_by_rank"]["backward"], (json{2048, 2048}));
  EXPECT_EQ(document["bytes_small_by_rank"]["forward"], (json{0, 0}));
  ASSERT_GE(document["checks"].size(), 6u);
  for (const json& check : document["checks"]) EXPECT_EQ(check["ok"], true) << check;
}

TEST(PlanCommand, PrintsWhatTransformerEngineWouldPass) {
  const std::string file =
      write_file("te.toml", small_scenario("cp_size = 2", "lengths = [7]\nslots = [8]"));
  const json document = parse_only_json(run_cpscope("plan " + file + " --te --json"));
  ASSERT_EQ(document["tiles"].size(), 4u);
  const json& tile = document["tiles"][2];
  EXPECT_EQ(tile["rank"], 1);
  EXPECT_EQ(tile["section"], "diagonal");
  EXPECT_EQ(tile["cu_seqlens_q"], (json{0, 4}));
  EXPECT_EQ(tile["cu_seqlens_q_padded"], (json{0, 4}));
  EXPECT_TRUE(tile["difference"].is_null());
  EXPECT_EQ(tile["without_pad_between_seqs"]["cu_seqlens_q"], (json{0, 3}));
  EXPECT_EQ(tile["without_pad_between_seqs"]["difference"],
            "sequence 0: 3 of 4 queries x 3 of 4 keys");
  const std::string text = run_cpscope("plan " + file + " --te").out;
  EXPECT_NE(text.find("differs without pad_between_seqs"), std::string::npos) << text;
  EXPECT_NE(text.find("pairs a head"), std::string::npos) << text;
  const std::string striped =
      write_file("te_not.toml", small_scenario("cp_size = 2\nlayout = \"striped\""));
  const ProgramRun refused = run_cpscope("plan " + striped + " --te");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err.find(striped + ":11:10: TransformerEngine supports only layouts "
                                       "dual_chunk and contiguous: striped"),
            0u)
      << refused.err;
}

TEST(PlanCommand, PrintsWhatTransformerEngineWouldPassForTokensInOrder) {
  const std::string parallel = "cp_size = 2\nlayout = \"contiguous\"\ncp_comm_type = ";
  const std::string file =
      write_file("te_order.toml", small_scenario(parallel + "\"all_gather\"", "lengths = [7, 3]"));
  const json document = parse_only_json(run_cpscope("plan " + file + " --te --json"));
  ASSERT_EQ(document["tiles"].size(), 2u);
  const json& tile = document["tiles"][1];
  EXPECT_EQ(tile["section"], "chunk");
  EXPECT_EQ(tile["cu_seqlens_q"], (json{0, 2, 5}));
  EXPECT_EQ(tile["cu_seqlens_q_padded"], (json{0, 2, 5}));
  EXPECT_EQ(tile["cu_seqlens_kv"], (json{0, 7, 10}));
  EXPECT_TRUE(tile["difference"].is_null());
  const std::string ring =
      write_file("te_order_ring.toml", small_scenario(parallel + "\"p2p\"", "lengths = [7, 3]"));
  const ProgramRun refused = run_cpscope("plan " + ring + " --te");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(
      refused.err.find("TransformerEngine supports layout contiguous (NO_LOAD_BALANCE) only with "
                       "all_gather: p2p"),
      std::string::npos)
      << refused.err;
}

TEST(PlanCommand, WritesTheWholePlanAsOneDocument) {
  const std::string file =
      write_file("whole.toml", small_scenario("cp_size = 4\ncp_comm_type = \"all_gather\""));
  const json document = parse_only_json(run_cpscope("plan " + file + " --json"));
  EXPECT_EQ(document["forward"]["computes"].size(), 4u);
  EXPECT_EQ(document["forward"]["transfers"].size(), 16u);
  EXPECT_TRUE(document.contains("backward"));
}

TEST(PlanCommand, PrintsTheSameTextEveryTime) {
  const std::string file = write_file("text.toml", small_scenario());
  const ProgramRun first = run_cpscope("plan " + file + " --text"),
                   second = run_cpscope("plan " + file + " --text");
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_EQ(first.out, second.out);
  EXPECT_NE(first.out.find("forward step 3"), std::string::npos);
  EXPECT_NE(first.out.find(" (query, key, head) triples\n      q["), std::string::npos)
      << first.out;
  EXPECT_NE(run_cpscope("plan " + file + " --text --lines 5").out.find("more lines"),
            std::string::npos);
}

TEST(RunCommand, GradesEveryTensorAndWritesARecordThatDiffersFromItselfInNothing) {
  const std::string file = write_file("run.toml", small_scenario());
  const ProgramRun run = run_cpscope("run " + file + " --json --poison --record a.safetensors");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = parse_only_json(run);
  EXPECT_EQ(document["passed"], true);
  EXPECT_EQ(document["executor"], "cpu");
  std::vector<std::string> names;
  for (const json& tensor : document["tensors"]) {
    names.push_back(tensor["name"]);
    EXPECT_LE(tensor["rel_l2"].get<double>(), 1e-11) << tensor;
    EXPECT_EQ(tensor["nan"], 0);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"out", "lse", "max_logit", "dq", "dk", "dv"}));
  EXPECT_EQ(run_cpscope("run " + file + " --poison --record b.safetensors").exit_code, 0);
  const ProgramRun same = run_cpscope("diff a.safetensors b.safetensors --json");
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_EQ(parse_only_json(same)["equal"], true);
}

TEST(DiffCommand, FindsWhatDiffersAndExitsWithOne) {
  const std::string one = write_file("one.toml", small_scenario());
  const std::string two = write_file(
      "two.toml", small_scenario("cp_size = 4", "lengths = [37, 0, 21]", "softcap = 3.0"));
  ASSERT_EQ(run_cpscope("run " + one + " --record one.safetensors").exit_code, 0);
  ASSERT_EQ(run_cpscope("run " + two + " --record two.safetensors").exit_code, 0);
  const ProgramRun run = run_cpscope("diff one.safetensors two.safetensors --json");
  EXPECT_EQ(run.exit_code, 1);
  const json document = parse_only_json(run);
  for (const json& tensor : document["tensors"]) {
    const std::string name = tensor["name"];
    const bool is_input = name == "q" || name == "k" || name == "v" || name == "d_out";
    EXPECT_EQ(tensor["equal"], is_input) << name;
  }
  EXPECT_EQ(run_cpscope("diff one.safetensors missing.safetensors").exit_code, 2);
  EXPECT_EQ(run_cpscope("diff one.safetensors " + one).exit_code, 2);
}

TEST(FuzzCommand, CountsWhatItTriedAndReplaysAFile) {
  const ProgramRun drawn = run_cpscope("fuzz --seed 3 --count 40 --seconds 0 --json");
  EXPECT_EQ(drawn.exit_code, 0) << drawn.out << drawn.err;
  const nlohmann::json counts = nlohmann::json::parse(drawn.out);
  EXPECT_EQ(counts["drawn"], 40);
  EXPECT_EQ(counts["passed"].get<int>() + counts["refused"].get<int>(), 40);
  EXPECT_TRUE(counts["finding"].is_null());
  const std::string file = write_file("again.toml", small_scenario());
  const ProgramRun again = run_cpscope("fuzz " + file);
  EXPECT_EQ(again.exit_code, 0) << again.out << again.err;
  EXPECT_NE(again.out.find("PASS all checks"), std::string::npos) << again.out;
}

TEST(FuzzCommand, RefusesWhatItCannotTry) {
  EXPECT_EQ(run_cpscope("fuzz missing.toml").exit_code, 2);
  EXPECT_EQ(run_cpscope("fuzz --executor nobody --count 1").exit_code, 2);
  EXPECT_EQ(run_cpscope("fuzz --count -1").exit_code, 2);
  const std::string refused =
      write_file("refused.toml", small_scenario("cp_size = 5\ncp_comm_type = \"a2a\""));
  EXPECT_EQ(run_cpscope("fuzz " + refused).exit_code, 2);
}

TEST(ProbeCommand, FindsNothingWrongInACorrectPlan) {
  const std::string file =
      write_file("probe.toml", small_scenario("cp_size = 4", "lengths = [37, 0, 21]",
                                              "softmax_type = \"learnable\"\nwindow_size = [5, 0]",
                                              "dtype = \"bf16\""));
  const ProgramRun run = run_cpscope("probe " + file + " --json");
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  const json document = parse_only_json(run);
  EXPECT_EQ(document["rows"], (40 + 24) * 4);
  EXPECT_EQ(document["wrong_count_rows"], 0);
  EXPECT_EQ(document["wrong_key_rows"], 0);
  EXPECT_TRUE(document["first"].is_null());
}

TEST(ProbeCommand, SaysWhatItLeavesOut) {
  const std::string file =
      write_file("terms.toml", small_scenario("cp_size = 2", "lengths = [37]",
                                              "dropout = 0.2\nalibi = true", "dtype = \"bf16\""));
  const ProgramRun run = run_cpscope("probe " + file);
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("not probed: ALiBi; run judges it\n"), std::string::npos) << run.out;
  const json document = parse_only_json(run_cpscope("probe " + file + " --json"));
  EXPECT_EQ(document["left_out"], json::array({"ALiBi"}));
}

TEST(CommandLine, VerifyJudgesEveryRowAsRunDoes) {
  const std::string file = std::string(CPSCOPE_SOURCE_DIR) + "/scenarios/softcap_rope.toml";
  const json verified = parse_only_json(run_cpscope("verify " + file + " --json"));
  const json run = parse_only_json(run_cpscope("run " + file + " --json"));
  ASSERT_EQ(verified["rows"].size(), 1u);
  // Judged on fewer rows, every figure would differ.
  EXPECT_EQ(verified["rows"][0]["tensors"], run["tensors"]);
  EXPECT_TRUE(run["judged"]["whole"].get<bool>());
}

TEST(VerifyCommand, CountsEveryKindOfRowAndWritesJUnit) {
  std::filesystem::create_directories(work_folder() / "set" / "bad");
  write_file("set/good.toml", small_scenario());
  write_file("set/refused.toml", small_scenario("cp_size = 5\ncp_comm_type = \"a2a\""));
  write_file("set/bad/broken.toml", "schema = ");
  const ProgramRun run = run_cpscope("verify set --json --junit verify.xml");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = parse_only_json(run);
  ASSERT_EQ(document["rows"].size(), 2u) << "the folder bad is only read when it is named";
  EXPECT_EQ(document["rows"][0]["status"], "pass");
  EXPECT_EQ(document["rows"][1]["status"], "refused");
  EXPECT_TRUE(std::filesystem::exists(work_folder() / "verify.xml"));
  EXPECT_EQ(run_cpscope("verify set/bad").exit_code, 2);
  EXPECT_EQ(run_cpscope("verify set/refused.toml").exit_code, 3);
  EXPECT_EQ(run_cpscope("verify set set/bad").exit_code, 2);
  EXPECT_EQ(run_cpscope("verify nowhere").exit_code, 2);
}

TEST(VerifyCommand, PlansAndProvesButDoesNotExecuteAboveTheLimit) {
  const std::string file = write_file("long.toml", small_scenario());
  const ProgramRun run = run_cpscope("verify " + file + " --max-flops 10 --json");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_EQ(parse_only_json(run)["rows"][0]["status"], "skipped");
}

TEST(CommandLine, PrintsOneDocumentWithJsonWhateverHappens) {
  const std::string file = write_file("document.toml", small_scenario());
  struct Failing {
    std::string arguments;
    int exit_code;
    const char* said;
  };
  const std::string bad = write_file("bad_key.toml", small_scenario() + "\n[atention]\n");
  for (const Failing& one : std::vector<Failing>{
           {"run nowhere.toml --json", 2, "no such file"},
           {"run " + bad + " --json", 2, "atention"},
           {"run " + file + " --executor nobody --json", 2, "unknown executor"},
           {"run " + file + " --executor plugin:nowhere.so --json", 3, "no such file"},
           {"run --json", 2, "FILE is required"},
           {"runn " + file + " --json", 2, "no command has this name"},
           {"grade " + file + " nowhere.safetensors --json", 2, "nowhere.safetensors"},
           {"verify nowhere --json", 2, "no such file or folder"},
           {"plan " + file + " --lines x --json", 2, "whole number"},
           {"render " + file + " --view mask --out nowhere/x.png", 2, ""}}) {
    const ProgramRun run = run_cpscope(one.arguments);
    EXPECT_EQ(run.exit_code, one.exit_code) << one.arguments << run.err;
    if (one.arguments.find("--json") == std::string::npos) {
      EXPECT_EQ(run.out, "");
      continue;
    }
    const json document = json::parse(run.out, nullptr, false);
    ASSERT_FALSE(document.is_discarded()) << one.arguments << ": " << run.out;
    EXPECT_EQ(document["schema"], 1);
    EXPECT_NE(document["error"].dump().find(one.said), std::string::npos) << run.out;
    EXPECT_FALSE(run.err.empty()) << "people read it too";
  }
  const json placed = json::parse(run_cpscope("plan " + bad + " --json").out);
  EXPECT_NE(placed["error"]["at"].get<std::string>().find("bad_key.toml:"), std::string::npos);
}

TEST(CommandLine, NeverReplacesWhatItReads) {
  const std::string text = small_scenario();
  const std::string file = write_file("kept.toml", text);
  const std::string record = (work_folder() / "kept.safetensors").string();
  ASSERT_EQ(run_cpscope("run " + file + " --record " + record).exit_code, 0);
  const std::string order = write_file("kept.json", "{\"cp_size\":2,\"ranks\":[[0,1],[2,3]]}");
  const std::string imported = write_file(
      "imports.toml",
      "schema = 1\n[attention]\nheads = 1\nhead_dim = 4\n[batch]\nlengths = [4]\n[parallel]\n"
      "cp_size = 2\nlayout = \"indices\"\nindices_file = \"kept.json\"\n");
  for (const std::string& arguments :
       {"run " + file + " --record " + file, "run " + file + " --junit " + file,
        "run " + file + " --junit ./../" + work_folder().filename().string() + "/kept.toml",
        "grade " + file + " " + record + " --junit " + record,
        "run " + file + " --record both.out --junit both.out",
        "run " + imported + " --junit " + order}) {
    const ProgramRun run = run_cpscope(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    const bool is_named =
        run.err.find("would replace a file that the command reads") != std::string::npos ||
        run.err.find("name the same file") != std::string::npos;
    EXPECT_TRUE(is_named) << arguments << ": " << run.err;
  }
  EXPECT_EQ(read_text(file), text);
  EXPECT_EQ(run_cpscope("grade " + file + " " + record).exit_code, 0) << "the record is whole";
}

TEST(CommandLine, TakesNumbersThatAreNumbers) {
  const std::string file = write_file("numbers.toml", small_scenario());
  for (const std::string& arguments : std::vector<std::string>{
           "run " + file + " --sample ''", "run " + file + " --sample 1.5",
           "run " + file + " --sample 99999999999999999999", "fuzz --seed -1", "fuzz --count ''",
           "fuzz --seconds nan", "fuzz --seconds inf", "verify " + file + " --max-flops nan",
           "verify " + file + " --max-flops -1", "run " + file + " --budget lse",
           "run " + file + " --budget lse=nan", "run " + file + " --budget lse=-1",
           "run " + file + " --budget q=1",
           "render " + file + " --view mask --out x.png --scale nan",
           "gui " + file + " --screenshot x.png --scale nan"}) {
    const ProgramRun run = run_cpscope(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments << ": " << run.err;
  }
  const json widened = json::parse(run_cpscope("run " + file + " --budget lse=0.25 --json").out);
  for (const json& tensor : widened["tensors"]) {
    EXPECT_EQ(tensor.value("widened", false), tensor["name"] == "lse");
    if (tensor["name"] == "lse") {
      EXPECT_EQ(tensor["budget"], 0.25);
    }
  }
}

TEST(CommandLine, NamesAFolderThatItMayNotRead) {
  std::filesystem::create_directories(work_folder() / "locked/inside");
  write_file("locked/inside/a.toml", small_scenario());
  write_file("locked/b.toml", small_scenario());
  std::filesystem::permissions(work_folder() / "locked/inside", std::filesystem::perms::none);
  // Root may read everything, unless it gives that up.
  const std::string command = "setpriv --bounding-set=-dac_override,-dac_read_search '" +
                              std::string(CPSCOPE_PROGRAM) + "' verify '" +
                              (work_folder() / "locked").string() + "' > '" +
                              (work_folder() / "locked.out").string() + "' 2> '" +
                              (work_folder() / "locked.err").string() + "'";
  const int status = std::system(command.c_str());
  std::filesystem::permissions(work_folder() / "locked/inside", std::filesystem::perms::owner_all);
  EXPECT_EQ(WEXITSTATUS(status), 2);
  const std::string said = read_text(work_folder() / "locked.err");
  EXPECT_NE(said.find("the folder cannot be read"), std::string::npos) << said;
  EXPECT_NE(said.find("locked/inside"), std::string::npos) << said;
}

TEST(CommandLine, SaysWhatADocumentNeedsBeforeItIsMade) {
  const std::string file =
      write_file("long.toml",
                 "schema = 1\n[attention]\nheads = 1\nhead_dim = 4\n[batch]\nlengths = [4000000]\n"
                 "[parallel]\ncp_size = 4\n");
  const ProgramRun run = run_cpscope("plan " + file + " --summary --json");
  EXPECT_EQ(run.exit_code, 0) << "it is small without its tokens";
  const std::string command = "ulimit -v 700000; '" + std::string(CPSCOPE_PROGRAM) + "' layout '" +
                              file + "' --json --full > '" + (work_folder() / "long.out").string() +
                              "' 2> '" + (work_folder() / "long.err").string() + "'";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  const std::string said = read_text(work_folder() / "long.err");
  EXPECT_NE(said.find("needs 1.2 GiB, this process may have 0.7 GiB"), std::string::npos) << said;
}

}  // namespace
}  // namespace cpscope::tests
