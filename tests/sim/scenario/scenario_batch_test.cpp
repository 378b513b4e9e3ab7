#include "tests/sim/scenario/scenario_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

Batch parse_batch(const std::string& batch) {
  ScenarioText text;
  text.batch = batch;
  return parse_valid(text).batch;
}

std::string reject_batch(const std::string& batch) {
  ScenarioText text;
  text.batch = batch;
  return parse_invalid(text);
}

TEST(ScenarioBatch, RepeatsSeqlenForEachSequence) {
  for (const char* format : {"bshd", "sbhd", "thd"}) {
    const Batch batch =
        parse_batch("qkv_format = \"" + std::string(format) + "\"\nbatch_size = 3\nseqlen = 5\n");
    EXPECT_EQ(batch.lengths, (Lengths{5, 5, 5})) << format;
    EXPECT_EQ(batch.slots, (Lengths{5, 5, 5})) << format;
    EXPECT_TRUE(batch.self_attention) << format;
  }
}

TEST(ScenarioBatch, PadsEverySequenceOfBshdToSeqlen) {
  const Batch batch = parse_batch("qkv_format = \"bshd\"\nlengths = [3, 5]\nseqlen = 8\n");
  EXPECT_EQ(batch.lengths, (Lengths{3, 5}));
  EXPECT_EQ(batch.slots, (Lengths{8, 8}));
  EXPECT_EQ(batch.kv_slots, (Lengths{8, 8}));
}

TEST(ScenarioBatch, PadsBshdToTheLongestWithoutSeqlen) {
  const Batch batch = parse_batch("qkv_format = \"bshd\"\nlengths = [3, 5]\nkv_lengths = [7, 2]\n");
  EXPECT_EQ(batch.slots, (Lengths{5, 5}));
  EXPECT_EQ(batch.kv_slots, (Lengths{7, 7}));
  EXPECT_FALSE(batch.self_attention);
}

TEST(ScenarioBatch, TakesCrossAttentionFromKvSeqlen) {
  const Batch batch =
      parse_batch("qkv_format = \"bshd\"\nbatch_size = 2\nseqlen = 4\nkv_seqlen = 9\n");
  EXPECT_EQ(batch.kv_lengths, (Lengths{9, 9}));
  EXPECT_EQ(batch.kv_slots, (Lengths{9, 9}));
  EXPECT_FALSE(batch.self_attention);
}

TEST(ScenarioBatch, KeepsThdSlotsAtTheLengths) {
  const Batch batch = parse_batch("lengths = [3, 0, 5]\nkv_lengths = [1, 2, 0]\n");
  EXPECT_EQ(batch.slots, (Lengths{3, 0, 5}));
  EXPECT_EQ(batch.kv_slots, (Lengths{1, 2, 0}));
}

TEST(ScenarioBatch, GivesKvTheSlotsOfQueriesInSelfAttention) {
  const Batch batch = parse_batch("lengths = [3, 5]\nslots = [4, 8]\n");
  EXPECT_EQ(batch.kv_slots, (Lengths{4, 8}));
  EXPECT_TRUE(batch.self_attention);
  EXPECT_FALSE(parse_batch("lengths = [3, 5]\nkv_slots = [4, 8]\n").self_attention);
}

TEST(ScenarioBatch, AllowsSequencesAndKvWithoutTokens) {
  EXPECT_EQ(parse_batch("lengths = [0]\n").lengths, (Lengths{0}));
  EXPECT_EQ(parse_batch("lengths = [4, 4]\nkv_lengths = [0, 0]\n").kv_lengths, (Lengths{0, 0}));
}

TEST(ScenarioBatch, RefusesRulesThatDisagree) {
  expect_contains(reject_batch("lengths = []\n"), "batch.lengths has no sequence");
  expect_contains(reject_batch(""), "a required key is missing: batch.lengths");
  expect_contains(reject_batch("batch_size = 2\n"), "missing: batch.seqlen");
  expect_contains(reject_batch("seqlen = 2\n"), "missing: batch.batch_size");
  expect_contains(reject_batch("lengths = [1, 2]\nbatch_size = 3\n"),
                  "does not have batch_size sequences: 2 and 3");
  expect_contains(reject_batch("lengths = [1, 9]\nseqlen = 8\n"),
                  "a sequence longer than seqlen: 9 and 8");
  expect_contains(reject_batch("lengths = [1, 9]\nkv_lengths = [1]\n"),
                  "one entry per sequence: 1 entries, 2 sequences");
  expect_contains(reject_batch("lengths = [1, 9]\nslots = [9]\n"), "one entry per sequence");
  expect_contains(reject_batch("lengths = [1, 9]\nslots = [9, 8]\n"),
                  "batch.slots[1] is smaller than its sequence: 8 and 9");
  expect_contains(reject_batch("qkv_format = \"sbhd\"\nlengths = [1, 2]\nslots = [4, 8]\n"),
                  "must all be equal in sbhd: 4 and 8");
  expect_contains(reject_batch("qkv_format = \"bshd\"\nlengths = [1]\nslots = [4]\nseqlen = 8\n"),
                  "must equal seqlen: 4 and 8");
  expect_contains(reject_batch("qkv_format = \"bshd\"\nlengths = [5]\nkv_seqlen = 4\n"),
                  "batch.lengths has a sequence longer than kv_seqlen: 5 and 4");
}

TEST(ScenarioBatch, PadsOnTheSideThatIsAskedFor) {
  EXPECT_EQ(parse_batch("lengths = [3]\n").pad_side, PadSide::right);
  EXPECT_EQ(parse_batch("lengths = [3]\npad_side = \"right\"\n").pad_side, PadSide::right);
  const Batch left =
      parse_batch("qkv_format = \"bshd\"\nlengths = [3, 5]\nseqlen = 8\npad_side = \"left\"\n");
  EXPECT_EQ(left.pad_side, PadSide::left);
  EXPECT_EQ(left.slots, (Lengths{8, 8}));
  expect_contains(reject_batch("lengths = [3]\npad_side = \"front\"\n"),
                  "batch.pad_side is not one of its choices: \"front\"; choose right or left");
  expect_contains(reject_batch("lengths = [3]\npad_side = true\n"), "batch.pad_side");
  for (const char* format : {"thd", "bshd"})
    expect_contains(reject_batch("qkv_format = \"" + std::string(format) +
                                 "\"\nlengths = [9]\nslots = [8]\npad_side = \"left\"\n"),
                    "batch.slots[0] is smaller than its sequence: 8 and 9; a slot holds its valid "
                    "tokens and the padding before them");
}

TEST(ScenarioBatch, CountsTokensWithoutOverflow) {
  expect_contains(reject_batch("lengths = [4611686018427387904, 4611686018427387904]\n"),
                  "lesson.toml:6:12: batch.lengths[0..1]: 2 values are above 2147483647, first "
                  "4611686018427387904; give a value from 0 to 2147483647");
  expect_contains(reject_batch("lengths = [2147483647, 1]\n"),
                  "sums to more tokens than the limit of 2147483647: 2147483648");
  expect_contains(reject_batch("lengths = [1]\nslots = [2147483648]\n"), "batch.slots[0]");
  expect_contains(reject_batch("batch_size = 4194304\nseqlen = 2147483647\n"),
                  "more tokens than the limit");
  expect_contains(reject_batch("batch_size = 4194305\nseqlen = 0\n"), "batch.batch_size");
  EXPECT_EQ(parse_batch("lengths = [2147483647]\n").slots, (Lengths{2147483647}));
}

TEST(ScenarioBatch, SaysOnceThatAListIsWrongEverywhere) {
  std::string list = "-3";
  for (int i = 1; i < 64; ++i) list += ", -4";
  EXPECT_EQ(reject_batch("lengths = [" + list + "]\n"),
            "lesson.toml:6:12: batch.lengths[0..63]: 64 values are below 0, first -3; give a value "
            "from 0 to 2147483647");
  // Each kind of fault by itself; a single entry keeps its own words.
  EXPECT_EQ(reject_batch("lengths = [5, -1, 1.0, -2, \"4\", -9]\n"),
            "lesson.toml:6:15: batch.lengths[1..5]: 3 values are below 0, first -1; give a value "
            "from 0 to 2147483647\n"
            "lesson.toml:6:19: batch.lengths[2..4]: 2 values are no integers, first the float 1.0; "
            "write it without a decimal point or exponent");
}

TEST(ScenarioBatch, TakesLengthsFromAGenerator) {
  const Batch batch = parse_batch(
      "generator = { name = \"equal\", tokens = 10, max = 4 }\nkv_lengths = [1, 2, 3]\n");
  EXPECT_EQ(batch.lengths, (Lengths{4, 4, 2}));
  EXPECT_EQ(batch.kv_lengths, (Lengths{1, 2, 3}));
  ASSERT_TRUE(batch.generator.has_value());
  EXPECT_EQ(batch.generator->name, "equal");
}

TEST(ScenarioBatch, RefusesGeneratorsThatCannotWork) {
  const auto reject = [](const std::string& keys) {
    return reject_batch("generator = { " + keys + " }\n");
  };
  expect_contains(reject("name = \"lognormall\", tokens = 5"), "batch.generator.name");
  expect_contains(reject("name = \"wlb\""), "missing: batch.generator.tokens");
  expect_contains(reject("tokens = 5"), "missing: batch.generator.name");
  expect_contains(reject("name = \"csv\""), "missing: batch.generator.file");
  expect_contains(reject("name = \"uniform\", tokens = 5, min = 3, max = 2"), "1 <= min <= max");
  expect_contains(reject("name = \"uniform\", tokens = 5, sgima = 2"), "did you mean sigma?");
  expect_contains(reject("name = \"uniform\", tokens = 5000000, max = 1"),
                  "more documents than the limit");
  expect_contains(reject("name = \"uniform\", tokens = 2147483648"), "batch.generator.tokens");
  expect_contains(reject("name = \"csv\", file = \"no_such.csv\""), "no such file");
  expect_contains(reject_batch("lengths = [1]\ngenerator = { name = \"wlb\", tokens = 5 }\n"),
                  "given next to lengths");
}

TEST(ScenarioBatch, WarnsOfGeneratorKeysThatDoNotApply) {
  ScenarioText text;
  text.batch = "generator = { name = \"uniform\", tokens = 100, sigma = 2.0 }\n";
  EXPECT_EQ(parse(text).value().warnings,
            (std::vector<std::string>{
                "batch.generator.sigma does not apply to generator uniform and is unused"}));
}

TEST(ScenarioSlices, AreReadAndKept) {
  ScenarioText text;
  text.batch = "lengths = [10, 20]\nkv_lengths = [5, 5]\n";
  text.attention +=
      "attn_mask_type = \"slices\"\n"
      "slices = [[0, 10, 0, 5, \"causal\"], [10, 30, 5, 10, \"full\"]]\n";
  EXPECT_EQ(
      parse_valid(text).attention.slices,
      (std::vector<MaskSlice>{{0, 10, 0, 5, SliceType::causal}, {10, 30, 5, 10, SliceType::full}}));
}

TEST(ScenarioSlices, MayBeEmptyButNotMissing) {
  ScenarioText text;
  text.attention += "attn_mask_type = \"slices\"\n";
  expect_contains(parse_invalid(text), "missing: attention.slices");
  text.attention += "slices = []\n";
  EXPECT_TRUE(parse_valid(text).attention.slices.empty());
}

TEST(ScenarioSlices, RefuseBoundsOutsideTheValidTokens) {
  const auto reject = [](const std::string& slice) {
    ScenarioText text;  // 30 valid tokens
    text.attention += "attn_mask_type = \"slices\"\nslices = [" + slice + "]\n";
    return parse_invalid(text);
  };
  expect_contains(reject("[0, 31, 0, 1, \"full\"]"), "0 <= q0 <= q1 <= 30: 0, 31");
  expect_contains(reject("[0, 1, 5, 4, \"full\"]"), "0 <= k0 <= k1 <= 30: 5, 4");
  expect_contains(reject("[-1, 1, 0, 4, \"full\"]"), "0 <= q0 <= q1 <= 30: -1, 1");
  expect_contains(reject("[0, 1, 0, 1, \"ful\"]"), "has no such type: \"ful\"");
  expect_contains(reject("[0, 1, 0, 1]"), "must be a list of 5 entries: an array of 4 values");
  expect_contains(reject("[0, 1, 0, 1.0, \"full\"]"), "must begin with 4 integers: the float 1.0");
  expect_contains(reject("3"), "attention.slices[0] must be a list of 5 entries: 3");
}

TEST(ScenarioSlices, AreOneComplaintHoweverManyAreWrong) {
  const auto reject = [](const std::string& entry) {
    ScenarioText text;
    text.attention += "attn_mask_type = \"slices\"\nslices = [";
    for (int i = 0; i < 100; ++i) text.attention += entry + ", ";
    text.attention += "]\n";
    const Result<LoadedScenario> loaded = parse(text);
    EXPECT_FALSE(loaded.ok()) << entry;
    EXPECT_EQ(loaded.error().complaints.size(), 1u) << to_text(loaded.error());
    return to_text(loaded.error());
  };
  expect_contains(reject("3"),
                  "attention.slices[0..99]: 100 entries must be lists of 5 entries, first 3; write "
                  "[q0, q1, k0, k1, \"full\"]");
  expect_contains(reject("[0, 1, 0, 1, \"ful\"]"),
                  "attention.slices[0..99]: 100 entries have no such type, first \"ful\"");
  expect_contains(reject("[0, 31, 0, 1, \"full\"]"),
                  "100 entries must satisfy 0 <= q0 <= q1 <= 30, first 0, 31");
  expect_contains(
      reject("[0, 1, 0, 1, \"full\"]"),
      "attention.slices[0] and attention.slices[1] overlap, first at query 0, key 0; "
      "each visible pair must be in one slice only; at least 10 pairs of slices overlap");
}

TEST(ScenarioSlices, AreMergedOnlyWhereNeighboursTouch) {
  const auto reject = [](auto write_slice) {
    ScenarioText text;
    text.batch = "lengths = [100002]\n";
    text.attention += "attn_mask_type = \"slices\"\nslices = [";
    for (int i = 0; i < 100'001; ++i) text.attention += write_slice(i) + ", ";
    text.attention += "]\n";
    return parse_invalid(text);
  };
  expect_contains(
      reject([](int i) {
        return "[" + std::to_string(i) + "," + std::to_string(i + 1) + ",0,1,\"full\"]";
      }),
      "more entries than the limit of 100000: 100001; merge neighbours that touch: 100000 in the "
      "list do, first [0] and [1]");
  expect_contains(reject([](int i) {
                    const std::string from = std::to_string(i), to = std::to_string(i + 1);
                    return "[" + from + "," + to + "," + from + "," + to + ",\"full\"]";
                  }),
                  "no neighbours in the list touch, so none can be merged");
}

TEST(ScenarioSlices, NameBothSlicesThatShareACell) {
  ScenarioText text;
  text.attention +=
      "attn_mask_type = \"slices\"\n"
      "slices = [[0, 4, 0, 4, \"causal\"], [8, 9, 0, 4, \"full\"],\n"
      "          [3, 5, 3, 9, \"full\"]]\n";
  EXPECT_EQ(parse_invalid(text),
            "lesson.toml:7:11: attention.slices[0] and attention.slices[2] overlap, first at "
            "query 3, key 3; each visible pair must be in one slice only");
}

}  // namespace
}  // namespace cpscope
