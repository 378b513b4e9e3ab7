#include "sim/plan/layout_lpt_local.h"

#include "sim/plan/layout_lpt.h"
#include "sim/plan/plan_summary.h"
#include "tests/sim/plan/dense_mask.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using Held = std::vector<std::vector<int64_t>>;

/// A batch cut into chunks: what the dealer is given.
struct Chunks {
  BatchSlots slots;
  std::vector<int64_t> areas;
  ChunkReach reach;
};

Chunks cut(Scenario scenario, int64_t chunk) {
  scenario.parallel.layout = LayoutKind::lpt;
  scenario.parallel.dispatch_chunk = chunk;
  Chunks chunks;
  chunks.slots = layout_of(scenario).slots;
  const MaskBands mask = compile_mask(scenario.attention, chunks.slots.sequences);
  chunks.areas = chunk_areas(mask, chunks.slots, chunk);
  chunks.reach = find_reach(mask, chunks.slots, chunk);
  return chunks;
}

int64_t largest_load(const std::vector<int64_t>& areas, const Held& held) {
  int64_t largest = 0;
  for (const std::vector<int64_t>& chunks : held) {
    int64_t load = 0;
    for (const int64_t chunk : chunks) load += areas[static_cast<size_t>(chunk)];
    largest = std::max(largest, load);
  }
  return largest;
}

/// Pairs (rank, key chunk) that are seen and not held, from the words of the header.
int64_t count_slowly(const ChunkReach& reach, const Held& held, bool same_kv) {
  const auto ranks = static_cast<int64_t>(held.size());
  int64_t foreign = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t key = 0; key < reach.key_chunks; ++key) {
      bool is_seen = false, is_held = !same_kv && key * ranks / reach.key_chunks == rank;
      for (const int64_t chunk : held[static_cast<size_t>(rank)]) {
        is_seen = is_seen || (reach.row(chunk)[key / 64] >> (key % 64) & 1) != 0;
        is_held = is_held || (same_kv && chunk == key);
      }
      foreign += is_seen && !is_held ? 1 : 0;
    }
  }
  return foreign;
}

/// Documents of random lengths, most short and a few long, that add up to `tokens`.
std::vector<int64_t> documents(int64_t tokens, int64_t median, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> lengths;
  while (tokens > 0) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    const auto length =
        static_cast<int64_t>(static_cast<double>(median) * std::pow(16.0, 2 * uniform - 1));
    lengths.push_back(std::clamp<int64_t>(length, 1, tokens));
    tokens -= lengths.back();
  }
  return lengths;
}

TEST(NearKeys, ReachIsWhatTheMaskShows) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t chunk = 1 + static_cast<int64_t>(random() % 5);
    Scenario scenario = make_cross_case(documents(24, 4, seed), documents(24, 4, seed), 2);
    while (scenario.batch.kv_lengths.size() < 3) scenario.batch.kv_lengths.push_back(2);
    scenario.batch.lengths.resize(scenario.batch.kv_lengths.size(), 3);
    for (int64_t& length : scenario.batch.kv_lengths) length += static_cast<int64_t>(random() % 4);
    scenario.batch.slots = scenario.batch.lengths;
    scenario.batch.kv_slots = scenario.batch.kv_lengths;
    if (seed % 3 == 1) scenario.attention.window_left = 2;
    if (seed % 3 == 2) scenario.attention.mask_type = MaskType::padding_causal_bottom_right;
    const Chunks chunks = cut(scenario, chunk);
    std::vector<uint64_t> expected(chunks.reach.bits.size(), 0);
    for (size_t s = 0; s < chunks.slots.sequences.size(); ++s) {
      const SequenceSlot& slot = chunks.slots.sequences[s];
      for (int64_t i = 0; i < slot.q_valid; ++i) {
        for (int64_t j = 0; j < slot.kv_valid; ++j) {
          if (!sees(scenario, static_cast<int64_t>(s), i, j)) continue;
          const int64_t row = (slot.q_begin + i) / chunk, key = (slot.kv_begin + j) / chunk;
          expected[static_cast<size_t>(row * chunks.reach.words + key / 64)] |= uint64_t{1}
                                                                                << (key % 64);
        }
      }
    }
    EXPECT_EQ(chunks.reach.bits, expected) << "seed " << seed << "\n" << show(scenario);
  }
}

TEST(NearKeys, AreDealtWithinTwoPerCentOfLongestFirstAndNeverWorse) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const auto ranks = static_cast<int32_t>(1 + seed % 9);
    const int64_t tokens = 64 * ranks + static_cast<int64_t>(seed * 37 % 400);
    const bool same_kv = seed % 4 != 3;
    Scenario scenario = same_kv ? make_case(documents(tokens, 40, seed), ranks)
                                : make_cross_case({tokens}, {tokens / 2 + 30}, ranks);
    scenario.batch.pad_between_seqs = seed % 2 == 0;
    if (seed % 5 == 0) scenario.attention.window_left = 30;
    const Chunks chunks = cut(scenario, 8 + static_cast<int64_t>(seed % 3) * 8);
    const auto n = static_cast<int64_t>(chunks.areas.size());
    const Held held = deal_near_keys(chunks.areas, chunks.reach, ranks, same_kv);
    const Held lpt = deal_longest_first(chunks.areas, ranks);
    const std::string where = "seed " + std::to_string(seed) + "\n" + show(scenario);

    std::set<int64_t> dealt;
    for (const std::vector<int64_t>& mine : held) {
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end())) << where;
      EXPECT_FALSE(mine.empty()) << where;
      EXPECT_LE(static_cast<int64_t>(mine.size()), (n + ranks - 1) / ranks) << where;
      dealt.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(static_cast<int64_t>(dealt.size()), n) << where;
    EXPECT_LE(static_cast<double>(largest_load(chunks.areas, held)),
              1.02 * static_cast<double>(largest_load(chunks.areas, lpt)))
        << where;
    const int64_t foreign = count_slowly(chunks.reach, held, same_kv);
    EXPECT_LE(foreign, count_slowly(chunks.reach, lpt, same_kv)) << where;
    EXPECT_EQ(foreign, count_foreign_chunks(chunks.reach, held, same_kv)) << where;
    if (HasFailure()) return;
  }
}

/// Fewest foreign chunks over all deals that the header allows.
int64_t fewest_of_all(const Chunks& chunks, int32_t ranks) {
  const auto n = static_cast<int64_t>(chunks.areas.size());
  const int64_t bound = local_load_bound(chunks.areas, ranks), capacity = (n + ranks - 1) / ranks;
  int64_t fewest = INT64_MAX;
  for (int64_t code = 0; code < static_cast<int64_t>(std::pow(ranks, n)); ++code) {
    Held held(static_cast<size_t>(ranks));
    for (int64_t chunk = 0, rest = code; chunk < n; ++chunk, rest /= ranks)
      held[static_cast<size_t>(rest % ranks)].push_back(chunk);
    const bool is_allowed = std::all_of(held.begin(), held.end(), [&](const auto& mine) {
      return !mine.empty() && static_cast<int64_t>(mine.size()) <= capacity;
    });
    if (is_allowed && largest_load(chunks.areas, held) <= bound)
      fewest = std::min(fewest, count_slowly(chunks.reach, held, true));
  }
  return fewest;
}

TEST(NearKeys, AreAlmostAsNearAsInTheBestOfAllDeals) {
  int64_t seen = 0, fewest = 0, lpt = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const int32_t ranks = seed % 2 == 0 ? 2 : 3;
    const Chunks chunks = cut(make_case(documents(ranks * 24, 10, seed), ranks), 8);
    seen += count_foreign_chunks(chunks.reach,
                                 deal_near_keys(chunks.areas, chunks.reach, ranks, true), true);
    lpt += count_foreign_chunks(chunks.reach, deal_longest_first(chunks.areas, ranks), true);
    fewest += fewest_of_all(chunks, ranks);
  }
  EXPECT_GE(seen, fewest);
  EXPECT_LE(static_cast<double>(seen), 1.05 * static_cast<double>(fewest)) << "lpt: " << lpt;
  EXPECT_LT(fewest, lpt) << "these batches could not tell the deals apart";
}

TEST(NearKeys, KeepAWindowInOnePieceOnEveryRank) {
  Scenario scenario = make_case({65536}, 8);
  scenario.attention.window_left = 1023;
  const Chunks chunks = cut(scenario, 512);
  const Held held = deal_near_keys(chunks.areas, chunks.reach, 8, true);
  // Each rank but the first sees the 1023 keys before its own, which lie in two chunks.
  EXPECT_EQ(count_slowly(chunks.reach, held, true), 7 * 2);
  for (const std::vector<int64_t>& mine : held) EXPECT_EQ(mine.back() - mine.front(), 15);
}

TEST(NearKeys, MoveLessThanHalfOfWhatLongestFirstMovesForPackedDocuments) {
  Scenario scenario =
      make_case(documents(131072, 4096, 5), 16, LayoutKind::lpt, CommType::group_cast);
  const PlanSummary lpt = summarise(plan_of(scenario));
  scenario.parallel.layout = LayoutKind::lpt_local;
  const PlanSummary local = summarise(plan_of(scenario));
  EXPECT_EQ(local.visible_pairs, lpt.visible_pairs);
  EXPECT_LT(2 * local.kv_bytes_moved, lpt.kv_bytes_moved);
  EXPECT_EQ(local.kv_bytes_moved, local.kv_bytes_necessary);
}

TEST(LptLocalLayout, RefusesMoreChunksThanItWeighs) {
  Scenario scenario = make_case({kMaxLocalChunks + 1}, 2, LayoutKind::lpt_local);
  scenario.batch.pad_between_seqs = false;
  scenario.parallel.dispatch_chunk = 1;
  const Result<Layout> layout = make_layout(scenario);
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.error().kind, ErrorKind::refused);
  EXPECT_EQ(to_text(layout.error()),
            "layout lpt_local weighs at most 16384 chunks: 16385 chunks of 1 tokens; use a larger "
            "dispatch_chunk, or lpt");
}

}  // namespace
}  // namespace cpscope::tests
