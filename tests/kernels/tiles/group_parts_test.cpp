// The number of parts that groups of query heads are split into, and the effect in a model of the
// device.
#include "kernels/tiles/group_parts.h"

#include "tests/kernels/tiles/turn_model.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

constexpr int64_t kSumRowBytes = 2 * 128 * 4;

/// One document with head_dim 128.
struct Layer {
  int32_t rows = 0;
  int32_t kv_heads = 1;
  int32_t group = 1;
  bool is_causal = true;
};

TileList list_of_layer(const Layer& layer, const WorkHeads& heads) {
  const BandSlice all{0, layer.rows, 0, layer.rows, -layer.rows, layer.is_causal ? 0 : layer.rows};
  return make_tile_list({&all, 1}, layer.rows, layer.rows, heads, {128, 64, true}, TileOwner::keys);
}

WorkHeads heads_of(const Layer& layer) {
  return {
      .num_heads = layer.kv_heads, .heads_walked = layer.group, .cached_rows = 20'000'000 / 1024};
}

TileList chosen_list_of(const Layer& layer) {
  WorkHeads heads = heads_of(layer);
  heads.group = layer.group;
  heads.sum_row_bytes = kSumRowBytes;
  return list_of_layer(layer, heads);
}

int32_t parts_of(const Layer& layer) { return chosen_list_of(layer).group_parts; }

TEST(GroupParts, AreManyWhereARankHasFewKvHeads) {
  EXPECT_EQ(parts_of({4096, 1, 8}), 8);
  EXPECT_EQ(parts_of({4096, 1, 32}), 8);
  EXPECT_EQ(parts_of({4096, 2, 8}), 4);
  EXPECT_EQ(parts_of({1024, 1, 8}), 8);
  // All-to-all over eight ranks of 32 and 8 heads.
  EXPECT_EQ(parts_of({16384, 1, 4}), 2);
  EXPECT_EQ(parts_of({4096, 1, 4, false}), 4);
  EXPECT_EQ(parts_of({1024, 1, 6}), 6) << "any divisor of the group";
}

TEST(GroupParts, KeepTheRowsOfManyHeadsInTheCache) {
  EXPECT_EQ(parts_of({16384, 8, 8}), 4);
  EXPECT_EQ(parts_of({4096, 8, 8}), 1);
}

TEST(GroupParts, AreWholeGroupsWhereItemsAreMany) {
  EXPECT_EQ(parts_of({4096, 8, 4}), 1);
  EXPECT_EQ(parts_of({8192, 8, 4}), 1);
  EXPECT_EQ(parts_of({16384, 8, 4}), 1);
  EXPECT_EQ(parts_of({4096, 8, 4, false}), 1);
  EXPECT_EQ(parts_of({32768, 8, 8, false}), 1);
  EXPECT_EQ(parts_of({128, 32, 1}), 1) << "a group of one";
  EXPECT_EQ(list_of_layer({4096, 1, 8}, heads_of({4096, 1, 8})).group_parts, 1)
      << "for kernels that do not take parts";
}

TEST(GroupParts, AreTakenAsKvHeadsOfFewerQueryHeads) {
  const TileList list = chosen_list_of({4096, 2, 8});
  ASSERT_EQ(list.group_parts, 4);
  std::vector<int32_t> tiles_of_head(8, 0);
  for (const WorkItem& item : list.work) ++tiles_of_head.at(static_cast<size_t>(item.head));
  EXPECT_EQ(tiles_of_head, std::vector<int32_t>(8, 32));
  // If two heads of a group of eight are streamed at a time, parts of two heads each gain nothing.
  WorkHeads heads = heads_of({1024, 1, 8});
  heads.group = 8;
  heads.sum_row_bytes = kSumRowBytes;
  heads.heads_walked = 2;
  EXPECT_EQ(list_of_layer({1024, 1, 8}, heads).group_parts, 8) << "parts hold neighbours";
}

TEST(GroupParts, AreNotChosenForMuchMemory) {
  WorkHeads heads = heads_of({8192, 1, 64});
  heads.group = 64;
  heads.sum_row_bytes = kSumRowBytes;
  EXPECT_GT(list_of_layer({8192, 1, 64}, heads).group_parts, 1);
  heads.sum_row_bytes = 100'000;
  EXPECT_EQ(list_of_layer({8192, 1, 64}, heads).group_parts, 1);
}

/// Time until dk and dv are complete, in microseconds, by the model of an H100. Its memory delivers
/// 2.26 TB/s in the model's count.
double time_of(const Layer& layer, int32_t parts) {
  WorkHeads heads = heads_of(layer);
  heads.num_heads *= parts;
  heads.heads_walked /= parts;
  TurnCosts costs;
  costs.tile = 2.07;
  const TurnTimes times =
      walk_in_turns(list_of_layer(layer, heads), heads.heads_walked, kCtas, costs);
  const double sums = parts == 1 ? 0.0
                                 : 4.0 + 2.0 * parts * layer.kv_heads * layer.rows *
                                             static_cast<double>(kSumRowBytes) / 2.5e6;
  return times.all * std::max(1.0, times.terabytes_per_second() / 2.26) + sums;
}

TEST(GroupParts, EndAboutAsSoonAsAnyOthersByTheModel) {
  for (const Layer& layer : {Layer{1024, 1, 8},
                             {1024, 8, 4},
                             {2048, 4, 8},
                             {4096, 1, 8},
                             {4096, 4, 8},
                             {4096, 8, 4},
                             {8192, 2, 4},
                             {8192, 2, 8},
                             {16384, 1, 4},
                             {4096, 2, 4, false},
                             {4096, 4, 8, false}}) {
    double soonest = time_of(layer, 1);
    for (int32_t parts = 2; parts <= layer.group; parts *= 2)
      soonest = std::min(soonest, time_of(layer, parts));
    EXPECT_LE(time_of(layer, parts_of(layer)), 1.05 * soonest)
        << fmt::format("{} rows, {} kv heads of {}", layer.rows, layer.kv_heads, layer.group);
  }
}

// "What v8 taught" in kernels/notes/backward.md.
TEST(GroupParts, WinAsMuchByTheModelAsOnADevice) {
  const struct {
    Layer layer;
    double measured;  // one H100: time of whole groups divided by that of parts
  } cases[] = {{{4096, 1, 32}, 5.48}, {{4096, 1, 8}, 4.40}, {{4096, 2, 16}, 2.77},
               {{16384, 1, 4}, 1.57}, {{8192, 2, 4}, 1.51}, {{4096, 4, 8}, 1.41}};
  for (const auto& [layer, measured] : cases) {
    const double won = time_of(layer, 1) / time_of(layer, parts_of(layer));
    EXPECT_GT(won, 0.85 * measured) << layer.rows << " rows, " << layer.kv_heads << " kv heads";
    EXPECT_LT(won, 1.3 * measured) << layer.rows << " rows, " << layer.kv_heads << " kv heads";
  }
}

}  // namespace
}  // namespace cpscope::kernels
