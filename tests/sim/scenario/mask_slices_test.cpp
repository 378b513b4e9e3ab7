#include "sim/scenario/mask_slices.h"

#include "sim/scenario/scenario_names.h"
#include "tests/sim/scenario/mask_cells.h"
#include "tests/sim/scenario/scenario_text.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace cpscope {
namespace {

class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 random_;
};

std::vector<MaskSlice> made_slices(const MaskGenerator& mask, const Batch& batch) {
  const Result<std::vector<MaskSlice>> slices = generate_slices(mask, batch);
  EXPECT_TRUE(slices.ok()) << to_text(slices.error());
  return slices ? slices.value() : std::vector<MaskSlice>();
}

/// A scenario text with this mask.
ScenarioText with_mask(const std::string& mask, const std::string& lengths) {
  ScenarioText text;
  text.attention += "attn_mask_type = \"slices\"\nmask = { " + mask + " }\n";
  text.batch = "lengths = [" + lengths + "]\n";
  return text;
}

TEST(MaskSlices, OfBlockCausalAreItsBlocks) {
  Draws draws(1);
  for (int round = 0; round < 200; ++round) {
    MaskGenerator mask{.name = "block_causal", .block = draws.between(1, 9)};
    Batch batch = packed_batch({draws.between(0, 20), draws.between(0, 20)});
    if (round % 3 == 0) batch.kv_lengths = {draws.between(0, 20), draws.between(0, 20)};
    expect_cells(
        batch, made_slices(mask, batch),
        [&](size_t, int64_t i, int64_t j) { return i / mask.block >= j / mask.block; },
        fmt::format("block {}, lengths {} and {}", mask.block, batch.lengths, batch.kv_lengths));
  }
}

TEST(MaskSlices, OfAPrefixTreeAreAncestorsAndOwnPast) {
  Draws draws(2);
  for (int round = 0; round < 300; ++round) {
    MaskGenerator mask{.name = "prefix_tree"};
    const int64_t segments = draws.between(1, 8);
    std::vector<size_t> segment_of;  // [position]
    for (int64_t n = 0; n < segments; ++n) {
      mask.parents.push_back(draws.between(-1, n - 1));
      mask.lengths.push_back(draws.between(1, 4));
      segment_of.insert(segment_of.end(), static_cast<size_t>(mask.lengths.back()),
                        static_cast<size_t>(n));
    }
    const auto tokens = static_cast<int64_t>(segment_of.size());
    Batch batch = packed_batch({tokens, tokens});
    if (round % 2 == 0) {
      batch = packed_batch({5, tokens, 3});
      mask.sequence = 1;
    }
    const auto descends = [&](size_t segment, size_t from) {
      for (auto at = static_cast<int64_t>(segment); at >= 0;
           at = mask.parents[static_cast<size_t>(at)]) {
        if (at == static_cast<int64_t>(from)) return true;
      }
      return false;
    };
    expect_cells(
        batch, made_slices(mask, batch),
        [&](size_t s, int64_t i, int64_t j) {
          if (j > i) return false;
          if (mask.sequence >= 0 && s != 1) return true;
          return descends(segment_of[static_cast<size_t>(i)], segment_of[static_cast<size_t>(j)]);
        },
        fmt::format("parents {}, lengths {}", mask.parents, mask.lengths));
  }
}

TEST(MaskSlices, OfImageGroupsAreCausalAndBothWaysInside) {
  Draws draws(3);
  for (int round = 0; round < 200; ++round) {
    const Batch batch = packed_batch({draws.between(0, 14), draws.between(1, 14)});
    MaskGenerator mask{.name = "image_groups"};
    int64_t first = 0;
    std::vector<int64_t> first_tokens;
    for (const int64_t length : batch.lengths) {
      first_tokens.push_back(first);
      for (int64_t at = first; at < first + length;) {
        const int64_t begin = std::min(first + length, at + draws.between(0, 4));
        const int64_t end = std::min(first + length, begin + draws.between(0, 5));
        if (begin < end) mask.groups.push_back({begin, end});
        at = end + (begin == end ? 1 : 0);
      }
      first += length;
    }
    std::reverse(mask.groups.begin(), mask.groups.end());
    const std::vector<MaskSlice> slices = made_slices(mask, batch);
    EXPECT_LE(slices.size(), batch.lengths.size() + mask.groups.size());
    expect_cells(
        batch, slices,
        [&](size_t s, int64_t i, int64_t j) {
          const auto shares = [&](const TokenGroup& group) {
            const int64_t q = first_tokens[s] + i, k = first_tokens[s] + j;
            return group.begin <= q && q < group.end && group.begin <= k && k < group.end;
          };
          return j <= i || std::any_of(mask.groups.begin(), mask.groups.end(), shares);
        },
        fmt::format("lengths {}, {} groups", batch.lengths, mask.groups.size()));
  }
}

TEST(MaskSlices, OfGlobalTokensAreThoseAndAWindow) {
  Draws draws(4);
  for (int round = 0; round < 400; ++round) {
    const Batch batch = packed_batch({draws.between(0, 14), draws.between(0, 14)});
    MaskGenerator mask{.name = "global_tokens",
                       .count = draws.between(0, 5),
                       .causal = draws.between(0, 1) == 1,
                       .window_left = draws.between(-1, 6),
                       .window_right = draws.between(-1, 6)};
    const std::vector<MaskSlice> slices = made_slices(mask, batch);
    EXPECT_LE(slices.size(), 2 * 5u);
    expect_cells(
        batch, slices,
        [&](size_t, int64_t i, int64_t j) {
          if (i < mask.count || j < mask.count) return true;
          if (mask.causal && j > i) return false;
          return (mask.window_left < 0 || i - j <= mask.window_left) &&
                 (mask.window_right < 0 || j - i <= mask.window_right);
        },
        fmt::format("lengths {}, count {}, causal {}, window {}, {}", batch.lengths, mask.count,
                    mask.causal, mask.window_left, mask.window_right));
  }
}

TEST(MaskSlices, OfBlockDiffusionAreTheThreeMasksOfItsTraining) {
  Draws draws(5);
  for (int round = 0; round < 200; ++round) {
    const Batch batch = packed_batch({2 * draws.between(0, 11), 2 * draws.between(0, 11)});
    MaskGenerator mask{.name = "block_diffusion", .block = draws.between(1, 8)};
    expect_cells(
        batch, made_slices(mask, batch),
        [&](size_t s, int64_t i, int64_t j) {
          const int64_t half = batch.lengths[s] / 2;
          const bool q_is_clean = i >= half, k_is_clean = j >= half;
          const int64_t q_block = i % half / mask.block, k_block = j % half / mask.block;
          const bool block_diagonal = q_block == k_block && q_is_clean == k_is_clean;
          const bool offset_block_causal = q_block > k_block && k_is_clean && !q_is_clean;
          const bool block_causal = q_block >= k_block && k_is_clean && q_is_clean;
          return block_diagonal || offset_block_causal || block_causal;
        },
        fmt::format("block {}, lengths {}", mask.block, batch.lengths));
  }
}

TEST(MaskSlices, AreFew) {
  const auto count = [](const MaskGenerator& mask, const std::vector<int64_t>& lengths) {
    return made_slices(mask, packed_batch(lengths)).size();
  };
  EXPECT_EQ(count({.name = "block_causal", .block = 1}, {1000}), 1u);
  EXPECT_EQ(count({.name = "block_causal", .block = 64}, {1000}), 16u);
  EXPECT_EQ(count({.name = "block_diffusion", .block = 1}, {1000}), 3u);
  EXPECT_EQ(count({.name = "block_diffusion", .block = 4}, {32}), 10u);
  EXPECT_EQ(count({.name = "global_tokens", .count = 4}, {1000}), 2u);
  EXPECT_EQ(count({.name = "global_tokens", .count = 4, .window_left = 100}, {1000}), 4u);
  EXPECT_EQ(count({.name = "global_tokens", .count = 4, .causal = false}, {1000}), 1u);
  EXPECT_EQ(count({.name = "image_groups", .groups = {{5, 9}, {9, 12}}}, {1000}), 3u);
  // A chain is one causal triangle; each answer to a question sees it through one slice for all.
  EXPECT_EQ(count({.name = "prefix_tree", .parents = {-1, 0, 1}, .lengths = {3, 4, 5}}, {12}), 1u);
  EXPECT_EQ(count({.name = "prefix_tree", .parents = {-1, 0, 0, 0}, .lengths = {4, 2, 2, 2}}, {10}),
            4u);
}

TEST(MaskSlices, MakeNoMoreThanTheLimit) {
  const auto text_of = [](const MaskGenerator& mask, const std::vector<int64_t>& lengths) {
    const Result<std::vector<MaskSlice>> slices = generate_slices(mask, packed_batch(lengths));
    EXPECT_FALSE(slices.ok());
    return slices ? "" : to_text(slices.error());
  };
  expect_contains(text_of({.name = "block_causal", .block = 2}, {2'000'000'000}),
                  "block_causal makes more slices than the limit of 100000: 1000000000");
  expect_contains(text_of({.name = "block_diffusion", .block = 10}, {2'000'000}),
                  "makes more slices than the limit of 100000: 299998");
  // Two chains that alternate: a segment sees half of those before it, none next to another.
  MaskGenerator tree{.name = "prefix_tree"};
  for (int64_t n = 0; n < 1000; ++n) {
    tree.parents.push_back(n < 2 ? -1 : n - 2);
    tree.lengths.push_back(1);
  }
  expect_contains(text_of(tree, {1000}), "prefix_tree makes more slices than the limit");
}

TEST(ScenarioMask, MakesTheSlicesOfItsName) {
  const Scenario scenario = parse_valid(with_mask("name = \"block_causal\", block = 4", "10, 5"));
  EXPECT_EQ(scenario.attention.slices,
            (std::vector<MaskSlice>{
                {0, 4, 0, 4}, {4, 8, 0, 8}, {8, 10, 0, 10}, {10, 14, 10, 14}, {14, 15, 10, 15}}));
  ASSERT_TRUE(scenario.attention.generator.has_value());
  EXPECT_EQ(scenario.attention.generator->block, 4);
}

TEST(ScenarioMask, PrintsBackAsItWasWritten) {
  for (const char* mask :
       {"name = \"block_causal\", block = 4", "name = \"block_diffusion\", block = 4",
        "name = \"prefix_tree\", parents = [-1, 0, 0], lengths = [4, 3, 3]",
        "name = \"prefix_tree\", parents = [-1, 0], lengths = [4, 6], sequence = 1",
        "name = \"image_groups\", groups = [[2, 5], [12, 14]]",
        "name = \"image_groups\", groups = []", "name = \"global_tokens\", count = 2",
        "name = \"global_tokens\", count = 2, causal = false, window = [3, 3]"}) {
    const Scenario scenario = parse_valid(with_mask(mask, "10, 10"));
    const std::string printed = print_scenario(scenario);
    expect_contains(printed, fmt::format("mask = {{ {} }}\n", mask));
    EXPECT_EQ(printed.find("slices = ["), std::string::npos) << printed;
    const Result<LoadedScenario> again = parse_scenario(printed, "printed.toml");
    ASSERT_TRUE(again.ok()) << to_text(again.error()) << printed;
    EXPECT_EQ(again.value().scenario, scenario);
  }
}

TEST(ScenarioMask, IsAlsoATableOfItsOwn) {
  ScenarioText text;
  text.attention +=
      "attn_mask_type = \"slices\"\n[attention.mask]\nname = \"block_causal\"\nblock = 10\n";
  EXPECT_EQ(parse_valid(text).attention.slices.size(), 1u + 2u);
}

TEST(ScenarioMask, NamesTheKeyAtFault) {
  const auto reject = [](const std::string& mask, const std::string& lengths = "10, 20") {
    return parse_invalid(with_mask(mask, lengths));
  };
  expect_contains(reject("name = \"block_casual\", block = 4"),
                  "lesson.toml:6:17: attention.mask.name is not one of its choices: "
                  "\"block_casual\"; did you mean \"block_causal\"?");
  expect_contains(reject("block = 4"), "a required key is missing: attention.mask.name");
  expect_contains(reject("name = \"block_causal\""),
                  "a required key is missing: attention.mask.block");
  expect_contains(reject("name = \"block_causal\", block = 0"),
                  "attention.mask.block must be an integer from 1 to");
  expect_contains(reject("name = \"block_causal\", file = \"a.npy\", block = 1"),
                  "attention.mask.file is given next to name: \"a.npy\"");
  expect_contains(reject("name = \"block_causal\", blok = 1"),
                  "unknown key in [attention.mask]: \"blok\"; did you mean block?");
  expect_contains(reject("name = \"block_diffusion\", block = 4", "10, 9"),
                  "block_diffusion needs an even number of tokens: sequence 1 has 9");
  expect_contains(reject("name = \"prefix_tree\", parents = [-1, 1], lengths = [4, 6]"),
                  "lesson.toml:6:47: attention.mask.parents[1] must be an earlier segment: 1");
  expect_contains(reject("name = \"prefix_tree\", parents = [-1], lengths = [4, 6]"),
                  "attention.mask.parents must have one entry per segment: 1 entries, 2 lengths");
  expect_contains(
      reject("name = \"prefix_tree\", parents = [-1, 0], lengths = [4, 6]"),
      "attention.mask.lengths must sum to the tokens of sequence 1: 10 and 20; sequence "
      "= N gives one sequence the tree");
  expect_contains(reject("name = \"prefix_tree\", parents = [-1], lengths = [4], sequence = 2"),
                  "attention.mask.sequence is not in the batch: 2, the batch has 2");
  expect_contains(reject("name = \"image_groups\", groups = [[1, 2], [8, 12]]"),
                  "lesson.toml:6:51: attention.mask.groups[1] must lie in one sequence: [8, 12), "
                  "sequence 0 is [0, 10)");
  expect_contains(reject("name = \"image_groups\", groups = [[4, 8], [1, 5]]"),
                  "attention.mask.groups[0] overlaps another group: [4, 8), that one ends at 5");
  expect_contains(reject("name = \"image_groups\", groups = [[29, 31]]"),
                  "attention.mask.groups[0] must lie in one sequence: [29, 31)");
  expect_contains(reject("name = \"image_groups\", groups = [[5, 4]]"),
                  "attention.mask.groups[0] must be two tokens, begin and end: [5, 4]");
  expect_contains(reject("name = \"global_tokens\""),
                  "a required key is missing: attention.mask.count");
  expect_contains(reject("name = \"global_tokens\", count = 1, window = [1]"),
                  "attention.mask.window must have 2 entries, left and right: 1");
  expect_contains(reject("name = \"block_causal\", block = 2", "2000000000"),
                  "lesson.toml:6:41: block_causal makes more slices than the limit");
}

TEST(ScenarioMask, NeedsTheSameTokensOnBothSides) {
  ScenarioText text = with_mask("name = \"image_groups\", groups = []", "10");
  text.batch += "kv_lengths = [12]\n";
  expect_contains(parse_invalid(text),
                  "image_groups needs self attention: kv_lengths differ from lengths");
  text = with_mask("name = \"block_causal\", block = 5", "10");
  text.batch += "kv_lengths = [12]\n";
  EXPECT_EQ(parse_valid(text).attention.slices.size(), 2u);
}

TEST(ScenarioMask, StandsInPlaceOfSlices) {
  ScenarioText text = with_mask("name = \"block_causal\", block = 4", "10");
  text.attention += "slices = []\n";
  expect_contains(parse_invalid(text), "attention.mask is given next to slices");
  text.attention = "heads = 8\nhead_dim = 64\nattn_mask_type = \"slices\"\n";
  expect_contains(parse_invalid(text), "a required key is missing: attention.slices");
  text.attention += "mask = 3\n";
  expect_contains(parse_invalid(text), "attention.mask must be a table: 3");
}

TEST(ScenarioMask, SaysWhichKeysAreUnused) {
  ScenarioText text;
  text.attention += "mask = { name = \"block_causal\", block = 4 }\n";
  Result<LoadedScenario> loaded = parse(text);
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  EXPECT_EQ(loaded.value().warnings,
            (std::vector<std::string>{
                "attention.mask does not apply to attn_mask_type causal and is unused"}));
  EXPECT_FALSE(loaded.value().scenario.attention.generator.has_value());
  loaded = parse(with_mask("name = \"block_causal\", block = 4, count = 3, sequence = 1", "10"));
  ASSERT_FALSE(loaded.ok());
  loaded = parse(with_mask("name = \"block_causal\", block = 4, count = 3", "10"));
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  EXPECT_EQ(loaded.value().warnings,
            (std::vector<std::string>{
                "attention.mask.count does not apply to mask block_causal and is unused"}));
  EXPECT_EQ(loaded.value().scenario.attention.generator->count, 0);
}

}  // namespace
}  // namespace cpscope
