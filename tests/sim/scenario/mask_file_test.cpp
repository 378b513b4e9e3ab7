#include "sim/scenario/mask_file.h"

#include "sim/scenario/mask_matrix.h"
#include "sim/scenario/scenario_names.h"
#include "tests/sim/scenario/mask_cells.h"
#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// The header of a .npy file, padded to 64 bytes as NumPy does, and the cells.
std::string npy_bytes(const std::string& type, const std::string& shape, const std::string& cells,
                      bool is_column_major = false) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", type,
                                   is_column_major ? "True" : "False", shape);
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + cells;
}

std::string npy_of(const std::vector<std::vector<int>>& cells) {
  std::string bytes;
  for (const std::vector<int>& row : cells) {
    for (const int cell : row) bytes += static_cast<char>(cell);
  }
  return npy_bytes("|b1", fmt::format("({}, {})", cells.size(), cells.front().size()), bytes);
}

Result<MaskCut> cut(const std::string& bytes, const Batch& batch, int64_t sequence = -1) {
  const Result<MaskRows> rows = parse_mask_rows(bytes, "mask.npy");
  if (!rows) return rows.error();
  return cut_mask(rows.value(), batch, sequence);
}

std::vector<MaskSlice> cut_valid(const std::string& bytes, const Batch& batch,
                                 int64_t sequence = -1) {
  const Result<MaskCut> made = cut(bytes, batch, sequence);
  if (!made) ADD_FAILURE() << to_text(made.error());
  return made ? made.value().slices : std::vector<MaskSlice>();
}

std::string reject_mask(const std::string& bytes, const Batch& batch = packed_batch({4}),
                        int64_t sequence = -1) {
  const Result<MaskCut> made = cut(bytes, batch, sequence);
  if (made) ADD_FAILURE() << "accepted: " << testing::PrintToString(bytes.substr(0, 200));
  return made ? "" : to_text(made.error());
}

TEST(MaskFile, ReadsMatricesOfAnyMask) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto side = [&] { return static_cast<int64_t>(1 + random() % 12); };
    Batch batch = packed_batch({side()});
    batch.kv_lengths = {side()};
    std::vector<std::vector<int>> cells(static_cast<size_t>(batch.lengths[0]));
    const uint64_t percent = random() % 101;
    int64_t pairs = 0;
    for (std::vector<int>& row : cells) {
      for (int64_t j = 0; j < batch.kv_lengths[0]; ++j) {
        row.push_back(random() % 100 < percent ? 1 : 0);
        pairs += row.back();
      }
    }
    const Result<MaskCut> made = cut(npy_of(cells), batch);
    ASSERT_TRUE(made.ok()) << to_text(made.error());
    EXPECT_EQ(made.value().pairs, pairs);
    EXPECT_EQ(count_cells(batch, made.value().slices), cells);
  }
}

TEST(MaskFile, JoinsRowsThatSeeTheSameOrOneKeyFurther) {
  const auto slices_of = [](int64_t tokens, const std::function<bool(int64_t, int64_t)>& sees) {
    std::vector<std::vector<int>> cells(static_cast<size_t>(tokens));
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < tokens; ++j)
        cells[static_cast<size_t>(i)].push_back(sees(i, j) ? 1 : 0);
    }
    return cut_valid(npy_of(cells), packed_batch({tokens}));
  };
  using Slices = std::vector<MaskSlice>;
  EXPECT_EQ(slices_of(9, [](int64_t, int64_t) { return true; }), (Slices{{0, 9, 0, 9}}));
  EXPECT_EQ(slices_of(9, [](int64_t i, int64_t j) { return j <= i; }),
            (Slices{{0, 9, 0, 9, SliceType::causal}}));
  EXPECT_EQ(slices_of(9, [](int64_t i, int64_t j) { return j >= i; }),
            (Slices{{0, 9, 0, 9, SliceType::inv_causal}}));
  EXPECT_EQ(slices_of(9, [](int64_t i, int64_t j) { return j <= i && i - j < 4; }),
            (Slices{{0, 4, 0, 4, SliceType::causal}, {4, 9, 1, 9, SliceType::bi_causal}}));
  EXPECT_EQ(slices_of(9, [](int64_t i, int64_t j) { return i / 4 >= j / 4; }),
            (Slices{{0, 4, 0, 4}, {4, 8, 0, 8}, {8, 9, 0, 9}}));
  EXPECT_EQ(slices_of(6, [](int64_t, int64_t) { return false; }), Slices{});
}

TEST(MaskFile, ReadsMatricesByColumnsAndOfOneHead) {
  const Batch batch = packed_batch({3});
  const std::string lower("\1\0\0\1\1\0\1\1\1", 9), upper("\1\1\1\0\1\1\0\0\1", 9);
  const std::vector<MaskSlice> causal{{0, 3, 0, 3, SliceType::causal}};
  EXPECT_EQ(cut_valid(npy_bytes("|u1", "(3, 3)", lower), batch), causal);
  EXPECT_EQ(cut_valid(npy_bytes("|b1", "(3, 3)", upper, true), batch), causal);
  EXPECT_EQ(cut_valid(npy_bytes("|b1", "(1, 1, 3, 3)", lower), batch), causal);
}

TEST(MaskFile, IsOfTheBatchOrOfASequence) {
  const std::string pair = npy_of({{1, 1}, {0, 1}});
  const std::vector<MaskSlice> both{{0, 2, 0, 2, SliceType::inv_causal},
                                    {2, 4, 2, 4, SliceType::inv_causal}};
  EXPECT_EQ(cut_valid(pair, packed_batch({2, 2})), both);
  EXPECT_EQ(cut_valid(npy_of({{1, 1, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1}}),
                      packed_batch({2, 2})),
            both);
  EXPECT_EQ(cut_valid(pair, packed_batch({3, 2}), 1),
            (std::vector<MaskSlice>{{0, 3, 0, 3, SliceType::causal},
                                    {3, 5, 3, 5, SliceType::inv_causal}}));
  expect_contains(reject_mask(pair, packed_batch({3, 2})),
                  "the mask has 2 rows and 2 columns: the batch has 5 queries and 5 keys, sequence "
                  "0 has 3 and 3");
  expect_contains(reject_mask(pair, packed_batch({3, 2}), 0), "sequence 0 has 3 and 3");
}

TEST(MaskFile, RefusesAPairOfTwoSequences) {
  expect_contains(reject_mask(npy_of({{1, 0, 0}, {0, 1, 0}, {0, 1, 1}}), packed_batch({2, 1})),
                  "the mask lets query 2 of sequence 1 see a key of another sequence: key 1");
  expect_contains(reject_mask(npy_of({{1, 0, 0}, {0, 1, 1}, {0, 0, 1}}), packed_batch({2, 1})),
                  "query 1 of sequence 0 see a key of another sequence: key 2");
}

TEST(MaskFile, RefusesOtherMatrices) {
  const std::string cells(16, '\1');
  expect_contains(reject_mask(npy_bytes("<f4", "(2, 2)", cells)),
                  "mask.npy:1:1: a mask must be an array of bool or uint8: \"'<f4'\"");
  expect_contains(reject_mask(npy_bytes("|b1", "(2, 4, 2)", cells)),
                  "a mask for each batch entry or head is not supported: dimension 0 has length 2");
  expect_contains(reject_mask(npy_bytes("|b1", "(16,)", cells)),
                  "a mask must have 2 dimensions: 1");
  expect_contains(reject_mask(npy_bytes("|b1", "()", "\1")), "a mask must have 2 dimensions: 0");
  expect_contains(reject_mask(npy_bytes("|b1", "(16385, 1)", cells)),
                  "larger than the limit of 16384 x 16384: 16385 x 1");
  expect_contains(reject_mask(npy_bytes("|b1", "(9223372036854775807, 4)", cells)),
                  "larger than the limit");
  expect_contains(reject_mask(npy_bytes("|b1", "(4, -4)", cells)), "the header has no shape");
  expect_contains(reject_mask(npy_bytes("|b1", "(4, 4", cells)), "the header has no shape");
  expect_contains(reject_mask(npy_bytes("|b1", "(4, 5)", cells)),
                  "the file holds 16 cells, its shape has 20");
  std::string wrong = cells;
  wrong[6] = '\xFF';
  expect_contains(reject_mask(npy_bytes("|u1", "(4, 4)", wrong)),
                  "a cell of a mask is 0 or 1: query 1, key 2 is 255");
  expect_contains(reject_mask(npy_bytes("|u1", "(4, 4)", wrong, true)), "query 2, key 1 is 255");
}

TEST(MaskFile, RefusesEveryTruncatedMatrix) {
  const std::string whole = npy_bytes("|b1", "(4, 4)", std::string(16, '\1'));
  ASSERT_EQ(cut_valid(whole, packed_batch({4})).size(), 1u);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(parse_mask_rows(whole.substr(0, bytes), "mask.npy").ok()) << bytes;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char letter : {'\0', '\xFF', '(', '\'', '9'}) {
      std::string bytes = whole;
      bytes[at] = letter;
      const Result<MaskRows> rows = parse_mask_rows(bytes, "mask.npy");
      EXPECT_TRUE(rows.ok() || !rows.error().complaints.front().where.empty());
    }
  }
}

TEST(MaskFile, ReadsKeyLists) {
  const Batch batch = packed_batch({4});
  EXPECT_EQ(cut_valid(R"({"keys": [[0], [1, 0], [-1, 2, 0], []]})", batch),
            (std::vector<MaskSlice>{{0, 2, 0, 2, SliceType::causal}, {2, 3, 0, 1}, {2, 3, 2, 3}}));
  EXPECT_EQ(cut_valid(R"({"keys": []})", packed_batch({0})), std::vector<MaskSlice>{});
  expect_contains(reject_mask(R"({"keys": [[0], [1, 1], [2], [3]]})"), "row 1 names 1 twice");
  expect_contains(reject_mask(R"({"keys": [[0], [4], [2], [3]]})"),
                  "the mask has 4 rows and at least 5 columns");
  expect_contains(reject_mask(R"({"keys": [0, 1]})"), "keys must be a list of lists");
  expect_contains(reject_mask(R"({"keys": [[[0]]]})"), "keys must be a list of lists");
}

TEST(MaskFile, ReadsBlockMasks) {
  // Blocks of 4 x 2 tokens on 6 queries and 5 keys; indices behind the counted ones mean nothing.
  Batch batch = packed_batch({6});
  batch.kv_lengths = {5};
  const std::vector<MaskSlice> slices{{0, 6, 0, 2}, {4, 6, 4, 5}};
  EXPECT_EQ(cut_valid(R"({"kv_num_blocks": [[[1, 2]]], "kv_indices": [[[[0, 9, 9], [2, 0, 7]]]],
                          "full_kv_num_blocks": null, "full_kv_indices": null,
                          "block_size": [4, 2]})",
                      batch),
            slices);
  EXPECT_EQ(cut_valid(R"({"kv_num_blocks": [0, 0], "kv_indices": [[1], [1]], "block_size": [4, 2],
                          "full_kv_num_blocks": [1, 2], "full_kv_indices": [[0, 0], [0, 2]]})",
                      batch),
            slices);
  EXPECT_EQ(cut_valid(R"({"kv_num_blocks": [1], "kv_indices": [[0]]})", packed_batch({100})),
            (std::vector<MaskSlice>{{0, 100, 0, 100}}));
  EXPECT_EQ(cut_valid(R"({"kv_num_blocks": [1, 1], "kv_indices": [[0], [1]], "block_size": 3})",
                      packed_batch({3, 3})),
            (std::vector<MaskSlice>{{0, 3, 0, 3}, {3, 6, 3, 6}}));
  // A block across the border of two sequences shows pairs of both.
  expect_contains(reject_mask(R"({"kv_num_blocks": [1, 1], "kv_indices": [[0], [1]],
                                  "block_size": 3})",
                              packed_batch({2, 4})),
                  "query 0 of sequence 0 see a key of another sequence: key 2");
}

TEST(MaskFile, RefusesBlockMasksThatSayTooLittle) {
  expect_contains(
      reject_mask(R"({"kv_num_blocks": [1], "kv_indices": [[0]],
                                  "full_kv_num_blocks": [0], "full_kv_indices": [[]]})"),
      "row 0 has blocks that are visible in part, and the file does not say which part");
  expect_contains(reject_mask(R"({"kv_num_blocks": [0], "kv_indices": [[0]],
                                  "full_kv_num_blocks": [0]})"),
                  "full_kv_num_blocks and full_kv_indices belong together");
  expect_contains(reject_mask(R"({"kv_num_blocks": [1]})"), "the mask is missing");
  expect_contains(reject_mask("{}"), "the mask is missing");
  expect_contains(reject_mask(R"({"kv_num_blocks": [2], "kv_indices": [[0]]})"),
                  "kv_num_blocks[0] must be from 0 to the 1 entries of kv_indices[0]: 2");
  expect_contains(reject_mask(R"({"kv_num_blocks": [-1], "kv_indices": [[0]]})"),
                  "kv_num_blocks[0] must be from 0 to");
  expect_contains(reject_mask(R"({"kv_num_blocks": [1], "kv_indices": [[-1]]})"),
                  "kv_indices[0] has a negative entry");
  expect_contains(reject_mask(R"({"kv_num_blocks": [1, 1], "kv_indices": [[0]]})"),
                  "different numbers of rows: 2, 1");
  expect_contains(reject_mask(R"({"kv_num_blocks": [[1], [1]], "kv_indices": [[[0]], [[0]]]})"),
                  "for each batch entry or head is not supported: kv_num_blocks has 2 lists");
  expect_contains(reject_mask(R"({"kv_num_blocks": [1], "kv_indices": [[0]], "block_size": 0})"),
                  "block_size must be two numbers above 0");
  expect_contains(reject_mask(R"({"kv_num_blocks": 1, "kv_indices": [[0]]})"),
                  "kv_num_blocks must be a list");
  expect_contains(reject_mask(R"({"keys": [[0]], "block_size": 4})"), "give keys alone");
}

TEST(MaskFile, RefusesOtherJson) {
  expect_contains(reject_mask("{\"keys\":\n [[0], x]}"),
                  "mask.npy:2:8: neither a .npy file nor JSON");
  expect_contains(reject_mask(""), "mask.npy:1:1: neither a .npy file nor JSON");
  expect_contains(reject_mask("[[0]]"), "the file must be an object: a list");
  expect_contains(reject_mask("7"), "the file must be an object: a number");
  expect_contains(reject_mask("null"), "only integers: null");
  expect_contains(reject_mask(R"({"keys": [[0.5]]})"), "only integers: 0.5");
  expect_contains(reject_mask(R"({"keys": [[true]]})"), "only integers: a boolean");
  expect_contains(reject_mask(R"({"keys": [[null]]})"), "only integers: null");
  expect_contains(reject_mask(R"({"keys": [["0"]]})"), "only integers: \"0\"");
  expect_contains(reject_mask(R"({"keys": [[-2]]})"), "a number is negative: -2");
  expect_contains(reject_mask(R"({"keys": [[9999999999]]})"), "larger than 2147483647");
  expect_contains(reject_mask(R"({"keys": [[0], 1]})"), "mixes numbers and lists");
  expect_contains(reject_mask(R"({"keys": [1, [0]]})"), "mixes numbers and lists");
  expect_contains(reject_mask(R"({"keys": [[0], [[0]]]})"), "lists of different depth");
  expect_contains(reject_mask(R"({"keys": {"a": 1}})"), "values must not be objects");
  expect_contains(reject_mask(R"({"key": []})"), "unknown key: \"key\"");
  expect_contains(reject_mask(R"({"keys": [], "keys": []})"), "a key is given twice: \"keys\"");
  expect_contains(reject_mask("{\"keys\": " + std::string(100'000, '[')), "nested too deeply");
}

TEST(MaskFile, MakesEightMillionSlicesAtMost) {
  const auto keys_of = [](int64_t rows, int64_t keys) {
    std::string text = "{\"keys\": [";
    for (int64_t row = 0; row < rows; ++row) {
      text += row > 0 ? ",[" : "[";
      // Three keys apart, and in every row somewhere else.
      for (int64_t key = 0; key < keys; ++key)
        text += fmt::format("{}{}", key > 0 ? "," : "", 6 * key + 3 * (row % 2));
      text += ']';
    }
    return text + "]}";
  };
  Batch batch = packed_batch({4096});
  batch.kv_lengths = {6 * 512};
  EXPECT_EQ(cut_valid(keys_of(4096, 64), batch).size(), 262'144u);
  // The same of more keys, without their text.
  constexpr int64_t kKeys = 2049;
  batch.kv_lengths = {6 * kKeys};
  MaskRows mask;
  mask.rows = 4096;
  mask.columns = 6 * kKeys;
  mask.read = [](int64_t row, std::vector<MaskRun>& runs) {
    runs.clear();
    for (int64_t key = 0; key < kKeys; ++key)
      runs.push_back({6 * key + 3 * (row % 2), 6 * key + 3 * (row % 2) + 1});
  };
  expect_contains(to_text(cut_mask(mask, batch, -1).error()),
                  "the mask makes more slices than the limit of 8388608: 8392704");
}

/// A folder with a mask file and the scenario that names it.
class MaskFileOfAScenario : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "mask_file_test";
    std::filesystem::create_directories(folder_);
    text_.attention += "attn_mask_type = \"slices\"\nmask = { file = \"mask.npy\" }\n";
    text_.batch = "lengths = [2]\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& bytes) const {
    std::ofstream(folder_ / "mask.npy", std::ios::binary) << bytes;
  }
  Result<LoadedScenario> load() const {
    return parse_scenario(text_.join(), (folder_ / "lesson.toml").string());
  }

  std::filesystem::path folder_;
  ScenarioText text_;
};

TEST_F(MaskFileOfAScenario, IsReadNextToItAndPrintedByItsName) {
  write(npy_of({{1, 0}, {1, 1}}));
  const Result<LoadedScenario> loaded = load();
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  const Scenario& scenario = loaded.value().scenario;
  EXPECT_EQ(scenario.attention.slices, (std::vector<MaskSlice>{{0, 2, 0, 2, SliceType::causal}}));
  const std::string printed = print_scenario(scenario);
  expect_contains(printed, "mask = { file = \"mask.npy\" }\n");
  const Result<LoadedScenario> again = parse_scenario(printed, (folder_ / "printed.toml").string());
  ASSERT_TRUE(again.ok()) << to_text(again.error());
  EXPECT_EQ(again.value().scenario, scenario);
}

TEST_F(MaskFileOfAScenario, SaysWhereItIsWrong) {
  Result<LoadedScenario> loaded = load();
  ASSERT_FALSE(loaded.ok());
  expect_contains(to_text(loaded.error()), "lesson.toml:6:17: no such file: ");
  write(npy_of({{1, 0, 0}, {1, 1, 0}}));
  loaded = load();
  ASSERT_FALSE(loaded.ok());
  expect_contains(to_text(loaded.error()), "lesson.toml:6:17: the mask has 2 rows and 3 columns");
  write("{\"keys\": [[0], [2.5]]}");
  loaded = load();
  ASSERT_FALSE(loaded.ok());
  expect_contains(to_text(loaded.error()), "mask.npy:1:1: a mask file may contain only integers");
  text_.attention.replace(text_.attention.find("mask.npy"), 8, "");
  loaded = load();
  ASSERT_FALSE(loaded.ok());
  expect_contains(to_text(loaded.error()), "attention.mask.file is empty");
}

}  // namespace
}  // namespace cpscope
