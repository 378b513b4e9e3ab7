// Masks that list the keys of each row, drawn by a seed.
#include "sim/scenario/sparse_rows.h"

#include "sim/scenario/mask_slices.h"
#include "tests/sim/scenario/mask_cells.h"
#include "tests/sim/scenario/scenario_text.h"

#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

/// [sequence][query] the keys that it sees, positions in the sequence.
using SeenKeys = std::vector<std::vector<std::set<int64_t>>>;

SeenKeys seen_keys(const MaskGenerator& mask, const std::vector<int64_t>& lengths) {
  const Batch batch = packed_batch(lengths);
  const Result<std::vector<MaskSlice>> slices = generate_slices(mask, batch);
  EXPECT_TRUE(slices.ok()) << to_text(slices.error());
  SeenKeys seen;
  if (!slices) return seen;
  const std::vector<std::vector<int>> cells = count_cells(batch, slices.value());
  int64_t first = 0;
  for (const int64_t length : lengths) {
    seen.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      std::set<int64_t> keys;
      const std::vector<int>& row = cells[static_cast<size_t>(first + i)];
      for (size_t key = 0; key < row.size(); ++key) {
        EXPECT_LE(row[key], 1) << "a cell of two slices";
        if (row[key] > 0) keys.insert(static_cast<int64_t>(key) - first);
      }
      seen.back().push_back(keys);
    }
    first += length;
  }
  return seen;
}

TEST(SparseRows, OfTopKHoldTheWindowTheFirstKeysAndOthersUpToTheirNumber) {
  for (const MaskGenerator& mask :
       {MaskGenerator{.name = "top_k", .count = 3, .window_left = 4, .window_right = 0, .keys = 12},
        MaskGenerator{.name = "top_k", .keys = 1}, MaskGenerator{.name = "top_k", .keys = 1000},
        MaskGenerator{.name = "top_k", .count = 2, .keys = 2},
        MaskGenerator{.name = "top_k", .window_left = 0, .keys = 7, .seed = 9}}) {
    const SeenKeys seen = seen_keys(mask, {40, 0, 1, 60});
    ASSERT_EQ(seen.size(), 4u);
    for (const auto& sequence : seen) {
      for (int64_t i = 0; i < std::ssize(sequence); ++i) {
        const std::set<int64_t>& keys = sequence[static_cast<size_t>(i)];
        EXPECT_EQ(std::ssize(keys), std::min(mask.keys, i + 1)) << "row " << i;
        EXPECT_LE(*keys.rbegin(), i);
        EXPECT_GE(*keys.begin(), 0);
        const int64_t near = mask.window_left < 0 ? i + 1 : i - mask.window_left;
        for (int64_t key = std::max<int64_t>(0, near); key <= i; ++key)
          EXPECT_TRUE(keys.contains(key)) << i << " sees " << key;
        for (int64_t key = 0; key < std::min(mask.count, i + 1); ++key)
          EXPECT_TRUE(keys.contains(key)) << i << " sees " << key;
      }
    }
  }
}

TEST(SparseRows, OfBlockTopKAreTheOwnBlockUpToTheRowAndWholeEarlierOnes) {
  const MaskGenerator mask{.name = "block_top_k", .block = 8, .blocks = 2, .seed = 5};
  const SeenKeys seen = seen_keys(mask, {61, 7});
  for (const auto& sequence : seen) {
    for (int64_t i = 0; i < std::ssize(sequence); ++i) {
      const std::set<int64_t>& keys = sequence[static_cast<size_t>(i)];
      const int64_t own = i / 8;
      std::set<int64_t> blocks;
      for (const int64_t key : keys) blocks.insert(key / 8);
      EXPECT_EQ(std::ssize(blocks), 1 + std::min<int64_t>(2, own)) << "row " << i;
      EXPECT_EQ(*blocks.rbegin(), own);
      EXPECT_EQ(std::ssize(keys), 8 * (std::ssize(blocks) - 1) + i % 8 + 1) << "row " << i;
      EXPECT_EQ(*keys.rbegin(), i);
      if (i % 8 == 0) continue;
      std::set<int64_t> before = sequence[static_cast<size_t>(i - 1)];
      before.insert(i);
      EXPECT_EQ(before, keys) << "row " << i << " chooses as the row before";
    }
  }
}

TEST(SparseRows, DependOnSeedSequenceAndPositionAlone) {
  MaskGenerator mask{.name = "top_k", .keys = 6};
  const SeenKeys seen = seen_keys(mask, {30, 50});
  EXPECT_EQ(seen, seen_keys(mask, {30, 50}));
  EXPECT_EQ(seen[1], seen_keys(mask, {17, 50})[1]) << "whatever comes before";
  const SeenKeys twins = seen_keys(mask, {40, 40});
  EXPECT_NE(twins[0], twins[1]) << "sequences choose for themselves";
  mask.seed = 2;
  EXPECT_NE(seen, seen_keys(mask, {30, 50}));
}

TEST(SparseRows, ChooseEveryEarlierKeyEquallyOften) {
  // Row 20 chooses 5 of 21 keys; over 4000 seeds each 952 times, give or take 27.
  std::vector<int64_t> chosen(21, 0);
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    const SeenKeys seen = seen_keys({.name = "top_k", .keys = 5, .seed = seed}, {21});
    for (const int64_t key : seen.front().back()) ++chosen[static_cast<size_t>(key)];
  }
  for (size_t key = 0; key < chosen.size(); ++key)
    EXPECT_NEAR(static_cast<double>(chosen[key]), 952.4, 5 * 27) << "key " << key;
}

TEST(SparseRows, AreRejectedByNameWhereTheyDoNotFit) {
  const auto with = [](const std::string& mask) {
    ScenarioText text;
    text.attention += "attn_mask_type = \"slices\"\nmask = { " + mask + " }\n";
    return text;
  };
  for (const auto& [mask, reason] :
       {std::pair{"name = \"top_k\"", "give the number of keys that a row sees"},
        std::pair{"name = \"top_k\", keys = 0", "attention.mask.keys"},
        std::pair{"name = \"top_k\", keys = 5, count = 2, window = [3, 0]",
                  "must hold the window and the first keys: 5 is less than 6"},
        std::pair{"name = \"top_k\", keys = 5, window = [3, 1]", "has no right side in top_k: 1"},
        std::pair{"name = \"block_top_k\", blocks = 1", "give the tokens of a block"},
        std::pair{"name = \"block_top_k\", block = 4", "the number of earlier blocks"},
        std::pair{"name = \"top_k\", keys = 4, seed = -1", "attention.mask.seed"}})
    expect_contains(parse_invalid(with(mask)), reason);
  ScenarioText cross = with("name = \"top_k\", keys = 4");
  cross.batch = "lengths = [10]\nkv_lengths = [20]\n";
  expect_contains(parse_invalid(cross), "top_k needs self attention");
  ScenarioText large = with("name = \"top_k\", keys = 100000");
  large.batch = "lengths = [2000000]\n";
  expect_contains(parse_invalid(large), "top_k draws more keys than the limit of 33554432");
  large = with("name = \"top_k\", keys = 10");
  large.batch = "lengths = [1000000]\n";
  expect_contains(parse_invalid(large), "more slices than the limit of 8388608");
}

TEST(SparseRows, PrintBackAsTheyWereWritten) {
  for (const char* mask :
       {"name = \"top_k\", count = 2, window = [3, 0], keys = 9, seed = 77",
        "name = \"top_k\", keys = 1", "name = \"block_top_k\", block = 4, blocks = 0",
        "name = \"block_top_k\", block = 3, blocks = 2, seed = 0"}) {
    ScenarioText text;
    text.attention += fmt::format("attn_mask_type = \"slices\"\nmask = {{ {} }}\n", mask);
    const Scenario scenario = parse_valid(text);
    const Result<LoadedScenario> again = parse_scenario(print_scenario(scenario), "printed.toml");
    ASSERT_TRUE(again.ok()) << to_text(again.error());
    EXPECT_EQ(again.value().scenario, scenario) << print_scenario(scenario);
    EXPECT_TRUE(again.value().warnings.empty());
  }
}

}  // namespace
}  // namespace cpscope
