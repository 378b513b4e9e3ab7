#include "sim/scenario/portable_random.h"
#include "sim/scenario/toml_guard.h"
#include "tests/sim/scenario/scenario_text.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

std::string reject_text(const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const Result<LoadedScenario> loaded = parse_scenario(text, "lesson.toml");
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 20.0) << text.substr(0, 40);
  if (loaded) ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return loaded ? "" : to_text(loaded.error());
}

std::string repeat(std::string_view part, int64_t times) {
  std::string text;
  for (int64_t i = 0; i < times; ++i) text += part;
  return text;
}

TEST(HostileText, PlacesTheFirstByteThatIsNotTomlText) {
  expect_contains(reject_text(std::string("schema = 1\n[\0::", 15)),
                  "lesson.toml:2:2: control characters are not TOML: byte 0x00");
  expect_contains(reject_text("\xEF\xBB\xBB = 1\n"), "lesson.toml:1:1: outside strings");
  expect_contains(reject_text("title = \"\xC3\x28\"\n"),
                  "lesson.toml:1:10: the text is not valid UTF-8");
  expect_contains(reject_text("# \xED\xA0\x80\n"), "not valid UTF-8: byte 0xED");
  expect_contains(reject_text("# \xF4\x90\x80\x80\n"), "not valid UTF-8: byte 0xF4");
  expect_contains(reject_text("# \xC0\x80\n"), "not valid UTF-8: byte 0xC0");
  expect_contains(reject_text("# \xE2\x82"), "not valid UTF-8: byte 0xE2");
  expect_contains(reject_text("title = \"\x7F\"\n"), "byte 0x7F");
}

TEST(HostileText, CountsColumnsInCharacters) {
  expect_contains(reject_text("title = \"\xC3\xA4\xC3\xB6\" \x01\n"), "lesson.toml:1:14: control");
}

TEST(HostileText, ReadsForeignLettersWhereverAStringMayHoldThem) {
  ScenarioText text;
  text.top += "title = \"\"\"a\\\n  \xC3\xA4\xC8\x8B\xE2\x86\x92\"\"\"\n# \xC3\xB6\n";
  EXPECT_EQ(parse_valid(text).title, "a\xC3\xA4\xC8\x8B\xE2\x86\x92");
  // After a value and in a key the guard may take them for part of a string; the parser rejects
  // them.
  expect_contains(reject_text("heads = 8\"\"\"\xC8\x8B\"\n"), "lesson.toml:1:");
}

TEST(HostileText, RefusesDeepNestingBeforeItIsParsed) {
  expect_contains(reject_text("a = " + std::string(100'000, '[')),
                  "nested deeper than the limit: 32");
  expect_contains(reject_text("a = " + repeat("{a=", 100'000)), "nested deeper than the limit: 32");
  expect_contains(reject_text(std::string(100'000, '[')), "nested deeper than the limit: 32");
  expect_contains(reject_text("[" + repeat("a.", 100'000) + "a]\n"),
                  "more parts than the limit: 16");
  expect_contains(reject_text(repeat("'a' . ", 100'000) + "a = 1\n"),
                  "more parts than the limit: 16");
}

TEST(HostileText, LetsBracketsAndDotsStandInStrings) {
  ScenarioText text;
  const std::string many = repeat("[{.=,", 2000);
  text.top += "title = \"" + many + "\\\"" + many + "\"\nquestion = '''" + many + "''" + many +
              "''''\n# " + many + "\n";
  const Scenario scenario = parse_valid(text);
  EXPECT_EQ(scenario.title, many + "\"" + many);
  EXPECT_EQ(scenario.question, many + "''" + many + "'");
}

TEST(HostileText, SeesThroughStringsThatOnlyLookOpen) {
  // After each of these the parser is outside a string, so the guard must be, too.
  for (const char* front :
       {"a = \"\"\"x\"\"\"\"\" \nb = ", "a = '\\'\nb = ", "a = \"\\\\\"\nb = ", "a = \"\"\nb = ",
        "a = \"\"\"\\\"\"\"\"\nb = ", "# \"\nb = ", "a = [\"\"\"x\"\"\"\", ", "a = ['''x''''', ",
        "a = '''\n'''\nb = ", "'a' = 1\n\"b\" = "}) {
    expect_contains(reject_text(front + std::string(100, '[')), "nested deeper than the limit");
  }
}

TEST(HostileText, RefusesFloodsOfKeysAndValues) {
  std::string keys;
  for (int i = 0; i < 200'000; ++i) keys += "[t" + std::to_string(i) + ".x]\n";
  expect_contains(reject_text(keys), "more keys than the limit: 1024");
  expect_contains(reject_text(repeat("a.b = 1\n", 200'000)), "more keys than the limit: 1024");
  expect_contains(reject_text("a = [" + repeat("1,", kMaxTomlValues + 1) + "]"),
                  "more values than the limit");
  expect_contains(reject_text(std::string(kMaxTomlBytes + 1, ' ')),
                  "larger than the limit: 64 MiB");
}

TEST(HostileText, ReadsAListOfAMillionLengths) {
  ScenarioText text;
  text.batch = "lengths = [" + repeat("7,", 1'000'000) + "]\n";
  EXPECT_EQ(parse_valid(text).batch.lengths.size(), 1'000'000u);
}

TEST(HostileText, RefusesListsLongerThanTheLimit) {
  ScenarioText text;
  text.batch = "lengths = [1]\n";
  text.attention += "slices = [" + repeat("[],", 100'001) + "]\n";
  expect_contains(parse_invalid(text), "more entries than the limit of 100000: 100001");
}

TEST(HostileText, PlacesSyntaxErrors) {
  expect_contains(reject_text("schema = 1\nheads = \n"), "lesson.toml:2:9: not TOML");
  expect_contains(reject_text("schema = 1\nschema = 1\n"), "lesson.toml:2:");
  expect_contains(reject_text("title = \"open\nschema = 1\n"), "lesson.toml:1:");
  expect_contains(reject_text("seed = 99999999999999999999\n"), "lesson.toml:1:");
  expect_contains(reject_text("[attention]\n[attention]\n"), "lesson.toml:2:");
}

TEST(HostileText, ShowsLongAndWildValuesCut) {
  ScenarioText text;
  text.numerics = "dtype = \"" + std::string(100'000, 'x') + "\\u0000\"\n";
  EXPECT_LT(parse_invalid(text).size(), 300u);
  text.numerics = std::string(100'000, 'k') + " = 1\n";
  EXPECT_LT(parse_invalid(text).size(), 300u);
  text.numerics = "dtype = \"a\\u0000\\u001Bb\"\n";
  expect_contains(parse_invalid(text), "\"a\\x00\\x1Bb\"");
}

TEST(HostileText, DoesNotOpenFileNamesWithNul) {
  ScenarioText text;
  text.parallel += "layout = \"indices\"\nindices_file = \"a\\u0000b\"\n";
  expect_contains(parse_invalid(text), "holds a NUL byte");
}

/// Changes a few bytes: replaced, removed, doubled, or swapped for a piece of another place.
std::string mutate(std::string text, uint64_t seed) {
  static const std::vector<std::string> kPieces = {"[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   "\"",
                                                   "'",
                                                   "\"\"\"",
                                                   "=",
                                                   ".",
                                                   ",",
                                                   "\n",
                                                   "#",
                                                   "-",
                                                   "1e999",
                                                   "nan",
                                                   "9223372036854775807",
                                                   "-9223372036854775808",
                                                   "[[",
                                                   "\\u0000",
                                                   std::string(1, '\0'),
                                                   "\xEF\xBB\xBF",
                                                   "\xFF",
                                                   "1979-05-27",
                                                   "true",
                                                   "4294967296",
                                                   "generator",
                                                   "slices",
                                                   "mask",
                                                   "kv_"};
  uint64_t counter = 0;
  const auto draw = [&](size_t below) {
    return static_cast<size_t>(draw_bits(seed, 0, counter++) % (below + 1));
  };
  for (size_t changes = 1 + draw(2); changes > 0; --changes) {
    const size_t at = draw(text.size());
    switch (draw(4)) {
      case 0:
        text.insert(at, kPieces[draw(kPieces.size() - 1)]);
        break;
      case 1:
        text.erase(at, 1 + draw(8));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(draw(255));
        break;
      case 3:
        text.insert(at, text.substr(draw(text.size()), draw(30)));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>('0' + draw(9));
        break;
    }
  }
  return text;
}

TEST(HostileText, SurvivesMutatedFiles) {
  ScenarioText lists;
  lists.attention +=
      "attn_mask_type = \"slices\"\n"
      "slices = [[0, 9, 0, 9, \"causal\"], [10, 30, 5, 10, \"full\"]]\n"
      "window_size = [3, -1]\nsoftcap = 30.5\n";
  ScenarioText generated;
  generated.batch =
      "qkv_format = \"bshd\"\nseqlen = 300\n"
      "generator = { name = \"lognormal\", tokens = 900, max = 300, seed = 7 }\n";
  generated.numerics = "dtype = \"fp16\"\nbackward = false\nseed = 12\n";
  ScenarioText masked;
  masked.attention +=
      "attn_mask_type = \"slices\"\n"
      "mask = { name = \"prefix_tree\", parents = [-1, 0, 0], lengths = [4, 3, 3], block = 2, "
      "count = 3, window = [2, -1], groups = [[1, 4], [11, 14]], sequence = 0 }\n";
  const std::vector<std::string> texts = {lists.join(), generated.join(), masked.join()};
  const char* rounds_text = std::getenv("CPSCOPE_MUTATIONS");
  const uint64_t rounds = rounds_text != nullptr ? std::stoull(rounds_text) : 4000;
  uint64_t accepted = 0;
  for (uint64_t seed = 0; seed < rounds; ++seed) {
    const std::string text = mutate(texts[seed % texts.size()], seed);
    const Result<LoadedScenario> loaded = parse_scenario(text, "lesson.toml");
    if (!loaded) {
      ASSERT_FALSE(loaded.error().complaints.empty()) << text;
      ASSERT_FALSE(loaded.error().complaints.front().where.empty()) << text;
      continue;
    }
    ++accepted;
    // Accepted text must be printable, and have the same meaning again.
    const std::string printed = print_scenario(loaded.value().scenario);
    const Result<LoadedScenario> again = parse_scenario(printed, "lesson.toml");
    ASSERT_TRUE(again.ok()) << to_text(again.error()) << "\n" << text << "\n" << printed;
    ASSERT_EQ(again.value().scenario, loaded.value().scenario) << text << "\n" << printed;
  }
  EXPECT_GT(accepted, rounds / 200);
}

}  // namespace
}  // namespace cpscope
