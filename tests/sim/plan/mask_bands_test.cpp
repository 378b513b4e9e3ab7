#include "sim/plan/mask_bands.h"

#include "sim/plan/layout.h"
#include "sim/plan/layout_lpt.h"
#include "sim/plan/planner/needed_rows.h"
#include "sim/plan/visible_interval.h"
#include "sim/scenario/random_scenario.h"
#include "tests/sim/plan/dense_mask.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Random masks over random batches, independent of the layout.
struct MaskCase {
  Scenario scenario;
  BatchSlots slots;
  std::string where;
};

std::vector<MaskCase> mask_cases() {
  std::vector<MaskCase> cases;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    MaskCase one{random_scenario(seed), {}, ""};
    one.scenario.parallel.layout = LayoutKind::contiguous;
    one.scenario.batch.pad_between_seqs = true;
    one.slots = layout_of(one.scenario).slots;
    one.where = "seed " + std::to_string(seed) + "\n" + show(one.scenario);
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(MaskBands, ShowEachVisibleCellOnceAndNoOther) {
  for (const MaskCase& one : mask_cases()) {
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    for (size_t s = 0; s < one.slots.sequences.size() && !HasFailure(); ++s) {
      for (int64_t i = 0; i < one.slots.sequences[s].q_valid; ++i) {
        for (int64_t j = 0; j < one.slots.sequences[s].kv_valid; ++j) {
          int64_t shown = 0;
          for (const Band& band : mask.of_sequence(static_cast<int64_t>(s))) {
            const ColumnRange columns = columns_of_row(band, i);
            shown += j >= columns.begin && j < columns.end ? 1 : 0;
          }
          ASSERT_EQ(shown, sees(one.scenario, static_cast<int64_t>(s), i, j) ? 1 : 0)
              << "sequence " << s << ", query " << i << ", key " << j << ", " << one.where;
        }
      }
    }
  }
}

TEST(MaskBands, AreNoMoreThanWasAnnounced) {
  for (const MaskCase& one : mask_cases()) {
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    EXPECT_LE(static_cast<int64_t>(mask.bands.size()),
              count_mask_bands(one.scenario.attention, one.slots.sequences))
        << one.where;
  }
}

TEST(MaskBands, AreAnnouncedBySequenceByChunkAndByTheRowsOfASlice) {
  const auto announced = [](const Scenario& scenario) {
    return count_mask_bands(scenario.attention, layout_of(scenario).slots.sequences);
  };
  Scenario scenario = make_cross_case({10, 7, 9}, {10, 7, 3}, 1, LayoutKind::contiguous);
  EXPECT_EQ(announced(scenario), 3) << "a band for each sequence";
  scenario.attention.chunk_size = 4;
  EXPECT_EQ(announced(scenario), 3 + 2 + 1) << "a piece for each chunk that has queries and keys";
  scenario.attention.chunk_size = 0;
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 2, 0, 5, SliceType::full}, {2, 20, 0, 5, SliceType::full}};
  // A slice intersects no more sequences than it has rows; cuts at its ends may add one.
  EXPECT_EQ(announced(scenario), (2 + 1) + (3 + 1) + 2);
  scenario.attention.chunk_size = 4;
  EXPECT_EQ(announced(scenario), (2 + 1) + (6 + 1) + 2);
  scenario.attention.chunk_size = 1;
  EXPECT_EQ(announced(scenario), (2 + 1) + (18 + 1) + 2) << "a chunk for each row";
}

TEST(MaskBands, NearRowsMissNoBandThatTouchesTheRows) {
  for (const MaskCase& one : mask_cases()) {
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    for (size_t s = 0; s < one.slots.sequences.size(); ++s) {
      const int64_t sequence = static_cast<int64_t>(s);
      for (int64_t begin = 0; begin < one.slots.sequences[s].q_valid; begin += 3) {
        int64_t all = 0, near = 0;
        for (const Band& band : mask.of_sequence(sequence))
          all += count_pairs_in_rows(band, begin, begin + 4);
        for (const Band& band : mask.near_rows(sequence, begin, begin + 4))
          near += count_pairs_in_rows(band, begin, begin + 4);
        EXPECT_EQ(near, all) << "sequence " << s << ", rows from " << begin << ", " << one.where;
      }
    }
  }
}

TEST(ChunkAreas, CountTheVisiblePairsOfEachChunksQueries) {
  for (const MaskCase& one : mask_cases()) {
    DenseCount visible = count_visible_cells(one.scenario, one.slots);
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    for (const int64_t chunk : {1, 3, 7}) {
      std::vector<int64_t> expected(static_cast<size_t>((visible.tokens + chunk - 1) / chunk), 0);
      for (int64_t q = 0; q < visible.tokens; ++q) {
        for (int64_t k = 0; k < visible.kv_tokens; ++k)
          expected[static_cast<size_t>(q / chunk)] += visible.at(q, k, 0);
      }
      EXPECT_EQ(chunk_areas(mask, one.slots, chunk), expected)
          << "chunk " << chunk << ", " << one.where;
    }
  }
}

TEST(VisibleKeys, AreTheKeysThatSomeQueryOfTheListSees) {
  for (const MaskCase& one : mask_cases()) {
    DenseCount visible = count_visible_cells(one.scenario, one.slots);
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    const std::vector<std::vector<TokenRun>> lists{
        {{0, visible.tokens, 1}},
        {{1, visible.tokens, 3}},
        {{visible.tokens / 2, visible.tokens, 1}, {0, visible.tokens / 4, 2}}};
    for (const std::vector<TokenRun>& runs : lists) {
      std::vector<int64_t> expected;
      for (int64_t k = 0; k < visible.kv_tokens; ++k) {
        bool seen = false;
        for (const int64_t q : expand(runs)) seen = seen || visible.at(q, k, 0) != 0;
        if (seen) expected.push_back(k);
      }
      EXPECT_EQ(expand(visible_keys(make_pieces(runs, one.slots, Side::q), mask, one.slots)),
                expected)
          << one.where;
    }
  }
}

/// Ascending disjoint runs of keys, some of them next to each other in ids of one owner.
std::vector<TokenRun> draw_wanted(std::mt19937& random, int64_t tokens) {
  std::vector<TokenRun> wanted;
  for (int64_t at = static_cast<int64_t>(random() % 5); at < tokens;) {
    const int64_t end = std::min(tokens, at + 1 + static_cast<int64_t>(random() % 12));
    wanted.push_back({at, end, 1});
    at = end + 1 + static_cast<int64_t>(random() % 9);
  }
  return wanted;
}

int64_t count_runs_of(const KvOwners::Received& received) {
  int64_t count = std::ssize(received.tokens);
  for (const KvOwners::Source& source : received.sources)
    count += std::ssize(source.rows) + std::ssize(source.to_rows);
  return count;
}

/// Expects that every source sends what its rows hold, to rows of its own, all together each row
/// that is received once.
void expect_sources(const KvOwners::Received& received, const Order& order, RankId self) {
  const std::vector<int64_t> tokens = expand(received.tokens);
  std::vector<int64_t> to_rows;
  for (const KvOwners::Source& source : received.sources) {
    EXPECT_NE(source.rank, self);
    EXPECT_TRUE(&source == &received.sources.front() || (&source - 1)->rank < source.rank);
    std::vector<int64_t> sent, landed;
    for (const int64_t row : expand(source.rows))
      sent.push_back(
          order[static_cast<size_t>(to_index(source.rank))].at(static_cast<size_t>(row)));
    for (const int64_t row : expand(source.to_rows)) {
      landed.push_back(tokens.at(static_cast<size_t>(row)));
      to_rows.push_back(row);
    }
    EXPECT_FALSE(sent.empty());
    EXPECT_EQ(sent, landed);
  }
  std::sort(to_rows.begin(), to_rows.end());
  std::vector<int64_t> all(tokens.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(to_rows, all);
}

TEST(KvOwners, SendEveryWantedKeyOfAnotherRankOnceFromTheRowThatHoldsIt) {
  std::mt19937 random(21);
  int64_t striped = 0, in_chunks = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Scenario scenario = random_scenario(seed);
    if (seed % 4 == 0) {
      scenario.parallel.layout = LayoutKind::striped;
      scenario.parallel.stripe = 1;
      scenario.batch.pad_between_seqs = true;
    }
    const Result<Layout> layout = make_layout(scenario);
    if (!layout.ok()) continue;
    SCOPED_TRACE(show(scenario));
    const KvOwners owners(layout.value());
    ++(owners.is_striped() ? striped : in_chunks);
    const Order order = key_order(layout.value());
    const std::vector<TokenRun> wanted = draw_wanted(random, layout.value().slots.kv_tokens);
    for (const RankId rank : layout.value().kv_runs.ids()) {
      SCOPED_TRACE(to_index(rank));
      const KvOwners::Received received = owners.receive(wanted, rank);
      expect_sources(received, order, rank);
      EXPECT_EQ(owners.count_runs(wanted, rank), count_runs_of(received));
      std::vector<int64_t> tokens = expand(received.tokens);
      EXPECT_EQ(owners.count_remote(wanted, rank), std::ssize(tokens));
      EXPECT_TRUE(owners.is_striped() || std::is_sorted(tokens.begin(), tokens.end()));
      std::sort(tokens.begin(), tokens.end());
      std::vector<int64_t> expected = expand(wanted);
      const auto& own = order[static_cast<size_t>(to_index(rank))];
      std::erase_if(expected, [&](int64_t token) {
        return std::find(own.begin(), own.end(), token) != own.end();
      });
      EXPECT_EQ(tokens, expected);
    }
  }
  EXPECT_GT(striped, 10);
  EXPECT_GT(in_chunks, 50);
}

int64_t most_of_a_sequence(const std::vector<SequenceCorner>& corners) {
  std::map<int64_t, int64_t> counts;
  int64_t most = 0;
  for (const SequenceCorner& corner : corners) most = std::max(most, ++counts[corner.sequence]);
  return most;
}

/// Runs of any strides, or ascending runs with gaps between them.
std::vector<TokenRun> draw_buffer(std::mt19937& random, int64_t tokens) {
  std::vector<TokenRun> runs;
  if (random() % 2 == 0) {
    runs = draw_wanted(random, tokens);
    // Almost ascending: two neighbours have changed places.
    if (runs.size() > 1 && random() % 3 == 0) {
      const size_t at = random() % 2 == 0 ? 0 : random() % (runs.size() - 1);
      std::swap(runs[at], runs[at + 1]);
    }
    return runs;
  }
  for (int64_t i = 1 + static_cast<int64_t>(random() % 4); i-- > 0;) {
    const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens));
    const int64_t stride = 1 + static_cast<int64_t>(random() % 3);
    const int64_t length = 1 + static_cast<int64_t>(random() % 20);
    runs.push_back({begin, std::min(tokens, begin + length), stride});
  }
  return runs;
}

TEST(Intersection, HoldsEachVisiblePairOfTwoBuffersOnceWhateverTheirStrides) {
  std::mt19937 random(22);
  int64_t all_least = 0;
  for (const MaskCase& one : mask_cases()) {
    if (one.slots.tokens == 0 || one.slots.kv_tokens == 0) continue;
    DenseCount visible = count_visible_cells(one.scenario, one.slots);
    const MaskBands mask = compile_mask(one.scenario.attention, one.slots.sequences);
    for (int trial = 0; trial < 4; ++trial) {
      const std::vector<TokenRun> q_runs = draw_buffer(random, one.slots.tokens),
                                  kv_runs = draw_buffer(random, one.slots.kv_tokens);
      const std::vector<int64_t> q = expand(q_runs), kv = expand(kv_runs);
      std::vector<BandSlice> bands;
      const int64_t pairs = intersect(make_pieces(q_runs, one.slots, Side::q),
                                      make_pieces(kv_runs, one.slots, Side::kv), mask, bands);
      const PieceTable kv_table = make_pieces(kv_runs, one.slots, Side::kv);
      const std::vector<SequenceCorner> corners = find_corners(kv_table);
      for (const CornerCount& count :
           {count_corners(kv_table), count_corners(kv_runs, one.slots, Side::kv)}) {
        EXPECT_EQ(count.all, std::ssize(corners));
        EXPECT_EQ(count.most, most_of_a_sequence(corners));
      }
      const int64_t least =
          count_least_bands(find_corners(make_pieces(q_runs, one.slots, Side::q)), corners, mask);
      EXPECT_LE(least, std::ssize(bands)) << one.where;
      all_least += least;
      std::vector<int64_t> seen(q.size() * kv.size(), 0);
      int64_t sum = 0;
      for (const BandSlice& band : bands) {
        for (int64_t row = band.q0; row < band.q1; ++row) {
          const ColumnRange columns = columns_of_row(band, row);
          for (int64_t column = columns.begin; column < columns.end; ++column, ++sum)
            ++seen.at(static_cast<size_t>(row) * kv.size() + static_cast<size_t>(column));
        }
      }
      EXPECT_EQ(pairs, sum) << one.where;
      for (size_t i = 0; i < q.size(); ++i) {
        for (size_t j = 0; j < kv.size(); ++j) {
          ASSERT_EQ(seen[i * kv.size() + j], visible.at(q[i], kv[j], 0))
              << "row " << i << " (query " << q[i] << "), column " << j << " (key " << kv[j]
              << "), " << one.where;
        }
      }
    }
  }
  EXPECT_GT(all_least, 0);
}

// Runs of three documents, one rank's after another's, of one document each or of several.
TEST(PieceTable, IsSortedBySequenceAndKeepsTheOrderOfRows) {
  const BatchSlots slots = layout_of(make_case({16, 16, 16}, 1, LayoutKind::contiguous)).slots;
  const std::vector<TokenRun> runs{{32, 40, 1}, {0, 8, 1}, {12, 24, 1}, {1, 48, 4}, {8, 12, 1}};
  // With one run there are fewer pieces than sequences up to it.
  for (size_t count = 1; count <= runs.size(); ++count) {
    const PieceTable table = make_pieces(std::span(runs).first(count), slots, Side::kv);
    int64_t rows = 0;
    for (size_t i = 0; i < table.pieces.size(); ++i) {
      rows += table.pieces[i].count;
      if (i == 0) continue;
      const Piece &before = table.pieces[i - 1], &piece = table.pieces[i];
      EXPECT_LT(std::pair(before.sequence, before.row), std::pair(piece.sequence, piece.row));
    }
    EXPECT_EQ(rows, count_ids(std::span(runs).first(count)));
  }
}

// Two documents in stripes of four ranks, causal: a query of rank 1 sees a key of every rank, but a
// first query of rank 1 none of rank 2.
TEST(Intersection, HasAtLeastABandForEachSequenceWhoseLastQuerySeesTheFirstKey) {
  const Scenario scenario = make_case({8, 4}, 4, LayoutKind::striped);
  const Layout layout = layout_of(scenario);
  const MaskBands mask = compile_mask(scenario.attention, layout.slots.sequences);
  const auto corners = [&](int32_t rank, Side side) {
    return find_corners(make_pieces(layout.runs(side)[RankId{rank}], layout.slots, side));
  };
  EXPECT_EQ(count_least_bands(corners(1, Side::q), corners(0, Side::kv), mask), 2);
  EXPECT_EQ(count_least_bands(corners(1, Side::q), corners(2, Side::kv), mask), 1);
  EXPECT_EQ(count_least_bands(corners(1, Side::q), {}, mask), 0);
}

// The same keys of all ranks, one rank after another: the last query of rank 1 is at position 5 and
// 1 of its documents.
TEST(Intersection, HasAtLeastABandForEachRankWhoseFirstKeyTheLastQuerySees) {
  const Scenario scenario = make_case({8, 4}, 4, LayoutKind::striped);
  const Layout layout = layout_of(scenario);
  const MaskBands mask = compile_mask(scenario.attention, layout.slots.sequences);
  std::vector<TokenRun> gathered;
  for (const std::vector<TokenRun>& runs : layout.kv_runs)
    gathered.insert(gathered.end(), runs.begin(), runs.end());
  const PieceTable q = make_pieces(layout.q_runs[RankId{1}], layout.slots, Side::q),
                   kv = make_pieces(gathered, layout.slots, Side::kv);
  EXPECT_EQ(count_least_bands(find_corners(q), find_corners(kv), mask), 4 + 2);
  std::vector<BandSlice> bands;
  intersect(q, kv, mask, bands);
  EXPECT_EQ(bands.size(), 4U + 2U);
}

TEST(Intersection, IsOneBandWhereEveryRowSeesEveryPieceOfTheOtherSide) {
  Scenario scenario = make_case({40}, 1, LayoutKind::contiguous);
  for (const int64_t first : {0, 1, 2}) {
    // Eight pieces adjacent in their buffer, with gaps between their tokens.
    std::vector<TokenRun> pieces;
    for (int64_t begin = first; begin < 40; begin += 5) pieces.push_back({begin, begin + 3, 1});
    for (const MaskType type : {MaskType::no_mask, MaskType::slices}) {
      for (const int64_t top : {0, 6}) {
        scenario.attention.mask_type = type;
        scenario.attention.slices = {{top, 40, 0, 40, SliceType::full}};
        const BatchSlots slots = layout_of(scenario).slots;
        std::vector<BandSlice> bands;
        intersect(make_pieces(std::vector<TokenRun>{{4, 12, 1}}, slots, Side::q),
                  make_pieces(pieces, slots, Side::kv),
                  compile_mask(scenario.attention, slots.sequences), bands);
        ASSERT_EQ(bands.size(), 1U) << "pieces from " << first << "\n" << show(scenario);
        const int64_t rows = type == MaskType::slices && top == 6 ? 6 : 8;
        EXPECT_EQ(count_pairs(bands.front()), rows * 24) << show(scenario);
      }
    }
  }
}

TEST(Intersection, JoinsFullBandsThatTouchAlongOneSide) {
  Scenario scenario = make_case({40}, 1, LayoutKind::contiguous);
  scenario.attention.mask_type = MaskType::no_mask;
  const BatchSlots slots = layout_of(scenario).slots;
  const MaskBands mask = compile_mask(scenario.attention, slots.sequences);
  const std::vector<TokenRun> apart{{0, 3, 1}, {10, 13, 1}, {20, 23, 1}}, one{{4, 12, 1}};
  for (const bool is_query_cut : {false, true}) {
    std::vector<BandSlice> bands;
    intersect(make_pieces(is_query_cut ? apart : one, slots, Side::q),
              make_pieces(is_query_cut ? one : apart, slots, Side::kv), mask, bands);
    ASSERT_EQ(bands.size(), 1U) << "cut on the " << (is_query_cut ? "query" : "kv") << " side";
    EXPECT_TRUE(is_full(bands.front()));
    EXPECT_EQ(count_pairs(bands.front()), 9 * 8);
  }
}

TEST(Intersection, FindsAsManyPairsInWhateverOrderPiecesLieInTheirBuffer) {
  Scenario scenario = make_case({40}, 1, LayoutKind::contiguous);
  scenario.attention.window_left = 3;
  const BatchSlots slots = layout_of(scenario).slots;
  const MaskBands mask = compile_mask(scenario.attention, slots.sequences);
  std::vector<TokenRun> pieces;
  for (int64_t begin = 0; begin < 40; begin += 5) pieces.push_back({begin, begin + 5, 1});
  for (size_t swapped = 0; swapped + 1 < pieces.size(); ++swapped) {
    std::vector<TokenRun> other = pieces;
    std::swap(other[swapped], other[swapped + 1]);
    for (int64_t row = 0; row < 40; ++row) {
      std::vector<BandSlice> bands;
      EXPECT_EQ(intersect(make_pieces(std::vector<TokenRun>{{row, row + 1, 1}}, slots, Side::q),
                          make_pieces(other, slots, Side::kv), mask, bands),
                std::min<int64_t>(row + 1, 4))
          << "row " << row << ", pieces " << swapped << " and " << swapped + 1;
    }
  }
}

/// Every row sees the first key, through one slice of all rows, and four keys of its own.
Scenario scattered_case(int64_t rows) {
  Scenario scenario = make_case({rows, 10 * rows}, 2);
  scenario.attention.mask_type = MaskType::slices;
  for (int64_t i = 0; i < rows; ++i) {
    if (i == 0) scenario.attention.slices.push_back({0, rows, 0, 1});
    for (int64_t key = 0; key < 4; ++key) {
      const int64_t j = 1 + (i % 2) + 3 * key;
      scenario.attention.slices.push_back({i, i + 1, j, j + 1});
    }
  }
  return scenario;
}

TEST(MaskBands, NearRowsOfSlicesInOrderAreFew) {
  const Scenario scenario = scattered_case(100);
  const BatchSlots slots = layout_of(scenario).slots;
  MaskBands mask = compile_mask(scenario.attention, slots.sequences);
  ASSERT_EQ(mask.of_sequence(0).size(), 401u);
  // Without the tall band in front only bands of the rows themselves are near.
  Scenario apart = scenario;
  apart.attention.slices.erase(apart.attention.slices.begin());
  const MaskBands few = compile_mask(apart.attention, slots.sequences);
  for (int64_t row = 0; row < 100; ++row) {
    EXPECT_EQ(few.near_rows(0, row, row + 1).size(), 4u) << row;
    int64_t pairs = 0;
    for (const Band& band : mask.near_rows(0, row, row + 1))
      pairs += count_pairs_in_rows(band, row, row + 1);
    EXPECT_EQ(pairs, 5) << row;
  }
  std::swap(apart.attention.slices.front(), apart.attention.slices.back());
  mask = compile_mask(apart.attention, slots.sequences);
  EXPECT_EQ(mask.near_rows(0, 99, 100).size(), 400u) << "rows out of order";
}

TEST(SliceRows, ListTheSlicesOfARow) {
  Plan plan;
  plan.scenario = scattered_case(1000);
  plan.layout = layout_of(plan.scenario);
  const SliceRows rows(plan);
  const std::vector<MaskSlice>& slices = plan.scenario.attention.slices;
  for (int64_t i = 0; i < 1000; ++i) {
    const auto near = rows.near(0, i);
    EXPECT_TRUE(std::is_sorted(near.begin(), near.end()));
    EXPECT_EQ(std::count_if(near.begin(), near.end(),
                            [&](int32_t n) {
                              return slices[static_cast<size_t>(n)].q0 <= i &&
                                     i < slices[static_cast<size_t>(n)].q1;
                            }),
              5)
        << i;
    EXPECT_LE(near.size(), 5u) << i;
  }
  EXPECT_EQ(find_slice(plan, rows, 0, 999, 0), 0);
  EXPECT_EQ(find_slice(plan, rows, 0, 999, 2), 1 + 4 * 999);
  EXPECT_EQ(find_slice(plan, rows, 0, 999, 3), -1);
  EXPECT_EQ(find_slice(plan, rows, 1, 5, 0), -1) << "no slice holds the second sequence";
}

TEST(SliceRows, StayShortWhereEverySliceHasAllRows) {
  constexpr int64_t kRows = 1'000'000;
  Plan plan;
  plan.scenario = make_case({kRows}, 1, LayoutKind::contiguous);
  plan.scenario.attention.mask_type = MaskType::slices;
  for (int64_t key = 0; key < 1000; ++key)
    plan.scenario.attention.slices.push_back({0, kRows, 2 * key, 2 * key + 1});
  plan.layout = layout_of(plan.scenario);
  const SliceRows rows(plan);
  EXPECT_EQ(rows.near(0, 0).size(), 1000u);
  EXPECT_EQ(find_slice(plan, rows, 0, kRows - 1, 1998), 999);
}

TEST(CheckersMask, AsksOnlyTheSliceThatIsNamed) {
  for (const MaskCase& one : mask_cases()) {
    if (one.scenario.attention.mask_type != MaskType::slices) continue;
    Plan plan;
    plan.scenario = one.scenario;
    plan.layout.slots = one.slots;
    for (size_t slice = 0; slice < one.scenario.attention.slices.size(); ++slice) {
      Scenario alone = one.scenario;
      alone.attention.slices = {one.scenario.attention.slices[slice]};
      for (size_t s = 0; s < one.slots.sequences.size(); ++s) {
        const int64_t sequence = static_cast<int64_t>(s);
        for (int64_t i = 0; i < one.slots.sequences[s].q_valid; ++i) {
          for (int64_t j = 0; j < one.slots.sequences[s].kv_valid; ++j) {
            ASSERT_EQ(is_inside(plan, sequence, i, j, static_cast<int64_t>(slice)),
                      sees(alone, sequence, i, j))
                << "slice " << slice << ", sequence " << s << ", query " << i << ", key " << j
                << ", " << one.where;
          }
        }
      }
    }
  }
}

TEST(CheckersMask, AgreesWithTheWordsOfTheContract) {
  for (const MaskCase& one : mask_cases()) {
    Plan plan;  // the checker's mask reads only these fields
    plan.scenario = one.scenario;
    plan.layout.slots = one.slots;
    const SliceRows rows(plan);
    std::map<std::pair<int64_t, int64_t>, int64_t> seen_by;  // sequence, query
    for (const VisibleBlock& block : visible_blocks(plan)) {
      for (int64_t i = block.begin; i < block.end; ++i) {
        const ColumnRange keys = visible_keys(plan, block, i);
        seen_by[{block.sequence, i}] += std::max<int64_t>(0, keys.end - keys.begin);
      }
    }
    int64_t all = 0;
    for (size_t s = 0; s < one.slots.sequences.size(); ++s) {
      const int64_t sequence = static_cast<int64_t>(s);
      for (int64_t i = 0; i < one.slots.sequences[s].q_valid; ++i) {
        int64_t row = 0;
        for (int64_t j = 0; j < one.slots.sequences[s].kv_valid; ++j) {
          const bool expected = sees(one.scenario, sequence, i, j);
          row += expected ? 1 : 0;
          ASSERT_EQ(is_inside(plan, sequence, i, j, find_slice(plan, rows, sequence, i, j)),
                    expected)
              << "sequence " << s << ", query " << i << ", key " << j << ", " << one.where;
        }
        EXPECT_EQ((seen_by[{sequence, i}]), row)
            << "sequence " << s << ", query " << i << ", " << one.where;
        all += row;
      }
    }
    EXPECT_EQ(count_all_visible(plan), all) << one.where;
  }
}

}  // namespace
}  // namespace cpscope::tests
