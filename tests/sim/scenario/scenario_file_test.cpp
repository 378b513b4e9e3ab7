#include "sim/scenario/scenario_file.h"

#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

const char* const kContractSample = R"toml(
schema   = 1                    # required
title    = "Padding between sequences, ring of 4"
question = "Which rows does a kernel touch that no token owns?"

[attention]
heads          = 8
kv_heads       = 2
head_dim       = 64
attn_mask_type = "padding_causal"
slices         = []
window_size    = [-1, -1]
chunk_size     = 0
softmax_scale  = 0.0
softcap        = 0.0
softmax_type   = "vanilla"
rope_theta     = 0.0

[batch]
qkv_format       = "thd"
lengths          = [698, 137, 2041]
kv_lengths       = [698, 137, 2041]
slots            = [704, 144, 2048]
pad_between_seqs = true

[parallel]
cp_size      = 4
cp_comm_type = "p2p"
layout       = "dual_chunk"
a2a_size     = 2
dispatch_chunk = 512
stripe       = 1
indices_file = "order.json"
dispatch     = "tokens"
backward_kv  = "refetch"

[numerics]
dtype    = "bf16"
backward = true
seed     = 1234
dkv_wire = "dtype"
dkv_hops = "home"
accumulate = "fp32"
inputs   = "normal"
)toml";

TEST(ScenarioFile, LoadsTheSampleOfTheContract) {
  const Result<LoadedScenario> loaded = parse_scenario(kContractSample, "sample.toml");
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  const Scenario& scenario = loaded.value().scenario;
  EXPECT_EQ(scenario.title, "Padding between sequences, ring of 4");
  EXPECT_EQ(scenario.attention.kv_heads, 2);
  EXPECT_EQ(scenario.attention.mask_type, MaskType::padding_causal);
  EXPECT_EQ(scenario.batch.slots, (std::vector<int64_t>{704, 144, 2048}));
  EXPECT_EQ(scenario.batch.kv_slots, scenario.batch.slots);
  EXPECT_TRUE(scenario.batch.self_attention);
  EXPECT_EQ(scenario.numerics.seed, 1234u);
  EXPECT_EQ(loaded.value().text, kContractSample);
  EXPECT_EQ(loaded.value().path, "sample.toml");
}

TEST(ScenarioFile, WarnsOfEachKeyThatDoesNotApply) {
  const Result<LoadedScenario> loaded = parse_scenario(kContractSample, "sample.toml");
  ASSERT_TRUE(loaded.ok());
  const std::vector<std::string> expected = {
      "attention.slices does not apply to attn_mask_type padding_causal and is unused",
      "parallel.a2a_size does not apply to cp_comm_type p2p and is unused",
      "parallel.dispatch does not apply to cp_comm_type p2p and is unused",
      "parallel.backward_kv does not apply to cp_comm_type p2p and is unused",
      "parallel.dispatch_chunk does not apply to layout dual_chunk and is unused",
      "parallel.stripe does not apply to layout dual_chunk and is unused",
      "parallel.indices_file does not apply to layout dual_chunk and is unused"};
  EXPECT_EQ(loaded.value().warnings, expected);
}

TEST(ScenarioFile, KeepsQuietWhenEveryKeyApplies) {
  ScenarioText text;
  text.parallel =
      "cp_size = 4\ncp_comm_type = \"a2a+p2p\"\na2a_size = 2\nlayout = \"striped\"\n"
      "stripe = 2\n";
  text.numerics = "dkv_hops = \"ring\"\ndkv_wire = \"fp32\"\n";
  EXPECT_EQ(parse(text).value().warnings, std::vector<std::string>{});
}

TEST(ScenarioFile, StillChecksTheTypeOfUnusedKeys) {
  ScenarioText text;
  text.parallel += "stripe = \"two\"\n";
  expect_contains(parse_invalid(text), "parallel.stripe must be an integer");
}

TEST(ScenarioFile, FillsTheDefaultsOfTheContract) {
  const Scenario scenario = parse_valid({});
  Scenario expected;
  expected.attention.heads = expected.attention.kv_heads = 8;
  expected.attention.head_dim_qk = expected.attention.head_dim_v = 64;
  expected.batch.lengths = expected.batch.kv_lengths = {10, 20};
  expected.batch.slots = expected.batch.kv_slots = {10, 20};
  expected.parallel.cp_size = 4;
  EXPECT_EQ(scenario, expected);
}

TEST(ScenarioFile, NamesTheNearestKnownKey) {
  ScenarioText text;
  text.parallel += "cp_com_type = \"p2p\"\n";
  EXPECT_EQ(parse_invalid(text),
            "lesson.toml:9:1: unknown key in [parallel]: \"cp_com_type\"; "
            "did you mean cp_comm_type?");
}

TEST(ScenarioFile, NamesTheTableOfAKeyThatStandsInAnother) {
  ScenarioText text;
  text.attention += "cp_size = 4\n";
  expect_contains(parse_invalid(text), "it belongs in [parallel]");
}

TEST(ScenarioFile, RefusesUnknownTables) {
  ScenarioText text;
  text.numerics = "[numeric]\nseed = 1\n";
  expect_contains(parse_invalid(text), "unknown key in the top level: \"numeric\"");
  expect_contains(parse_invalid(text), "did you mean numerics?");
}

TEST(ScenarioFile, ReportsAllProblemsInTheOrderOfTheFile) {
  ScenarioText text;
  text.attention = "heads = 0\nhead_dim = 64\nsoftcap = -1.0\n";
  text.batch = "lengths = [10, -1]\n";
  text.parallel = "cp_size = 70000\n";
  text.numerics = "dtype = \"bf17\"\nseed = -3\n";
  const Result<LoadedScenario> loaded = parse(text);
  ASSERT_FALSE(loaded.ok());
  std::vector<std::string> places;
  for (const Complaint& complaint : loaded.error().complaints) places.push_back(complaint.where);
  EXPECT_EQ(places,
            (std::vector<std::string>{"lesson.toml:3:9", "lesson.toml:5:11", "lesson.toml:7:16",
                                      "lesson.toml:9:11", "lesson.toml:11:9", "lesson.toml:12:8"}));
}

TEST(ScenarioFile, SaysTheBadValueLast) {
  ScenarioText text;
  text.attention = "heads = 70000\nhead_dim = 64\n";
  EXPECT_EQ(parse_invalid(text),
            "lesson.toml:3:9: attention.heads must be an integer from 1 to 65536: 70000; "
            "give a value from 1 to 65536");
}

TEST(ScenarioFile, TakesNoFloatForAnInteger) {
  ScenarioText text;
  text.attention = "heads = 8.0\nhead_dim = 64\n";
  expect_contains(parse_invalid(text), "must be an integer from 1 to 65536: the float 8.0");
}

TEST(ScenarioFile, TakesAnIntegerForANumber) {
  ScenarioText text;
  text.attention += "softcap = 30\n";
  EXPECT_EQ(parse_valid(text).attention.softcap, 30.0);
}

TEST(ScenarioFile, RefusesNumbersThatAreNotFiniteNegativeOrBeyondLogits) {
  for (const char* value : {"nan", "inf", "-inf", "-0.5", "1e999", "1e31", "1e-31"}) {
    for (const char* key : {"softcap", "softmax_scale", "rope_theta"}) {
      ScenarioText text;
      text.attention += std::string(key) + " = " + value + "\n";
      EXPECT_FALSE(parse(text).ok()) << key << " = " << value;
    }
  }
}

TEST(ScenarioFile, KeepsToTheLimits) {
  struct Case {
    const char* attention;
    const char* parallel;
    bool is_valid;
  };
  const Case cases[] = {
      {"heads = 65536\nhead_dim = 1024\n", "cp_size = 65536\n", true},
      {"heads = 65537\nhead_dim = 64\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 1025\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 0\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 65537\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 0\n", false},
      {"heads = 8\nkv_heads = 3\nhead_dim = 64\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\nwindow_size = [-2, 0]\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\nwindow_size = [1]\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\nwindow_size = [2147483647, -1]\n", "cp_size = 4\n", true},
      {"heads = 8\nhead_dim = 63\nrope_theta = 1e4\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 63\n", "cp_size = 4\n", true},
      {"heads = 8\nhead_dim_qk = 64\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim_v = 64\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim_qk = 192\nhead_dim_v = 128\n", "cp_size = 4\n", true},
      {"heads = 8\nhead_dim = 64\nhead_dim_v = 64\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\nchunk_size = -1\n", "cp_size = 4\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 4\nstripe = 0\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 4\ndispatch_chunk = 0\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 3\ncp_comm_type = \"a2a+p2p\"\n", false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 6\ncp_comm_type = \"a2a+p2p\"\na2a_size = 4\n",
       false},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 6\ncp_comm_type = \"a2a+p2p\"\na2a_size = 3\n",
       true},
      {"heads = 8\nhead_dim = 64\n", "cp_size = 3\n", true}};
  for (const Case& each : cases) {
    ScenarioText text;
    text.attention = each.attention;
    text.parallel = each.parallel;
    EXPECT_EQ(parse(text).ok(), each.is_valid) << text.join();
  }
}

TEST(ScenarioFile, TakesSeedsUpToTheLargestTomlInteger) {
  ScenarioText text;
  text.numerics = "seed = 9223372036854775807\n";
  EXPECT_EQ(parse_valid(text).numerics.seed, 9223372036854775807u);
  text.numerics = "seed = 9223372036854775808\n";
  parse_invalid(text);
}

TEST(ScenarioFile, RefusesByNameWhatIsNotComputedYet) {
  const auto refuse = [](ScenarioText text, std::string_view reason) {
    expect_contains(parse_invalid(text, ErrorKind::refused), reason);
  };
  ScenarioText text;
  text.attention += "kv_heads = 1\nlatent_dim = 64\nlatent_nope_dim = 8\n";
  text.numerics = "dtype = \"fp8\"\n";
  refuse(text, "Expanding latent rows with dtype fp8 is not supported");
}

TEST(ScenarioFile, ReadsFp8AsADtypeWithATableOfItsOwn) {
  ScenarioText text;
  text.numerics = "dtype = \"fp8\"\n";
  const Numerics plain = parse_valid(text).numerics;
  EXPECT_EQ(plain.dtype, Dtype::bf16);
  ASSERT_TRUE(plain.fp8);
  EXPECT_EQ(*plain.fp8, Fp8{});
  text.numerics += "[fp8]\nrecipe = \"mxfp8\"\nkv_wire = \"fp8\"\n";
  EXPECT_EQ(parse_valid(text).numerics.fp8->kv_wire, Fp8KvWire::bf16);
  for (const auto& [line, hint] :
       {std::pair{"dtype = \"e4m3\"", "use dtype = \"fp8\""},
        std::pair{"fp8_dpa = true", "use dtype = \"fp8\""},
        std::pair{"fp8_recipe = \"delayed\"", "use recipe = \"delayed\" in [fp8]"},
        std::pair{"fp8_format = \"hybrid\"", "use format = \"hybrid\" in [fp8]"}}) {
    text.numerics = std::string(line) + "\n";
    expect_contains(parse_invalid(text), hint);
  }
}

TEST(ScenarioFile, ReadsLatentAttentionAndSaysWhatDoesNotFit) {
  ScenarioText text;
  const auto with = [&](std::string_view lines) {
    text.attention = "heads = 8\n" + std::string(lines) + "\n";
    return text;
  };
  const Attention latent =
      parse_valid(with("kv_heads = 1\nhead_dim_qk = 576\nlatent_dim = 512\nrope_theta = 1e4"))
          .attention;
  EXPECT_EQ(latent.head_dim_v, 512);
  EXPECT_EQ(latent.own_head_dim_v(), 0);
  EXPECT_EQ(parse_valid(with("kv_heads = 1\nhead_dim = 64\nlatent_dim = 64")).attention.latent_dim,
            64);
  for (const auto& [lines, reason] :
       {std::pair{"head_dim_qk = 576\nlatent_dim = 512", "latent attention has one KV head: 8"},
        std::pair{"kv_heads = 2\nhead_dim_qk = 576\nlatent_dim = 512",
                  "latent attention has one KV head: 2"},
        std::pair{"kv_heads = 1\nhead_dim_qk = 576\nhead_dim_v = 128\nlatent_dim = 512",
                  "must be head_dim_v: 512 is not 128"},
        std::pair{"kv_heads = 1\nhead_dim = 576\nlatent_dim = 512",
                  "must be head_dim_v: 512 is not 576"},
        std::pair{"kv_heads = 1\nhead_dim_qk = 512\nlatent_dim = 576",
                  "is larger than head_dim_qk: 576 > 512"},
        std::pair{"kv_heads = 1\nhead_dim_qk = 515\nlatent_dim = 512\nrope_theta = 1e4",
                  "needs an even number of elements behind latent_dim, at least 2: 3"},
        std::pair{"kv_heads = 1\nhead_dim_qk = 512\nlatent_dim = 512\nrope_theta = 1e4",
                  "needs an even number of elements behind latent_dim, at least 2: 0"},
        std::pair{"kv_heads = 1\nhead_dim_qk = 512\nlatent_dim = -1", "latent_dim"}})
    expect_contains(parse_invalid(with(lines)), reason);
}

TEST(ScenarioFile, ReadsLatentRowsThatAreExpandedWhereTheyAreUsed) {
  const auto with = [](std::string_view lines) {
    ScenarioText text;
    text.attention = "heads = 8\nkv_heads = 1\n" + std::string(lines) + "\n";
    return text;
  };
  const std::string dims = "head_dim_qk = 192\nhead_dim_v = 128\nlatent_dim = 512\n";
  const Attention attention =
      parse_valid(with(dims + "latent_nope_dim = 128\nrope_theta = 1e4")).attention;
  EXPECT_TRUE(attention.expands_rows());
  EXPECT_FALSE(attention.has_v_in_k());
  EXPECT_EQ(attention.key_dim(), 576);
  EXPECT_EQ(attention.own_head_dim_v(), 0);
  EXPECT_EQ(attention.first_rotated_of_q(), 128);
  EXPECT_EQ(attention.first_rotated_of_k(), 512);
  for (const auto& [lines, reason] : std::initializer_list<std::pair<std::string, const char*>>{
           {"head_dim = 192\nlatent_nope_dim = 128", "is given without latent_dim"},
           {dims + "latent_nope_dim = 200", "is larger than head_dim_qk: 200 > 192"},
           {dims + "latent_nope_dim = 191\nrope_theta = 1e4",
            "needs an even number of elements behind latent_nope_dim, at least 2: 1"},
           {"head_dim_qk = 600\nhead_dim_v = 128\nlatent_dim = 512\nlatent_nope_dim = 8",
            "makes a row of k of 1104 elements, at most 1024 are possible"},
           {"head_dim_qk = 192\nlatent_dim = 512\nlatent_nope_dim = 128",
            "head_dim_v is required with head_dim_qk"}})
    expect_contains(parse_invalid(with(lines)), reason);
}

TEST(ScenarioFile, IsBadInputWhenOnlyPartOfItIsRefused) {
  ScenarioText text;
  text.attention += "kv_heads = 1\nlatent_dim = 64\nlatent_nope_dim = 8\n";
  text.numerics = "dtype = \"fp8\"\nseed = -1\n";
  const std::string message = parse_invalid(text, ErrorKind::bad_input);
  expect_contains(message, "Expanding latent rows with dtype fp8");
  expect_contains(message, "numerics.seed");
}

TEST(ScenarioFile, NamesMissingTablesAndKeys) {
  const Result<LoadedScenario> empty = parse_scenario("", "lesson.toml");
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().complaints.size(), 4u) << to_text(empty.error());
  ScenarioText text;
  text.attention = "";
  const std::string message = parse_invalid(text);
  expect_contains(message, "lesson.toml:2:1: a required key is missing: attention.heads");
  expect_contains(message, "lesson.toml:2:1: a required key is missing: attention.head_dim");
}

TEST(ScenarioFile, RefusesAnotherSchema) {
  ScenarioText text;
  text.top = "schema = 2\n";
  expect_contains(parse_invalid(text), "lesson.toml:1:10: schema must be");
}

TEST(ScenarioFile, PutsAPlaceOnEveryComplaint) {
  ScenarioText text;
  text.top = "schema = \"1\"\ntitle = 3\nheads = 1\n";
  text.attention = "head_dim = [1]\nslices = [[1]]\nattn_mask_type = 1979-05-27\n";
  text.batch = "lengths = 3\nkv_lengths = [1.0]\ngenerator = 5\n";
  const Result<LoadedScenario> loaded = parse(text);
  ASSERT_FALSE(loaded.ok());
  EXPECT_GE(loaded.error().complaints.size(), 9u);
  for (const Complaint& complaint : loaded.error().complaints) {
    EXPECT_TRUE(is_place(complaint.where)) << complaint.where;
    EXPECT_FALSE(complaint.hint.empty()) << complaint.what;
  }
}

TEST(ScenarioFile, CutsAFloodOfComplaints) {
  ScenarioText text;
  for (int i = 0; i < 1'000; ++i) text.numerics += "\"unheard of " + std::to_string(i) + "\" = 1\n";
  const Result<LoadedScenario> loaded = parse(text);
  ASSERT_FALSE(loaded.ok());
  const size_t shown = loaded.error().complaints.size() - 1;
  EXPECT_GE(shown, 5u);
  EXPECT_EQ(loaded.error().complaints.back().what,
            "and " + std::to_string(1'000 - shown) + " more");
  EXPECT_TRUE(is_place(loaded.error().complaints.back().where));
  EXPECT_LT(to_text(loaded.error()).size(), 2000u);
}

TEST(ScenarioFile, SaysWhyAFileCannotBeRead) {
  const auto complain = [](const std::string& path) {
    const Result<LoadedScenario> loaded = load_scenario(path);
    return loaded ? std::string("accepted") : to_text(loaded.error());
  };
  const std::filesystem::path folder = testing::TempDir();
  expect_contains(complain((folder / "no_such_scenario.toml").string()), "no such file");
  expect_contains(complain(folder.string()), "this is a folder");
  expect_contains(complain(""), "the file name is empty");
  const std::filesystem::path large = folder / "too_large_scenario.toml";
  std::ofstream(large) << "schema = 1\n";
  std::filesystem::resize_file(large, (64u << 20) + 1);  // sparse: nothing is written
  expect_contains(complain(large.string()), "larger than the limit: 64 MiB");
  std::filesystem::remove(large);
}

TEST(ScenarioFile, LoadsWhatIsOnDisk) {
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "loaded_scenario.toml";
  std::ofstream(path) << ScenarioText{}.join();
  const Result<LoadedScenario> loaded = load_scenario(path.string());
  std::filesystem::remove(path);
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  EXPECT_EQ(loaded.value().scenario, parse_valid({}));
}

}  // namespace
}  // namespace cpscope
