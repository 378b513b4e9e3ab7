#include "sim/plan/layout_lpt_local.h"

#include "sim/plan/key_holder.h"
#include "sim/plan/layout_lpt.h"
#include "sim/plan/plan_summary.h"
#include "sim/scenario/generator.h"
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

/// A batch cut into chunks: the input of the search.
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

/// Pairs (rank, key chunk) that are seen and not held, from the definition in the header.
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

/// Foreign keys of a set of chunks, one key at a time.
int64_t foreign_of(const ChunkReach& reach, const std::set<int64_t>& chunks,
                   const std::set<int64_t>& held) {
  int64_t foreign = 0;
  for (int64_t key = 0; key < reach.key_chunks; ++key) {
    const bool is_seen = std::any_of(chunks.begin(), chunks.end(), [&](int64_t chunk) {
      return has_bit(reach.row(chunk)[key / 64], key);
    });
    foreign += is_seen && held.count(key) == 0 ? 1 : 0;
  }
  return foreign;
}

/// Rows with one range of ones each, as masks make them, or with single ones.
ChunkReach random_reach(int64_t chunks, int64_t key_chunks, std::mt19937_64& random) {
  ChunkReach reach{chunks, key_chunks, (std::max(chunks, key_chunks) + 63) / 64, {}, {}};
  reach.bits.assign(static_cast<size_t>(chunks * reach.words), 0);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(key_chunks));
    const auto end = begin + static_cast<int64_t>(random() % 90);
    const uint64_t gap = 1 + random() % 3;
    for (int64_t key = begin; key < std::min(end, key_chunks); key += static_cast<int64_t>(gap))
      set_bit(reach.bits[static_cast<size_t>(chunk * reach.words + key / 64)], key);
    reach.spans.push_back(begin < end
                              ? ChunkReach::Span{begin / 64, (std::min(end, key_chunks) + 63) / 64}
                              : ChunkReach::Span{});
  }
  return reach;
}

TEST(KeyHolder, CountsWhatSetsCount) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 60; ++round) {
    const bool same_kv = round % 3 != 2;
    const ChunkReach reach = random_reach(150, same_kv ? 150 : 200, random);
    std::vector<uint64_t> keys(static_cast<size_t>(reach.words), 0);
    std::set<int64_t> mine, held;
    for (int64_t key = 60; !same_kv && key < 90; ++key) {
      set_bit(keys[static_cast<size_t>(key / 64)], key);
      held.insert(key);
    }
    KeyHolder holder(reach, keys, same_kv);
    const auto foreign_with = [&](int64_t gone, int64_t came) {
      std::set<int64_t> chunks = mine, has = held;
      chunks.erase(gone);
      if (came >= 0) chunks.insert(came);
      if (same_kv) has = chunks;
      return foreign_of(reach, chunks, has);
    };
    const auto other = [&] {
      int64_t chunk = 0;
      while (mine.count(chunk = static_cast<int64_t>(random() % 150)) != 0) {
      }
      return chunk;
    };
    for (int step = 0; step < 24; ++step) {
      const int64_t came = other();
      if (step < 8) {
        const int64_t more = foreign_with(-1, came) - holder.foreign();
        EXPECT_EQ(holder.count_added(came), more);
        EXPECT_EQ(holder.count_added(came, more), more);
        EXPECT_GE(holder.count_added(came, more - 1), more);
        holder.add(came);
      } else {
        const int64_t gone = holder.chunks()[random() % holder.chunks().size()];
        const int64_t more = foreign_with(gone, came) - holder.foreign();
        EXPECT_EQ(holder.count_exchanged(gone, came), more);
        EXPECT_GE(more, -holder.count_lone(gone) - (same_kv && holder.sees(came) ? 1 : 0));
        holder.exchange(gone, came);
        mine.erase(gone);
      }
      mine.insert(came);
      ASSERT_EQ(holder.foreign(), foreign_with(-1, -1)) << "round " << round << ", step " << step;
    }
  }
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
          const int64_t row = (slot.q_valid_begin() + i) / chunk,
                        key = (slot.kv_valid_begin() + j) / chunk;
          expected[static_cast<size_t>(row * chunks.reach.words + key / 64)] |= uint64_t{1}
                                                                                << (key % 64);
        }
      }
    }
    EXPECT_EQ(chunks.reach.bits, expected) << "seed " << seed << "\n" << show(scenario);
    for (int64_t row = 0; row < chunks.reach.chunks; ++row) {
      const auto [begin, end] = chunks.reach.spans[static_cast<size_t>(row)];
      for (int64_t w = 0; w < chunks.reach.words; ++w)
        EXPECT_TRUE((begin <= w && w < end) || chunks.reach.row(row)[w] == 0) << "seed " << seed;
    }
  }
}

TEST(NearKeys, AreAssignedWithinTwoPerCentOfLongestFirstAndNeverWorse) {
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
    const Held held = assign_near_keys(chunks.areas, chunks.reach, ranks, same_kv);
    const Held lpt = assign_longest_first(chunks.areas, ranks);
    const std::string where = "seed " + std::to_string(seed) + "\n" + show(scenario);

    std::set<int64_t> assigned;
    for (const std::vector<int64_t>& mine : held) {
      EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end())) << where;
      EXPECT_FALSE(mine.empty()) << where;
      EXPECT_LE(static_cast<int64_t>(mine.size()), (n + ranks - 1) / ranks) << where;
      assigned.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(static_cast<int64_t>(assigned.size()), n) << where;
    EXPECT_LE(static_cast<double>(largest_load(chunks.areas, held)),
              1.02 * static_cast<double>(largest_load(chunks.areas, lpt)))
        << where;
    const int64_t foreign = count_slowly(chunks.reach, held, same_kv);
    EXPECT_LE(foreign, count_slowly(chunks.reach, lpt, same_kv)) << where;
    EXPECT_EQ(foreign, count_foreign_chunks(chunks.reach, held, same_kv)) << where;
    if (HasFailure()) return;
  }
}

/// The chunks of every `group` consecutive ranks.
Held join(const Held& held, int32_t group) {
  Held joined(held.size() / static_cast<size_t>(group));
  for (size_t rank = 0; rank < held.size(); ++rank) {
    auto& chunks = joined[rank / static_cast<size_t>(group)];
    chunks.insert(chunks.end(), held[rank].begin(), held[rank].end());
  }
  return joined;
}

/// Fewest foreign chunks over all assignments that the header allows.
int64_t fewest_of_all(const Chunks& chunks, int32_t ranks, int32_t group) {
  const auto n = static_cast<int64_t>(chunks.areas.size());
  const int32_t holders = ranks / group;
  const int64_t capacity = (n + ranks - 1) / ranks * group;
  const int64_t fullest =
      largest_load(chunks.areas, join(assign_longest_first(chunks.areas, ranks), group));
  int64_t fewest = INT64_MAX;
  for (int64_t code = 0; code < static_cast<int64_t>(std::pow(holders, n)); ++code) {
    Held held(static_cast<size_t>(holders));
    for (int64_t chunk = 0, rest = code; chunk < n; ++chunk, rest /= holders)
      held[static_cast<size_t>(rest % holders)].push_back(chunk);
    const bool is_allowed = std::all_of(held.begin(), held.end(), [&](const auto& mine) {
      const auto count = static_cast<int64_t>(mine.size());
      return count >= group && count <= capacity;
    });
    if (is_allowed && largest_load(chunks.areas, held) * 50 <= fullest * 51)
      fewest = std::min(fewest, count_slowly(chunks.reach, held, true));
  }
  return fewest;
}

TEST(NearKeys, AreAlmostAsNearAsInTheBestOfAllAssignments) {
  for (const int32_t group : {1, 2}) {
    int64_t seen = 0, fewest = 0, lpt = 0;
    for (uint64_t seed = 0; seed < 80; ++seed) {
      const int32_t holders = seed % 2 == 0 ? 2 : 3, ranks = holders * group;
      Scenario scenario = make_case(documents(holders * 24, 10, seed), ranks);
      scenario.batch.pad_between_seqs = group == 1;
      const Chunks chunks = cut(scenario, group == 1 ? 8 : 8 + static_cast<int64_t>(seed % 4 / 2));
      const Held held = assign_near_keys(chunks.areas, chunks.reach, ranks, true, group);
      seen += count_slowly(chunks.reach, join(held, group), true);
      lpt +=
          count_slowly(chunks.reach, join(assign_longest_first(chunks.areas, ranks), group), true);
      fewest += fewest_of_all(chunks, ranks, group);
    }
    EXPECT_GE(seen, fewest);
    EXPECT_LE(static_cast<double>(seen), 1.05 * static_cast<double>(fewest)) << "lpt: " << lpt;
    EXPECT_LT(fewest, lpt) << "these batches could not tell the assignments apart";
  }
}

TEST(NearKeys, AreWeighedOnceForTheRanksOfAGroup) {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    const auto group = static_cast<int32_t>(2 + seed % 3);
    const int32_t ranks = group * static_cast<int32_t>(1 + seed % 4);
    Scenario scenario =
        make_case(documents(40 * ranks + static_cast<int64_t>(seed), 40, seed), ranks);
    scenario.batch.pad_between_seqs = seed % 2 == 0;
    const Chunks chunks = cut(scenario, 8);
    const auto n = static_cast<int64_t>(chunks.areas.size());
    const Held held = assign_near_keys(chunks.areas, chunks.reach, ranks, true, group);
    const Held lpt = assign_longest_first(chunks.areas, ranks);
    const std::string where = "seed " + std::to_string(seed) + "\n" + show(scenario);
    ASSERT_EQ(held.size(), static_cast<size_t>(ranks));
    std::set<int64_t> assigned;
    for (const std::vector<int64_t>& mine : held) {
      EXPECT_FALSE(mine.empty()) << where;
      EXPECT_LE(static_cast<int64_t>(mine.size()), (n + ranks - 1) / ranks) << where;
      assigned.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(static_cast<int64_t>(assigned.size()), n) << where;
    for (const std::vector<int64_t>& together : join(held, group))
      EXPECT_TRUE(std::is_sorted(together.begin(), together.end())) << where;
    EXPECT_LE(largest_load(chunks.areas, join(held, group)) * 50,
              largest_load(chunks.areas, join(lpt, group)) * 51)
        << where;
    EXPECT_LE(count_slowly(chunks.reach, join(held, group), true),
              count_slowly(chunks.reach, join(lpt, group), true))
        << where;
    if (HasFailure()) return;
  }
}

TEST(NearKeys, AreAssignedAsEvenlyForGroupsAsPlansCompute) {
  Scenario scenario = make_case(documents(16384, 512, 3), 8, LayoutKind::lpt, CommType::a2a_p2p);
  scenario.attention.heads = scenario.attention.kv_heads = 4;
  scenario.parallel.a2a_size = 4;
  scenario.parallel.dispatch_chunk = 128;
  const PlanSummary lpt = summarise(plan_of(scenario));
  scenario.parallel.layout = LayoutKind::lpt_local;
  const PlanSummary local = summarise(plan_of(scenario));
  EXPECT_LE(local.rank_max_over_mean, 1.0201 * lpt.rank_max_over_mean);
  EXPECT_LT(2 * local.kv_bytes_necessary, lpt.kv_bytes_necessary);
  // Every group's KV travels through the whole ring.
  EXPECT_EQ(local.kv_bytes_moved, lpt.kv_bytes_moved);
}

TEST(NearKeys, MayBelongToAnyRankOfAGroupUnderA2aP2p) {
  Scenario scenario = make_case(documents(700, 60, 9), 4, LayoutKind::lpt_local, CommType::a2a_p2p);
  scenario.attention.heads = scenario.attention.kv_heads = 2;
  scenario.parallel.dispatch_chunk = 16;
  const Plan ours = plan_of(scenario);
  // The same rows of each group, assigned to its two ranks alternately.
  Order order = query_order(ours.layout);
  for (size_t first = 0; first < order.size(); first += 2) {
    std::vector<int64_t> all = order[first], even, odd;
    all.insert(all.end(), order[first + 1].begin(), order[first + 1].end());
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end())) << "not assigned to the group as a whole";
    for (size_t i = 0; i < all.size(); ++i) (i % 2 == 0 ? even : odd).push_back(all[i]);
    order[first] = even;
    order[first + 1] = odd;
  }
  scenario.parallel.layout = LayoutKind::indices;
  scenario.parallel.imported = {order, order};
  // The batch is padded as lpt_local padded it, with a tail that now belongs to a sequence.
  const int64_t tail = ours.layout.slots.tokens - 700;
  scenario.batch.slots.back() += tail;
  scenario.batch.kv_slots.back() += tail;
  const PlanSummary one = summarise(ours), other = summarise(plan_of(scenario));
  EXPECT_EQ(one.pairs_by_step_rank, other.pairs_by_step_rank);
  EXPECT_EQ(one.kv_bytes_moved, other.kv_bytes_moved);
  EXPECT_EQ(one.forward_bytes, other.forward_bytes);
  EXPECT_EQ(one.backward_bytes, other.backward_bytes);
}

TEST(NearKeys, AreAsNearInSmallChunksAsInLargeOnes) {
  for (const char* name : {"prolong", "wiki"}) {
    Generator generator;
    generator.name = name;
    generator.tokens = 65536;
    Scenario scenario = make_case(generate_lengths(generator, "").value(), 8, LayoutKind::lpt_local,
                                  CommType::group_cast);
    scenario.numerics.backward = false;
    const auto moved = [&](int64_t chunk) {
      scenario.parallel.dispatch_chunk = chunk;
      return static_cast<double>(summarise(plan_of(scenario)).kv_bytes_moved);
    };
    // Any assignment in chunks of 512 is also possible in chunks of 128.
    EXPECT_LE(moved(128), 1.02 * moved(512)) << name;
  }
}

TEST(NearKeys, DominateLongestFirstOverSeedsChunksAndPublishedLengths) {
  for (const char* name : {"wlb", "prolong", "wiki"}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      Generator generator;
      generator.name = name;
      generator.tokens = 16384;
      generator.seed = seed;
      Scenario scenario = make_case(generate_lengths(generator, "").value(), 4, LayoutKind::lpt,
                                    CommType::group_cast);
      scenario.numerics.backward = false;
      for (const int64_t chunk : {64, 128, 192, 256, 512, 1024}) {
        scenario.parallel.dispatch_chunk = chunk;
        scenario.parallel.layout = LayoutKind::lpt;
        const PlanSummary lpt = summarise(plan_of(scenario));
        scenario.parallel.layout = LayoutKind::lpt_local;
        const PlanSummary local = summarise(plan_of(scenario));
        const std::string where = std::string(name) + ", seed " + std::to_string(seed) +
                                  ", chunk " + std::to_string(chunk);
        EXPECT_LE(local.rank_max_over_mean, 1.02 * lpt.rank_max_over_mean) << where;
        EXPECT_LE(local.kv_bytes_moved, lpt.kv_bytes_moved) << where;
      }
    }
  }
}

TEST(NearKeys, KeepAWindowInOnePieceOnEveryRank) {
  Scenario scenario = make_case({65536}, 8);
  scenario.attention.window_left = 1023;
  const Chunks chunks = cut(scenario, 512);
  const Held held = assign_near_keys(chunks.areas, chunks.reach, 8, true);
  // Each rank except the first sees the 1023 keys before its own, which lie in two chunks.
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
  EXPECT_EQ(
      to_text(layout.error()),
      "layout lpt_local supports at most 16384 chunks: 16385 chunks of 1 tokens; use a larger "
      "dispatch_chunk, or lpt");
}

}  // namespace
}  // namespace cpscope::tests
