#include "sim/plan/mask_bands.h"

#include "sim/plan/layout.h"
#include "sim/plan/layout_lpt.h"
#include "sim/plan/needed_rows.h"
#include "sim/plan/visible_interval.h"
#include "sim/scenario/random_scenario.h"
#include "tests/sim/plan/dense_mask.h"
#include "tests/sim/plan/plan_cases.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Random masks over random batches, whatever the layout makes of them.
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

TEST(CheckersMask, AgreesWithTheWordsOfTheContract) {
  for (const MaskCase& one : mask_cases()) {
    Plan plan;  // the checker's mask reads nothing else
    plan.scenario = one.scenario;
    plan.layout.slots = one.slots;
    int64_t all = 0;
    for (size_t s = 0; s < one.slots.sequences.size(); ++s) {
      const int64_t sequence = static_cast<int64_t>(s);
      for (int64_t i = 0; i < one.slots.sequences[s].q_valid; ++i) {
        int64_t row = 0;
        for (int64_t j = 0; j < one.slots.sequences[s].kv_valid; ++j) {
          const bool expected = sees(one.scenario, sequence, i, j);
          row += expected ? 1 : 0;
          ASSERT_EQ(is_inside(plan, sequence, i, j, find_slice(plan, sequence, i, j)), expected)
              << "sequence " << s << ", query " << i << ", key " << j << ", " << one.where;
        }
        EXPECT_EQ(count_visible(plan, sequence, i), row)
            << "sequence " << s << ", query " << i << ", " << one.where;
        all += row;
      }
    }
    EXPECT_EQ(count_all_visible(plan), all) << one.where;
  }
}

}  // namespace
}  // namespace cpscope::tests
