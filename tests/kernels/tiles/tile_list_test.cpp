#include "kernels/tiles/tile_list.h"

#include "tests/kernels/tiles/tile_walk.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

void expect_exact(const Area& area, TileShape shape, TileOwner owner) {
  const TileList list = make_tile_list(area.slices, area.q_rows, area.kv_rows, {2}, shape, owner);
  const int64_t owned = owner == TileOwner::queries ? area.q_rows : area.kv_rows;
  int32_t next = 0;
  for (const OwnedTile& tile : list.tiles) {
    ASSERT_EQ(tile.begin, next);
    ASSERT_LE(tile.end - tile.begin, shape.owned_rows);
    next = tile.end;
  }
  ASSERT_EQ(next, owned) << "a row without an owner is never written";
  ASSERT_EQ(list.work.size(), list.tiles.size() * 2);
  const std::vector<int> counts = walk(area, list, owner);
  for (int64_t q = 0; q < area.q_rows; ++q) {
    for (int64_t k = 0; k < area.kv_rows; ++k) {
      ASSERT_EQ(counts[q * area.kv_rows + k], sees(area, q, k) ? 1 : 0)
          << fmt::format("query row {}, key row {} of {} x {}", q, k, area.q_rows, area.kv_rows);
    }
  }
}

TEST(TileList, ComputesEveryVisiblePairOnceFromEitherSide) {
  std::mt19937 random(20);
  const TileShape shapes[] = {{128, 64}, {64, 128},  {32, 16},        {16, 48},
                              {64, 48},  {192, 128}, {128, 64, true}, {32, 16, true}};
  for (int trial = 0; trial < 272; ++trial) {
    const Area area = random_area(random);
    SCOPED_TRACE(fmt::format("trial {}", trial));
    for (const TileOwner owner : {TileOwner::queries, TileOwner::keys})
      ASSERT_NO_FATAL_FAILURE(expect_exact(area, shapes[trial % 8], owner));
  }
}

/// Checks the turns that the items of one head, in launch order, find at each streamed row.
void expect_turns_in_launch_order(const TileList& list, int32_t num_rows) {
  const int32_t walked = list.shape.walked_rows;
  std::vector<int32_t> added(num_rows, 0), taken(list.num_counters, 0), counter_of(num_rows, -1);
  std::vector<bool> is_opened(num_rows, false), is_closed(num_rows, false);
  for (const WorkItem& item : list.work) {
    if (item.head != 1) continue;
    const OwnedTile& tile = list.tiles[item.tile];
    const TurnRun* next = list.turns.data() + tile.first_turn;
    TurnRun run;
    for (int32_t r = tile.num_runs - 1; r >= 0; --r) {
      for (int32_t end = list.runs[tile.first_run + r].end;
           end > list.runs[tile.first_run + r].begin;) {
        const int32_t begin =
            std::max(list.runs[tile.first_run + r].begin, (end - 1) / walked * walked);
        if (run.num_tiles == 0) {
          run = *next++;
        } else {
          --run.counter;
        }
        --run.num_tiles;
        ASSERT_EQ(std::max(run.turn, 0), taken[run.counter]);
        ++taken[run.counter];
        for (int32_t row = begin; row < end; ++row) {
          ASSERT_TRUE(counter_of[row] < 0 || counter_of[row] == run.counter)
              << "row " << row << " has two counters";
          counter_of[row] = run.counter;
          if (run.turn == kOpeningTurn) {
            ASSERT_EQ(added[row], 0) << "row " << row << " is stored over sums";
            is_opened[row] = true;
          }
          ++added[row];
          ASSERT_FALSE(is_closed[row]) << "row " << row << " is added to when it is closed";
          is_closed[row] = list.runs[tile.first_run + r].closes != 0;
        }
        end = begin;
      }
    }
  }
  for (const RowStretch& rows : list.unopened) {
    EXPECT_EQ(rows.begin / walked, (rows.end - 1) / walked);
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      EXPECT_FALSE(is_opened[row]) << "row " << row;
      is_opened[row] = true;
    }
  }
  EXPECT_EQ(std::count(is_opened.begin(), is_opened.end(), false), 0);
  for (const RowStretch& rows : list.unclosed) {
    for (int32_t row = rows.begin; row < rows.end; ++row) {
      EXPECT_FALSE(is_closed[row]) << "row " << row;
      is_closed[row] = true;
    }
  }
  EXPECT_EQ(std::count(is_closed.begin(), is_closed.end(), false), 0);
}

/// Checks the stationary rows without a partner in the list.
void expect_gaps(const Area& area, const TileList& list, TileOwner owner) {
  const int32_t words = (list.shape.owned_rows + 31) / 32;
  for (const OwnedTile& tile : list.tiles) {
    ASSERT_TRUE(tile.first_gap < 0 ||
                tile.first_gap + words <= static_cast<int32_t>(list.gaps.size()));
    for (int32_t row = tile.begin; row < tile.end; ++row) {
      bool has_partner = false;
      const int64_t others = owner == TileOwner::queries ? area.kv_rows : area.q_rows;
      for (int64_t other = 0; other < others && !has_partner; ++other)
        has_partner = owner == TileOwner::queries ? sees(area, row, other) : sees(area, other, row);
      const int32_t bit = row - tile.begin;
      const bool is_gap =
          tile.first_gap >= 0 && (list.gaps[tile.first_gap + bit / 32] >> bit % 32 & 1) != 0;
      ASSERT_EQ(is_gap, !has_partner) << "row " << row;
    }
  }
}

TEST(TileList, ComputesEveryVisiblePairOnceWhereTilesBeginAtOtherBlocks) {
  std::mt19937 random(11);
  int num_shifted = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const auto rows = static_cast<int32_t>(50 + random() % 400);
    const bool is_causal = random() % 2 == 0;
    Area area{rows, rows, {{0, rows, 0, rows, -rows, is_causal ? 0 : rows}}};
    if (random() % 2 == 0) area.slices[0].hi = -static_cast<int32_t>(random() % 20);
    const TileList list =
        make_tile_list(area.slices, rows, rows,
                       {.num_heads = 1 + static_cast<int32_t>(random() % 3), .is_never_cut = true},
                       {.owned_rows = 8, .walked_rows = 4, .by_blocks = true, .ctas_together = 24},
                       TileOwner::keys);
    num_shifted += list.draws_late ? 1 : 0;
    const std::vector<int> counts = walk(area, list, TileOwner::keys);
    for (int64_t q = 0; q < rows; ++q) {
      for (int64_t k = 0; k < rows; ++k)
        ASSERT_EQ(counts[q * rows + k], sees(area, q, k) ? 1 : 0)
            << trial << ": " << q << ", " << k;
    }
  }
  EXPECT_GT(num_shifted, 20);
}

// Results must be the same bits however many pieces the heads come in.
TEST(TileList, AddsInTheSameOrderForEveryPieceOfTheHeads) {
  std::mt19937 random(3);
  const auto below = [&](int32_t end) { return static_cast<int32_t>(random() % end); };
  for (int trial = 0; trial < 400; ++trial) {
    const bool is_causal = below(4) > 0;
    const int32_t head_dim = below(2) == 0 ? 64 : 128;
    const int32_t documents = 1 + below(12), length = 64 << below(6);
    std::vector<BandSlice> slices;
    int32_t rows = 0;
    for (int32_t i = 0; i < documents; ++i) {
      const int32_t end = rows + length / 2 + below(length);
      slices.push_back({rows, end, rows, end, rows - end, is_causal ? 0 : end - rows});
      rows = end;
    }
    const int32_t group = below(3) == 0 ? 4 : 1, all_heads = 1 + below(32);
    const auto list_of = [&](int32_t num_heads, int32_t most_at_once) {
      return make_tile_list(slices, rows, rows,
                            {.num_heads = num_heads,
                             .heads_walked = group,
                             .cached_rows = 20'000'000 / (8 * head_dim),
                             .most_at_once = most_at_once,
                             .group = group,
                             .num_heads_of_step = all_heads,
                             .sum_row_bytes = 8 * head_dim},
                            {128, head_dim == 64 ? 128 : 64, true}, TileOwner::keys);
    };
    const TileList whole = list_of(all_heads, 0);
    for (int i = 0; i < 2; ++i) {
      const int32_t num_heads = 1 + below(all_heads), most = below(1 + num_heads);
      const TileList piece = list_of(num_heads, most);
      const auto first_turns = [](const TileList& list) {
        std::vector<int32_t> turns;
        for (const OwnedTile& tile : list.tiles) turns.push_back(tile.first_turn);
        return turns;
      };
      ASSERT_TRUE(piece.turns == whole.turns && first_turns(piece) == first_turns(whole) &&
                  piece.walks_by_tile == whole.walks_by_tile &&
                  piece.group_parts == whole.group_parts)
          << num_heads << " of " << all_heads << " heads, " << most << " at once, " << documents
          << " documents of about " << length << " rows, group " << group
          << (is_causal ? ", causal" : ", full");
    }
  }
}

TEST(TileList, AssignsTurnsAtBlocksInLaunchOrder) {
  std::mt19937 random(21);
  const TileShape shapes[] = {{128, 64, true}, {128, 128, true}, {32, 16, true}};
  for (int trial = 0; trial < 90; ++trial) {
    const Area area = random_area(random);
    SCOPED_TRACE(fmt::format("trial {}", trial));
    for (const TileOwner owner : {TileOwner::queries, TileOwner::keys}) {
      const TileList list =
          make_tile_list(area.slices, area.q_rows, area.kv_rows, {3}, shapes[trial % 3], owner);
      const int64_t walked_side = owner == TileOwner::queries ? area.kv_rows : area.q_rows;
      expect_turns_in_launch_order(list, static_cast<int32_t>(walked_side));
      ASSERT_NO_FATAL_FAILURE(expect_gaps(area, list, owner));
    }
  }
}

TEST(TileList, LetsLongDocumentsInOneBlockTakeTurnsApart) {
  // Block 9 ends one document and begins another; tile 4 holds keys of both.
  const BandSlice documents[] = {{0, 600, 0, 600, -1000, 0}, {600, 1300, 600, 1300, -1000, 0}};
  const TileList list = make_tile_list(documents, 1300, 1300, {}, {128, 64, true}, TileOwner::keys);
  EXPECT_EQ(list.num_counters, 21 + 1);
  for (const TileRun& run : list.runs)
    EXPECT_FALSE(run.begin < 600 && 600 < run.end) << run.begin << " to " << run.end;
  // Short documents share their counters: more tiles would cost more than the wait.
  const BandSlice short_ones[] = {{0, 100, 0, 100, -1000, 0}, {100, 300, 100, 300, -1000, 0}};
  EXPECT_EQ(make_tile_list(short_ones, 300, 300, {}, {128, 64, true}, TileOwner::keys).num_counters,
            5);
}

TEST(TileList, KeepsTilesInsideBlocks) {
  // Rows 100 to 300 have keys: by blocks of 64 that is a part, two whole blocks and a part.
  const BandSlice slice{100, 300, 0, 128, -1000, 1000};
  const TileList list = make_tile_list({&slice, 1}, 400, 128, {}, {128, 64, true}, TileOwner::keys);
  ASSERT_EQ(list.runs.size(), 3u);
  EXPECT_EQ(list.runs[0].begin, 100);
  EXPECT_EQ(list.runs[1].begin, 128);
  EXPECT_EQ(list.runs[2].begin, 256);
  EXPECT_EQ(list.runs[2].end, 300);
  EXPECT_EQ(list.runs[1].is_masked, 0);
  EXPECT_EQ(list.visited_cells, 4 * 64 * 128);
  // A tile that is alone with its rows stores them.
  EXPECT_EQ(list.turns, (std::vector<TurnRun>{{4, 3, kOpeningTurn}}));
  EXPECT_EQ(list.num_counters, 4);
  EXPECT_EQ(list.unopened,
            (std::vector<RowStretch>{{0, 64}, {64, 100}, {300, 320}, {320, 384}, {384, 400}}));
  EXPECT_TRUE(list.gaps.empty());
}

TEST(TileList, MasksOnlyTheDiagonalOfACausalSquare) {
  const BandSlice causal{0, 1024, 0, 1024, -2000, 0};
  for (const TileOwner owner : {TileOwner::queries, TileOwner::keys}) {
    const TileList list = make_tile_list({&causal, 1}, 1024, 1024, {}, {128, 64}, owner);
    int64_t masked = 0, whole = 0;
    for (const TileRun& run : list.runs)
      (run.is_masked != 0 ? masked : whole) += (run.end - run.begin) / 64;
    EXPECT_EQ(masked, 16);
    EXPECT_EQ(whole, 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7));
    EXPECT_EQ(list.visited_cells, (16 + 56) * 64 * 128);
    EXPECT_EQ(list.num_range_sets, 1);
  }
}

TEST(TileList, GivesARowWithTwoStretchesOfKeysTwoRangeSets) {
  const std::vector<BandSlice> slices = {{0, 10, 0, 20, -100, 100}, {0, 10, 40, 60, -100, 100}};
  const TileList list = make_tile_list(slices, 10, 60, {}, {128, 64}, TileOwner::queries);
  EXPECT_EQ(list.num_range_sets, 2);
  EXPECT_EQ(list.ranges[0].hi, 20);
  EXPECT_EQ(list.ranges[10].lo, 40);
}

/// "tile/head" in launch order.
std::string work_of(std::span<const BandSlice> slices, int64_t rows, const WorkHeads& heads) {
  const TileList list = make_tile_list(slices, rows, rows, heads, {128, 64}, TileOwner::queries);
  std::string order;
  for (const WorkItem& item : list.work) order += fmt::format("{}/{} ", item.tile, item.head);
  return order;
}

TEST(TileList, StartsWithTheLongestTileInEachSectionAndEndsWithShortOnes) {
  const BandSlice causal{0, 512, 0, 512, -2000, 0};
  // 2, 4, 6 and 8 tiles of keys, of two heads at a time; one of 4 is half of the longest.
  EXPECT_EQ(work_of({&causal, 1}, 512, {.num_heads = 4, .cached_rows = 1024}),
            "3/0 3/1 2/0 2/1 3/2 3/3 2/2 2/3 1/0 1/1 1/2 1/3 0/0 0/1 0/2 0/3 ");
  // A section has all heads that read one head's keys.
  EXPECT_EQ(work_of({&causal, 1}, 512, {.num_heads = 4, .heads_sharing = 2, .cached_rows = 512}),
            "3/0 3/1 2/0 2/1 3/2 3/3 2/2 2/3 1/0 1/1 1/2 1/3 0/0 0/1 0/2 0/3 ");
}

TEST(TileList, HoldsBackNoMoreShortTilesThanHalfALongestOneForEveryCta) {
  const BandSlice causal{0, 512, 0, 512, -2000, 0};
  const TileList list =
      make_tile_list({&causal, 1}, 512, 512, {.num_heads = 100, .cached_rows = 512}, {128, 64},
                     TileOwner::queries);
  // 88 heads with 6 tiles of keys in their short tiles, for 132 CTAs.
  for (size_t i = 0; i < 12 * 4; ++i) {
    EXPECT_EQ(list.work[i].head, static_cast<int32_t>(i / 4)) << "item " << i;
    EXPECT_EQ(list.work[i].tile, static_cast<int32_t>(3 - i % 4)) << "item " << i;
  }
  for (size_t i = 48; i < 48 + 2 * 88; ++i)
    EXPECT_GE(list.work[i].tile, 2) << "item " << i << " is short";
}

TEST(TileList, KeepsTilesOfOneLengthInTheirSections) {
  const BandSlice full{0, 512, 0, 512, -2000, 2000};
  EXPECT_EQ(work_of({&full, 1}, 512, {.num_heads = 2, .cached_rows = 512}),
            "0/0 1/0 2/0 3/0 0/1 1/1 2/1 3/1 ");
}

TEST(TileList, TakesAllHeadsOfAFewDocumentsBeforeTheNextOnes) {
  // Documents of 128, 128, 256, 128 and 128 rows, with one row of tiles each.
  const BandSlice documents[] = {{0, 128, 0, 128, -2000, 2000},
                                 {128, 256, 128, 256, -2000, 2000},
                                 {256, 512, 256, 512, -2000, 2000},
                                 {512, 640, 512, 640, -2000, 2000},
                                 {640, 768, 640, 768, -2000, 2000}};
  WorkHeads heads{.num_heads = 2, .cached_rows = 512};
  // Tiles 2 and 3 stream four tiles of keys and come first; the others are half as long, so they
  // come last, in the order of their sections.
  EXPECT_EQ(work_of(documents, 768, heads), "2/0 2/1 3/0 3/1 0/0 0/1 1/0 1/1 4/0 4/1 5/0 5/1 ");
  // A document that does not fit with all of its heads is taken head by head.
  heads.cached_rows = 256;
  EXPECT_EQ(work_of(documents, 768, heads), "2/0 3/0 2/1 3/1 0/0 0/1 1/0 1/1 4/0 4/1 5/0 5/1 ");
  // Later heads start only when earlier ones are done.
  heads.most_at_once = 1;
  heads.cached_rows = 1024;
  const BandSlice alike[] = {documents[0], documents[1]};
  EXPECT_EQ(work_of(alike, 256, heads), "0/0 1/0 0/1 1/1 ");
  heads.most_at_once = 0;
  EXPECT_EQ(work_of(alike, 256, heads), "0/0 0/1 1/0 1/1 ");
}

TEST(TileList, StartsWithTheDocumentsThatHaveTheLongestTiles) {
  // Documents of 64, 192, 64 and 256 rows, two at a time: tiles stream 1, 3, 1 and 4 tiles of keys.
  const BandSlice documents[] = {{0, 128, 0, 64, -2000, 2000},
                                 {128, 256, 64, 256, -2000, 2000},
                                 {256, 384, 256, 320, -2000, 2000},
                                 {384, 512, 320, 576, -2000, 2000}};
  const TileList list = make_tile_list(documents, 512, 576, {.num_heads = 1, .cached_rows = 320},
                                       {128, 64}, TileOwner::queries);
  std::string order;
  for (const WorkItem& item : list.work) order += fmt::format("{} ", item.tile);
  EXPECT_EQ(order, "3 1 0 2 ");
}

TEST(TileList, CountsTheHeadsThatASectionWalks) {
  // Tiles stream 3, 4, 3 and 4 tiles of keys; two documents have 448 keys.
  const BandSlice documents[] = {{0, 128, 0, 192, -2000, 2000},
                                 {128, 256, 192, 448, -2000, 2000},
                                 {256, 384, 448, 640, -2000, 2000},
                                 {384, 512, 640, 896, -2000, 2000}};
  const auto tiles_of_head_0 = [&](const WorkHeads& heads) {
    const TileList list = make_tile_list(documents, 512, 896, heads, {128, 64}, TileOwner::queries);
    std::string order;
    for (const WorkItem& item : list.work) {
      if (item.head == 0) order += fmt::format("{} ", item.tile);
    }
    return order;
  };
  const std::string two_by_two = "1 0 3 2 ", alone = "1 3 0 2 ";
  EXPECT_EQ(tiles_of_head_0({.num_heads = 1, .cached_rows = 448}), two_by_two);
  EXPECT_EQ(tiles_of_head_0({.num_heads = 1, .cached_rows = 447}), alone);
  // Two heads are streamed in these cases: by four stationary heads, or by one, one after another.
  EXPECT_EQ(tiles_of_head_0({.num_heads = 4, .heads_sharing = 2, .cached_rows = 896}), two_by_two);
  EXPECT_EQ(tiles_of_head_0({.num_heads = 4, .heads_sharing = 2, .cached_rows = 895}), alone);
  EXPECT_EQ(tiles_of_head_0({.num_heads = 1, .heads_walked = 2, .cached_rows = 896}), two_by_two);
  EXPECT_EQ(tiles_of_head_0({.num_heads = 1, .heads_walked = 2, .cached_rows = 895}), alone);
  // The cache holds 256 keys of four heads, which two heads stream.
  const BandSlice full{0, 256, 0, 256, -2000, 2000};
  EXPECT_EQ(work_of({&full, 1}, 256, {.num_heads = 4, .heads_walked = 2, .cached_rows = 1024}),
            "0/0 0/1 1/0 1/1 0/2 0/3 1/2 1/3 ");
}

/// Tiles of head 0 in launch order, three documents of eight tiles.
std::string tiles_of_documents(const WorkHeads& heads) {
  const BandSlice documents[] = {{0, 1024, 0, 1024, -5000, 5000},
                                 {1024, 2048, 1024, 2048, -5000, 5000},
                                 {2048, 3072, 2048, 3072, -5000, 5000}};
  const TileList list =
      make_tile_list(documents, 3072, 3072, heads, {128, 64, true}, TileOwner::keys);
  std::string order;
  for (const WorkItem& item : list.work) {
    if (item.head == 0) order += fmt::format("{} ", item.tile);
  }
  return order;
}

TEST(TileList, TakesAFewDocumentsAtATimeByBlocks) {
  const std::string two_by_two = "0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15 16 17 18 19 20 21 22 23 ";
  const std::string one_by_one = "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 ";
  EXPECT_EQ(tiles_of_documents({.num_heads = 8}), two_by_two);
  EXPECT_EQ(tiles_of_documents({.num_heads = 16}), one_by_one);
  // Tiles of several streamed heads are at as many places of them: half as many chains.
  EXPECT_EQ(tiles_of_documents({.num_heads = 8, .heads_walked = 4}), one_by_one);
  // Eight chains of 1024 rows, a fifth of which may miss the cache; and four.
  constexpr int64_t kCachedRows = 8 * 1024 * 4 / 5 + 1;
  EXPECT_EQ(tiles_of_documents({.num_heads = 4, .cached_rows = kCachedRows}), two_by_two);
  EXPECT_EQ(tiles_of_documents({.num_heads = 4, .cached_rows = kCachedRows - 1}), one_by_one);
}

bool is_walked_by_tile(std::vector<BandSlice> slices, int32_t heads_walked = 4) {
  const int32_t rows =
      std::max_element(slices.begin(), slices.end(), [](const BandSlice& a, const BandSlice& b) {
        return a.q1 < b.q1;
      })->q1;
  return make_tile_list(slices, rows, slices.back().k1,
                        {.num_heads = 8, .heads_walked = heads_walked}, {128, 64, true},
                        TileOwner::keys)
      .walks_by_tile;
}

TEST(TileList, IsWalkedByTileWhereTilesOfManyLengthsBeginAtOneRow) {
  const BandSlice causal{0, 4096, 0, 4096, -5000, 0};
  EXPECT_TRUE(is_walked_by_tile({causal}));
  EXPECT_TRUE(
      is_walked_by_tile({{0, 1024, 0, 1024, -5000, 0}, {1024, 4096, 1024, 4096, -5000, 0}}));
  // Query rows of the first and the last of four chunks.
  EXPECT_TRUE(
      is_walked_by_tile({{0, 1024, 0, 1024, -5000, 0}, {1024, 2048, 0, 4096, -5000, 3072}}));
  EXPECT_FALSE(is_walked_by_tile({causal}, 1)) << "of one head both ways are the same";
  EXPECT_FALSE(is_walked_by_tile({{0, 32768, 0, 32768, -40000, 0}})) << "very long";
  EXPECT_FALSE(is_walked_by_tile({{0, 4096, 0, 4096, -5000, 5000}})) << "of one length";
  EXPECT_FALSE(is_walked_by_tile({{0, 4096, 0, 4096, -1024, 0}})) << "a window";
  EXPECT_FALSE(is_walked_by_tile({{0, 4096, 0, 4096, -3072, 0}})) << "a window of most rows";
  std::vector<BandSlice> short_ones;
  for (int32_t begin = 0; begin < 4096; begin += 128)
    short_ones.push_back({begin, begin + 128, begin, begin + 128, -128, 0});
  EXPECT_FALSE(is_walked_by_tile(short_ones)) << "short documents";
}

/// Every head takes each tile once, and all heads in one order.
void expect_one_order(const TileList& list, int32_t num_heads) {
  std::vector<std::vector<int32_t>> of_head(static_cast<size_t>(num_heads));
  for (const WorkItem& item : list.work)
    of_head[static_cast<size_t>(item.head)].push_back(item.tile);
  for (const std::vector<int32_t>& tiles : of_head) EXPECT_EQ(tiles, of_head.front());
  std::vector<int32_t> sorted = of_head.front();
  std::sort(sorted.begin(), sorted.end());
  for (size_t t = 0; t < list.tiles.size(); ++t) EXPECT_EQ(sorted.at(t), static_cast<int32_t>(t));
}

/// Heads of the first items.
std::string heads_of_first(const TileList& list, size_t count) {
  std::string heads;
  for (size_t i = 0; i < count; ++i) heads += fmt::format("{} ", list.work[i].head);
  return heads;
}

TEST(TileList, TakesChainsOneAfterTheOtherByTile) {
  const auto list_of = [](const std::vector<BandSlice>& slices, int32_t rows, WorkHeads heads) {
    TileList list = make_tile_list(slices, rows, rows, heads, {128, 64, true}, TileOwner::keys);
    EXPECT_TRUE(list.walks_by_tile);
    expect_one_order(list, heads.num_heads);
    return list;
  };
  // 64 tiles of 64 steps each would need only one chain at a time, if all CTAs did not begin at
  // once.
  const std::vector<BandSlice> one = {{0, 8192, 0, 8192, -9000, 0}};
  EXPECT_EQ(heads_of_first(list_of(one, 8192, {.num_heads = 8, .heads_walked = 4}), 8),
            "0 1 2 3 0 1 2 3 ");
  // With much more work the start costs little.
  const std::vector<BandSlice> longer = {{0, 16384, 0, 16384, -20000, 0}};
  EXPECT_EQ(heads_of_first(list_of(longer, 16384, {.num_heads = 32, .heads_walked = 4}), 8),
            "0 0 0 0 0 0 0 0 ");
  // Short documents are interleaved, with all heads: four chains of eight tiles each are not
  // enough.
  std::vector<BandSlice> many;
  for (int32_t begin = 0; begin < 8192; begin += 1024)
    many.push_back({begin, begin + 1024, begin, begin + 1024, -1024, 0});
  const TileList list = list_of(many, 8192, {.num_heads = 2, .heads_walked = 4});
  EXPECT_EQ(heads_of_first(list, 8), "0 1 0 1 0 1 0 1 ");
  std::string documents;
  for (size_t i = 0; i < 8; ++i) documents += fmt::format("{} ", list.work[i].tile / 8);
  EXPECT_EQ(documents, "0 0 1 1 2 2 3 3 ");
  // Heads that come in pieces, four at a time.
  const TileList pieces =
      list_of(longer, 16384, {.num_heads = 8, .heads_walked = 4, .most_at_once = 1});
  const auto last_of_4 = std::find_if(pieces.work.rbegin(), pieces.work.rend(),
                                      [](const WorkItem& item) { return item.head < 4; });
  EXPECT_EQ(pieces.work.rend() - last_of_4, 4 * 128);
}

TEST(TileList, HoldsBackTilesOfOneLengthTogetherByBlocks) {
  // Tiles of keys stream 4, 3, 2 and 1 blocks; half of 4 blocks for each of 132 CTAs are 264.
  const BandSlice causal{0, 512, 0, 512, -2000, 0};
  const auto last_of_head_0 = [&](int32_t num_heads) {
    const TileList list = make_tile_list({&causal, 1}, 512, 512, {.num_heads = num_heads},
                                         {128, 128, true}, TileOwner::keys);
    std::string order;  // tiles after the last head has begun
    bool has_begun = false;
    for (const WorkItem& item : list.work) {
      has_begun |= item.head == num_heads - 1;
      if (has_begun && item.head == 0) order += fmt::format("{} ", item.tile);
    }
    return order;
  };
  EXPECT_EQ(last_of_head_0(264), "3 ");
  EXPECT_EQ(last_of_head_0(263), "2 3 ");
}

TEST(TileList, TakesSixteenHeadsAtATimeByBlocks) {
  const BandSlice full{0, 512, 0, 512, -2000, 2000};
  const TileList list =
      make_tile_list({&full, 1}, 512, 512, {20}, {128, 64, true}, TileOwner::keys);
  for (size_t i = 0; i < list.work.size(); ++i)
    EXPECT_EQ(list.work[i].head < 16, i < 4 * 16) << "item " << i;
}

TEST(TileList, BeginsHeadsOfACausalDocumentOneAfterAnother) {
  // The 16 longest of 32 tiles; the short ones of all heads come last.
  const BandSlice causal{0, 4096, 0, 4096, -4096, 0};
  const WorkHeads heads{.num_heads = 8, .cached_rows = 40'000};
  const TileList list =
      make_tile_list({&causal, 1}, 4096, 4096, heads, {128, 128, true}, TileOwner::keys);
  std::vector<std::vector<int32_t>> tiles_of(8);
  std::string begun;  // tiles that the head before has begun when a head begins
  for (const WorkItem& item : list.work) {
    std::vector<int32_t>& tiles = tiles_of[static_cast<size_t>(item.head)];
    if (tiles.empty() && item.head > 0)
      begun += fmt::format("{} ", tiles_of[static_cast<size_t>(item.head) - 1].size());
    tiles.push_back(item.tile);
  }
  EXPECT_EQ(begun, "3 3 3 3 3 3 3 ");  // two tiles and the one at the same place
  std::vector<int32_t> in_turn(32);
  std::iota(in_turn.begin(), in_turn.end(), 0);
  for (const std::vector<int32_t>& tiles : tiles_of) EXPECT_EQ(tiles, in_turn);
}

TEST(TileList, TakesFewerHeadsAtATimeByBlocksWhereThatTakesLong) {
  const auto heads_at_once = [](int32_t rows, bool is_causal) {
    const BandSlice slice{0, rows, 0, rows, -rows, is_causal ? 0 : rows};
    const TileList list =
        make_tile_list({&slice, 1}, rows, rows, {16}, {128, 64, true}, TileOwner::keys);
    int32_t heads = 0;  // before the first one comes again
    while (list.work[static_cast<size_t>(heads)].head == heads) ++heads;
    return heads;
  };
  EXPECT_EQ(heads_at_once(4096, false), 16);
  EXPECT_EQ(heads_at_once(16384, true), 8);
  EXPECT_EQ(heads_at_once(16384, false), 4);
  // Documents are shorter than all of them together.
  const BandSlice documents[] = {{0, 8192, 0, 8192, -9000, 9000},
                                 {8192, 24576, 8192, 24576, -17000, 17000}};
  const WorkHeads heads{.num_heads = 16, .cached_rows = 1'000'000};
  const TileList list =
      make_tile_list(documents, 24576, 24576, heads, {128, 64, true}, TileOwner::keys);
  EXPECT_EQ(list.work[15].head, 15);
}

/// Causal documents, one after another.
Area make_documents(const std::vector<int32_t>& lengths) {
  Area area;
  for (const int32_t length : lengths) {
    const auto begin = static_cast<int32_t>(area.q_rows);
    area.slices.push_back({begin, begin + length, begin, begin + length, -length, 0});
    area.q_rows = area.kv_rows = begin + length;
  }
  return area;
}

std::vector<RowStretch> query_tiles_of(const Area& area, TileShape shape) {
  std::vector<RowStretch> rows;
  const TileList list =
      make_tile_list(area.slices, area.q_rows, area.kv_rows, {}, shape, TileOwner::queries);
  for (const OwnedTile& tile : list.tiles) rows.push_back({tile.begin, tile.end});
  return rows;
}

TEST(TileList, CutsLongDocumentsToQueryTilesFromTheirEnds) {
  const Area area = make_documents({100, 150, 600, 576, 90, 700});
  const std::vector<RowStretch> expected{
      {0, 192},     {192, 250},                              // short ones, in tiles with others
      {250, 274},   {274, 466},   {466, 658},   {658, 850},  // 24 rows and three tiles
      {850, 1042},  {1042, 1234}, {1234, 1426},              // three tiles
      {1426, 1516},                                          // between long ones
      {1516, 1640}, {1640, 1832}, {1832, 2024}, {2024, 2216}};
  EXPECT_EQ(query_tiles_of(area, {192, 80}), expected);
}

TEST(TileList, OwnsEveryRowOfAnItemWithoutBands) {
  const TileList list = make_tile_list({}, 300, 0, {}, {128, 64}, TileOwner::queries);
  ASSERT_EQ(list.tiles.size(), 3u);
  EXPECT_TRUE(list.runs.empty());
  EXPECT_EQ(list.tiles[2].end, 300);
}

}  // namespace
}  // namespace cpscope::kernels
