#include "sim/scenario/order_file.h"

#include "tests/sim/scenario/scenario_text.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

using Ranks = std::vector<std::vector<int64_t>>;

const OrderDemand kTwoRanks = {2, 4, 4, true};

std::string reject_order(const std::string& text, const OrderDemand& demand = kTwoRanks) {
  const Result<ImportedOrder> order = parse_order(text, "order.json", demand);
  if (order) ADD_FAILURE() << "accepted: " << text.substr(0, 200);
  return order ? "" : to_text(order.error());
}

// 256 requests of 131072 keys are as many. Reading such a file takes seconds.
TEST(OrderFile, MayBeAsLongAsTheLongestThatAnImportWrites) {
  const auto bytes_of_id =
      static_cast<int64_t>(std::to_string(kMostListedTokens - 1).size() + std::string(",").size());
  // Lists of all ranks, empty ones too: "[],\n".
  const int64_t bytes_of_lists = int64_t{kMaxRanks} * 4;
  EXPECT_LE(2 * (kMostListedTokens * bytes_of_id + bytes_of_lists), kMaxOrderBytes);
}

TEST(OrderFile, TakesRanksAsTheyAre) {
  const auto order =
      parse_order(R"({"cp_size": 2, "ranks": [[0, 3, 4], [2, 1]]})", "order.json", kTwoRanks);
  ASSERT_TRUE(order.ok()) << to_text(order.error());
  EXPECT_EQ(order.value().ranks, (Ranks{{0, 3, 4}, {2, 1}}));
  EXPECT_EQ(order.value().kv_ranks, order.value().ranks);
}

TEST(OrderFile, TakesAnOrderOfItsOwnForKv) {
  const auto order = parse_order(R"({"ranks": [[0], [1]], "kv_ranks": [[2, 1, 0], []]})",
                                 "order.json", {2, 2, 3, false});
  ASSERT_TRUE(order.ok()) << to_text(order.error());
  EXPECT_EQ(order.value().kv_ranks, (Ranks{{2, 1, 0}, {}}));
}

TEST(OrderFile, CutsARearrangeListContiguously) {
  for (const char* text : {R"({"cp_size": 2, "rearrange": [0, 3, 1, 2]})", "[0, 3, 1, 2]"}) {
    const auto order = parse_order(text, "order.json", kTwoRanks);
    ASSERT_TRUE(order.ok()) << to_text(order.error());
    EXPECT_EQ(order.value().ranks, (Ranks{{0, 3}, {1, 2}}));
  }
  const auto both = parse_order(R"({"rearrange": [0, 1], "kv_rearrange": [3, 2, 1, 0]})",
                                "order.json", {2, 2, 4, false});
  ASSERT_TRUE(both.ok()) << to_text(both.error());
  EXPECT_EQ(both.value().kv_ranks, (Ranks{{3, 2}, {1, 0}}));
}

TEST(OrderFile, RefusesWhatIsNoPartition) {
  expect_contains(
      reject_order("[0, 1, 2, 2]"),
      "order.json:1:1: token 2 appears twice: on rank 1 row 0 and on rank 1 row 1; token "
      "3 is lost: 4 ids for 4 slots; write");
  expect_contains(reject_order("[0, 1, 2, 4]"),
                  "rank 1 row 1 holds 4, which is outside; token 3 is lost: 4 ids for 4 slots");
  expect_contains(reject_order("[0, 1]"), "token 2 is lost; token 3 is lost: 2 ids for 4 slots");
  expect_contains(reject_order("[0, 1, 2, 3, 3, 3]"),
                  "token 3 appears 3 times, first on rank 1 row 0 and on rank 1 row 1: 6 ids for 4 "
                  "slots");
  expect_contains(reject_order("[0, 1, 2, 3, 4]"), "does not divide by cp_size: 5 ids, 2 ranks");
  expect_contains(reject_order(R"({"ranks": [[0, 1, 2, 3]]})"), "1 lists, 2 ranks");
  expect_contains(reject_order(R"({"cp_size": 3, "ranks": [[0, 1], [2, 3]]})"), "3 here, 2 there");
  expect_contains(
      reject_order(R"({"ranks": [[0, 1], [2, 3]], "kv_ranks": [[0, 1], [2]]})", {2, 4, 4, false}),
      "kv_ranks: token 3 is lost: 3 ids for 4 slots");
}

TEST(OrderFile, NamesSequenceAndPositionOfALostToken) {
  OrderDemand demand{2, 10, 10, true};
  demand.places = {{10}, {10}};
  expect_contains(reject_order(R"({"ranks": [[0, 1, 2, 3, 4], [5, 6, 7, 8]]})", demand),
                  "token 9 (sequence 0, position 9) is lost: 9 ids for 10 slots");
  demand.places = {{3, 4}, {5, 5}};
  expect_contains(reject_order(R"({"ranks": [[0, 1, 2, 3, 4], [5, 7, 8, 9]]})", demand),
                  "token 6 (sequence 1, position 1) is lost: 9 ids for 10 slots (the batch has 7 "
                  "tokens, 10 with padding)");
  expect_contains(
      reject_order(R"({"ranks": [[0, 1, 2, 3, 3], [5, 6, 7, 8, 9]]})", demand),
      "token 3 (padding of sequence 0) appears twice: on rank 0 row 3 and on rank 0 row "
      "4; token 4 (padding of sequence 0) is lost: 10 ids for 10 slots");
  // Ids behind the slots are padding that the order adds: 0 to 11 here, but 10 is repeated.
  expect_contains(
      reject_order(R"({"ranks": [[0, 1, 2, 3, 4, 10], [5, 6, 7, 8, 9, 10]]})", demand),
      "token 10 (padding behind the last sequence) appears twice: on rank 0 row 5 and on "
      "rank 1 row 5; token 11 (padding behind the last sequence) is lost: 12 ids for 10 "
      "slots");
}

TEST(OrderFile, ComparesAShortListWithTheLargestBatch) {
  expect_contains(reject_order("[0, 2]", {2, 2147483647, 2147483647, true}),
                  "token 1 is lost; token 3 is lost; token 4 is lost; token 5 is lost; token 6 is "
                  "lost; and 2147483640 more: 2 ids for 2147483647 slots");
}

TEST(OrderFile, WantsAKvOrderForCrossAttention) {
  expect_contains(reject_order("[0, 1, 2, 3]", {2, 4, 9, false}), "an order of its own for KV");
}

TEST(OrderFile, RefusesOtherContent) {
  expect_contains(reject_order("[0, 1, 2, -3]"), "must not be negative: -3");
  expect_contains(reject_order("[0, 1, 2, 3.0]"), "only integers");
  expect_contains(reject_order("[0, 1, 2, 18446744073709551615]"), "at most 2147483647");
  expect_contains(reject_order("[0, 1, 2, 99999999999999999999999]"), "only integers");
  expect_contains(reject_order("[0, 1, 2, \"3\"]"), "only integers");
  expect_contains(reject_order("[0, 1, 2, null]"), "only integers");
  expect_contains(reject_order("[[0, 1], [2, 3]]"), "nested too deeply");
  expect_contains(reject_order("5"), "must be a list");
  expect_contains(reject_order("{}"), "the token order is missing");
  expect_contains(reject_order(R"({"rank": [[0]]})"), "unknown key: \"rank\"");
  expect_contains(reject_order(R"({"ranks": [0, 1]})"), "must be a list of lists");
  expect_contains(reject_order(R"({"ranks": {"a": 1}})"), "values must not be objects");
  expect_contains(reject_order(R"({"cp_size": [2]})"), "cp_size must be an integer");
  expect_contains(reject_order(R"({"rearrange": [], "rearrange": []})"), "given twice");
  expect_contains(reject_order(R"({"rearrange": [0, 1, 2, 3], "ranks": [[0], [1]]})"), "not both");
}

TEST(OrderFile, PlacesBrokenJson) {
  expect_contains(reject_order("[0, 1,\n 2, x]"), "order.json:2:5: not JSON");
  expect_contains(reject_order(""), "order.json:1:1: not JSON");
  expect_contains(reject_order(std::string("\0\xff\xfe", 3)), "not JSON");
}

TEST(OrderFile, SurvivesDeepNesting) {
  expect_contains(reject_order(std::string(1'000'000, '[')), "nested too deeply");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"ranks\":";
  expect_contains(reject_order(objects), "values must not be objects");
}

TEST(OrderFile, IsReadNextToTheScenario) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "order_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "order.json") << R"({"cp_size": 4, "rearrange": [7,6,5,4,3,2,1,0]})";
  ScenarioText text;
  text.batch = "lengths = [3, 4]\n";
  text.parallel = "cp_size = 4\nlayout = \"indices\"\nindices_file = \"order.json\"\n";
  const std::string path = (folder / "lesson.toml").string();
  const Result<LoadedScenario> loaded = parse_scenario(text.join(), path);
  std::ofstream(folder / "order.json") << "[0, 1, 2]";
  const Result<LoadedScenario> broken = parse_scenario(text.join(), path);
  std::filesystem::remove_all(folder);
  const Result<LoadedScenario> missing = parse_scenario(text.join(), path);

  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  EXPECT_EQ(loaded.value().scenario.parallel.imported.ranks,
            (Ranks{{7, 6}, {5, 4}, {3, 2}, {1, 0}}));
  ASSERT_FALSE(broken.ok());
  expect_contains(to_text(broken.error()), "order.json:1:1: rearrange does not divide");
  ASSERT_FALSE(missing.ok());
  expect_contains(to_text(missing.error()), "lesson.toml:10:16: no such file: ");
}

TEST(OrderFile, IsRequiredByTheLayoutIndices) {
  ScenarioText text;
  text.parallel = "cp_size = 4\nlayout = \"indices\"\n";
  expect_contains(parse_invalid(text), "missing: parallel.indices_file");
}

}  // namespace
}  // namespace cpscope
