#include "reference/mask_predicate.h"

#include "sim/scenario/scenario.h"
#include "tests/reference/tiny_batch.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

using Picture = std::vector<std::string>;

/// One line per query, one letter per key: X visible, . hidden.
Picture draw(const Scenario& scenario, int64_t sequence = 0) {
  const auto index = static_cast<size_t>(sequence);
  Picture picture;
  for (int64_t i = 0; i < scenario.batch.lengths[index]; ++i) {
    std::string line;
    for (int64_t j = 0; j < scenario.batch.kv_lengths[index]; ++j) {
      line += is_visible(scenario, sequence, i, j) ? 'X' : '.';
    }
    picture.push_back(line);
  }
  return picture;
}

Scenario masked(MaskType type, int64_t num_queries, int64_t num_keys) {
  Scenario scenario = make_scenario({num_queries}, 1, 1);
  scenario.batch.kv_lengths = {num_keys};
  scenario.attention.mask_type = type;
  return scenario;
}

Scenario windowed(MaskType type, int64_t num_queries, int64_t num_keys, int64_t left,
                  int64_t right) {
  Scenario scenario = masked(type, num_queries, num_keys);
  scenario.attention.window_left = left;
  scenario.attention.window_right = right;
  return scenario;
}

Scenario sliced(int64_t num_queries, int64_t num_keys, std::vector<MaskSlice> slices) {
  Scenario scenario = masked(MaskType::slices, num_queries, num_keys);
  scenario.attention.slices = std::move(slices);
  return scenario;
}

TEST(MaskPredicate, ShowsEverythingWithoutAMask) {
  EXPECT_EQ(draw(masked(MaskType::no_mask, 2, 3)), (Picture{"XXX",  //
                                                            "XXX"}));
  EXPECT_EQ(draw(masked(MaskType::padding, 2, 3)), draw(masked(MaskType::no_mask, 2, 3)));
}

TEST(MaskPredicate, AlignsCausalTopLeft) {
  EXPECT_EQ(draw(masked(MaskType::causal, 3, 5)), (Picture{"X....",  //
                                                           "XX...",  //
                                                           "XXX.."}));
  EXPECT_EQ(draw(masked(MaskType::causal, 4, 2)), (Picture{"X.",  //
                                                           "XX",  //
                                                           "XX",  //
                                                           "XX"}));
}

TEST(MaskPredicate, AlignsCausalBottomRightWhenAsked) {
  EXPECT_EQ(draw(masked(MaskType::causal_bottom_right, 3, 5)), (Picture{"XXX..",  //
                                                                        "XXXX.",  //
                                                                        "XXXXX"}));
  EXPECT_EQ(draw(masked(MaskType::causal_bottom_right, 4, 2)), (Picture{"..",  //
                                                                        "..",  //
                                                                        "X.",  //
                                                                        "XX"}));
}

TEST(MaskPredicate, TreatsThePaddingPrefixAsALabel) {
  EXPECT_EQ(draw(masked(MaskType::padding_causal, 3, 5)), draw(masked(MaskType::causal, 3, 5)));
  EXPECT_EQ(draw(masked(MaskType::padding_causal_bottom_right, 3, 5)),
            draw(masked(MaskType::causal_bottom_right, 3, 5)));
}

TEST(MaskPredicate, CentresTheWindowOnTheBottomRightDiagonal) {
  // The diagonal of query 0 is at key 0 + 5 - 3 = 2.
  EXPECT_EQ(draw(windowed(MaskType::no_mask, 3, 5, 1, 0)), (Picture{".XX..",  //
                                                                    "..XX.",  //
                                                                    "...XX"}));
  EXPECT_EQ(draw(windowed(MaskType::no_mask, 3, 5, -1, 1)), (Picture{"XXXX.",  //
                                                                     "XXXXX",  //
                                                                     "XXXXX"}));
  EXPECT_EQ(draw(windowed(MaskType::no_mask, 3, 5, 1, -1)), (Picture{".XXXX",  //
                                                                     "..XXX",  //
                                                                     "...XX"}));
}

TEST(MaskPredicate, CutsTheWindowsRightEdgeByCausal) {
  EXPECT_EQ(draw(windowed(MaskType::causal, 4, 4, 1, 2)), (Picture{"X...",  //
                                                                   "XX..",  //
                                                                   ".XX.",  //
                                                                   "..XX"}));
  // Top-left causal and a bottom-right window: visible is what both allow.
  EXPECT_EQ(draw(windowed(MaskType::causal, 3, 5, 2, 0)), (Picture{"X....",  //
                                                                   ".X...",  //
                                                                   "..X.."}));
}

TEST(MaskPredicate, LeavesRowsEmptyWhereTheWindowStandsBeforeTheFirstKey) {
  EXPECT_EQ(draw(windowed(MaskType::no_mask, 4, 2, 0, 0)), (Picture{"..",  //
                                                                    "..",  //
                                                                    "X.",  //
                                                                    ".X"}));
}

TEST(MaskPredicate, SurvivesWindowsOfAnySize) {
  constexpr int64_t kHuge = 9'223'372'036'854'775'807;
  EXPECT_EQ(draw(windowed(MaskType::no_mask, 2, 3, kHuge, kHuge)),
            draw(masked(MaskType::no_mask, 2, 3)));
}

TEST(MaskPredicate, KeepsEachChunkToItself) {
  Scenario scenario = masked(MaskType::causal, 5, 5);
  scenario.attention.chunk_size = 2;
  EXPECT_EQ(draw(scenario), (Picture{"X....",  //
                                     "XX...",  //
                                     "..X..",  //
                                     "..XX.",  //
                                     "....X"}));
  scenario.attention.mask_type = MaskType::no_mask;
  EXPECT_EQ(draw(scenario), (Picture{"XX...",  //
                                     "XX...",  //
                                     "..XX.",  //
                                     "..XX.",  //
                                     "....X"}));
}

TEST(MaskPredicate, DrawsTheFourTypesOfSlices) {
  EXPECT_EQ(draw(sliced(4, 6, {{1, 3, 1, 5, SliceType::full}})), (Picture{"......",  //
                                                                          ".XXXX.",  //
                                                                          ".XXXX.",  //
                                                                          "......"}));
  EXPECT_EQ(draw(sliced(4, 6, {{1, 4, 1, 6, SliceType::causal}})), (Picture{"......",  //
                                                                            ".XXX..",  //
                                                                            ".XXXX.",  //
                                                                            ".XXXXX"}));
  EXPECT_EQ(draw(sliced(4, 6, {{1, 4, 1, 6, SliceType::inv_causal}})), (Picture{"......",  //
                                                                                ".XXXXX",  //
                                                                                "..XXXX",  //
                                                                                "...XXX"}));
  EXPECT_EQ(draw(sliced(4, 6, {{1, 4, 1, 6, SliceType::bi_causal}})), (Picture{"......",  //
                                                                               ".XXX..",  //
                                                                               "..XXX.",  //
                                                                               "...XXX"}));
}

TEST(MaskPredicate, LeavesTallSlicesEmptyWhereTheirDiagonalLeavesThem) {
  EXPECT_EQ(draw(sliced(4, 2, {{0, 4, 0, 2, SliceType::causal}})), (Picture{"..",  //
                                                                            "..",  //
                                                                            "X.",  //
                                                                            "XX"}));
  EXPECT_EQ(draw(sliced(4, 2, {{0, 4, 0, 2, SliceType::inv_causal}})), (Picture{"XX",  //
                                                                                ".X",  //
                                                                                "..",  //
                                                                                ".."}));
  EXPECT_EQ(draw(sliced(4, 2, {{0, 4, 0, 2, SliceType::bi_causal}})), (Picture{"..",  //
                                                                               "..",  //
                                                                               "..",  //
                                                                               ".."}));
}

TEST(MaskPredicate, CountsSliceIdsThroughTheValidTokensOfTheBatch) {
  // Queries 0,1 | 2,3,4 and keys 0,1,2 | 3,4: one full slice over all shows no key of another
  // sequence; the causal one starts inside the first sequence and ends in the second.
  Scenario scenario = make_scenario({2, 3}, 1, 1);
  scenario.batch.kv_lengths = {3, 2};
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 5, 0, 5, SliceType::full}};
  EXPECT_EQ(draw(scenario, 0), (Picture{"XXX", "XXX"}));
  EXPECT_EQ(draw(scenario, 1), (Picture{"XX", "XX", "XX"}));
  scenario.attention.slices = {{1, 5, 1, 5, SliceType::causal}};
  EXPECT_EQ(draw(scenario, 0), (Picture{"...",  //
                                        ".X."}));
  EXPECT_EQ(draw(scenario, 1), (Picture{"..",  //
                                        "X.",  //
                                        "XX"}));
}

TEST(MaskPredicate, AndsSlicesWithWindowAndChunk) {
  Scenario scenario = sliced(4, 4, {{0, 4, 0, 4, SliceType::full}});
  scenario.attention.window_left = 1;
  scenario.attention.chunk_size = 3;
  EXPECT_EQ(draw(scenario), (Picture{"XXX.",  //
                                     "XXX.",  //
                                     ".XX.",  //
                                     "...X"}));
}

TEST(MaskPredicate, ShowsNothingOutsideTheValidLengths) {
  const Scenario scenario = masked(MaskType::no_mask, 2, 3);
  EXPECT_FALSE(is_visible(scenario, 0, 2, 0));
  EXPECT_FALSE(is_visible(scenario, 0, 0, 3));
  EXPECT_FALSE(is_visible(scenario, 0, -1, 0));
  EXPECT_FALSE(is_visible(scenario, 0, 0, -1));
}

TEST(MaskPredicate, JudgesPositionsOfTwoBillionTokens) {
  constexpr int64_t kLength = 2'147'483'647;
  const Scenario scenario = windowed(MaskType::causal_bottom_right, kLength, kLength, 10, 0);
  EXPECT_TRUE(is_visible(scenario, 0, kLength - 1, kLength - 11));
  EXPECT_FALSE(is_visible(scenario, 0, kLength - 1, kLength - 12));
  EXPECT_FALSE(is_visible(scenario, 0, 0, kLength - 1));
}

TEST(VisibleKeys, SpellOutThePredicateAsRuns) {
  Scenario scenario =
      sliced(3, 6, {{0, 3, 0, 2, SliceType::full}, {0, 2, 4, 6, SliceType::causal}, {2, 3, 2, 3}});
  const VisibleKeys visible = find_visible_keys(sequence_mask(scenario, 0));
  const auto runs_of = [&](int64_t i) {
    const auto runs = visible.of_row(i);
    return std::vector<KeyRun>(runs.begin(), runs.end());
  };
  EXPECT_EQ(runs_of(0), (std::vector<KeyRun>{{0, 2}, {4, 5}}));
  EXPECT_EQ(runs_of(1), (std::vector<KeyRun>{{0, 2}, {4, 6}}));
  EXPECT_EQ(runs_of(2), (std::vector<KeyRun>{{0, 3}}));
}

TEST(SequenceMask, HoldsTheSlicesThatTouchItsQueries) {
  Scenario scenario = sliced(3, 6, {});
  scenario.batch.lengths = {3, 0, 4, 5};
  scenario.batch.kv_lengths = {2, 7, 4, 1};
  const MaskSlice first{0, 3, 0, 2}, across{2, 4, 0, 9}, inside{4, 6, 9, 13}, empty{5, 5, 0, 1},
      last{7, 12, 13, 14};
  scenario.attention.slices = {last, first, across, inside, empty};
  const std::vector<SequenceMask> masks = sequence_masks(scenario);
  ASSERT_EQ(masks.size(), 4u);
  EXPECT_EQ(masks[0].slices, (std::vector<MaskSlice>{first, across}));
  EXPECT_EQ(masks[2].slices, (std::vector<MaskSlice>{across, inside, empty}));
  EXPECT_EQ(masks[3].slices, (std::vector<MaskSlice>{last}));
  EXPECT_EQ(masks[2].first_query, 3);
  EXPECT_EQ(masks[2].first_key, 9);
  EXPECT_EQ(masks[3].first_query, 7);
  EXPECT_EQ(masks[3].first_key, 13);
}

TEST(SequenceMask, IsFoundForAHundredThousandSequencesAtOnce) {
  constexpr int64_t kSequences = 100'000;
  Scenario scenario = sliced(1, 1, {});
  scenario.batch.lengths.assign(kSequences, 2);
  scenario.batch.kv_lengths.assign(kSequences, 3);
  for (int64_t s = 0; s < kSequences; ++s)
    scenario.attention.slices.push_back({2 * s, 2 * s + 2, 3 * s, 3 * s + 3});
  const VisibleKeysOfSequence visible = mask_witness().visible_keys(scenario);
  // Reading all slices again for each sequence would take minutes here.
  for (int64_t s = 0; s < kSequences; ++s) {
    const auto rows = visible(s);
    ASSERT_EQ(rows.size(), 2u);
    ASSERT_EQ(rows[0].size(), 1u) << "sequence " << s;
    ASSERT_EQ(rows[0][0].end, 3);
  }
}

TEST(MaskWitness, AnswersLikeThePredicate) {
  const Scenario scenario = masked(MaskType::causal, 3, 3);
  const MaskWitness witness = mask_witness();
  EXPECT_TRUE(witness.is_visible(scenario)(0, 1, 1));
  EXPECT_FALSE(witness.is_visible(scenario)(0, 1, 2));
}

TEST(MaskWitness, AnswersLikeThePredicateThroughSlicesInAnyOrder) {
  std::mt19937_64 random(11);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<MaskSlice> slices;
    for (int64_t count = below(9); count >= 0; --count) {
      const int64_t q0 = below(10), k0 = below(12);
      slices.push_back(
          {q0, q0 + below(11 - q0), k0, k0 + below(13 - k0), static_cast<SliceType>(below(4))});
    }
    Scenario scenario = sliced(6, 7, slices);
    scenario.batch.lengths = {6, 4};
    scenario.batch.kv_lengths = {7, 5};
    const IsVisible answer = mask_witness().is_visible(scenario);
    const std::vector<SequenceMask> masks = sequence_masks(scenario);
    for (int64_t s = 0; s < 2; ++s) {
      const SequenceMask& mask = masks[static_cast<size_t>(s)];
      std::vector<bool> is_key_seen(static_cast<size_t>(mask.num_keys), false);
      for (int64_t i = 0; i < mask.num_queries; ++i) {
        bool sees_any = false;
        for (int64_t j = 0; j < mask.num_keys; ++j) {
          const bool expected = is_visible(mask, i, j);
          ASSERT_EQ(answer(s, i, j), expected) << "round " << round << ", " << i << ", " << j;
          sees_any = sees_any || expected;
          if (expected) is_key_seen[static_cast<size_t>(j)] = true;
        }
        EXPECT_EQ(sees_a_key(mask, i), sees_any) << "round " << round << ", query " << i;
      }
      for (int64_t j = 0; j < mask.num_keys; ++j)
        EXPECT_EQ(is_seen(mask, j), is_key_seen[static_cast<size_t>(j)])
            << "round " << round << ", key " << j;
    }
  }
}

}  // namespace
}  // namespace cpscope::reference
