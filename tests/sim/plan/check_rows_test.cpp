#include "sim/plan/check/check_rows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Id by id: the ids whose weights do not cancel.
std::map<int64_t, uint64_t> sum_by_id(const std::vector<WeightedRun>& runs) {
  std::map<int64_t, uint64_t> sums;
  for (const WeightedRun& weighted : runs) {
    for (int64_t i = 0; i < weighted.run.count(); ++i) sums[weighted.run.at(i)] += weighted.weight;
  }
  std::erase_if(sums, [](const auto& entry) { return entry.second == 0; });
  return sums;
}

/// Runs that cancel, cut at other places on the two sides; `stride` is the stride of some of them.
std::vector<WeightedRun> balanced_runs(std::mt19937& random, int64_t lowest, int64_t ids,
                                       int64_t pairs, int64_t stride) {
  std::vector<WeightedRun> runs;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t step = random() % 2 == 0 ? 1 : stride;
    const int64_t begin = lowest + static_cast<int64_t>(random() % static_cast<uint64_t>(ids));
    const int64_t count = 1 + static_cast<int64_t>(random() % 9);
    const int64_t cut = static_cast<int64_t>(random()) % count;
    const uint64_t weight = random();
    runs.push_back({{begin, begin + (count - 1) * step + 1, step}, weight});
    if (cut > 0) runs.push_back({{begin, begin + (cut - 1) * step + 1, step}, 0 - weight});
    runs.push_back({{begin + cut * step, begin + (count - 1) * step + 1, step}, 0 - weight});
  }
  return runs;
}

TEST(CheckRows, FindTheIdWhoseWeightsDoNotCancel) {
  std::mt19937 random(7);
  int64_t crowded = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t ids = 1 + random() % 60, pairs = 1 + random() % 60, stride = 1 + random() % 4;
    const int64_t lowest = static_cast<int64_t>(random() % 100);
    std::vector<WeightedRun> runs = balanced_runs(random, lowest, ids, pairs, stride);
    crowded += lowest + ids < pairs ? 1 : 0;
    ASSERT_TRUE(sum_by_id(runs).empty());
    ASSERT_EQ(first_unbalanced(runs), -1) << "trial " << trial;
    runs[random() % runs.size()].weight += 1;
    const int64_t found = first_unbalanced(runs);
    // With a common stride ids are visited class by class, so any of them may come first.
    ASSERT_TRUE(sum_by_id(runs).contains(found)) << "trial " << trial << ", id " << found;
  }
  EXPECT_GT(crowded, 100) << "sums in place are looked at too";
}

int64_t draw_below(std::mt19937& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

TokenRun draw_run(std::mt19937& random, int64_t ids, int64_t max_stride) {
  TokenRun run;
  run.stride = 1 + draw_below(random, max_stride);
  run.begin = draw_below(random, ids);
  const int64_t most = (ids - 1 - run.begin) / run.stride + 1;
  run.end = run.begin + draw_below(random, std::min<int64_t>(most, 9)) * run.stride + 1;
  return run;
}

TEST(CheckRows, FindAnIdThatTwoRunsShareAndNeverOneThatTheyDoNot) {
  std::mt19937 random(11);
  int64_t shared_trials = 0, apart_trials = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int64_t ids = 10 + draw_below(random, 120), max_stride = 1 + draw_below(random, 4);
    std::vector<TokenRun> runs(static_cast<size_t>(1 + draw_below(random, 5)));
    std::map<int64_t, int64_t> owners;
    for (TokenRun& run : runs) {
      run = draw_run(random, ids, max_stride);
      for (int64_t i = 0; i < run.count(); ++i) ++owners[run.at(i)];
    }
    const bool is_shared = std::any_of(owners.begin(), owners.end(),
                                       [](const auto& owner) { return owner.second > 1; });
    const int64_t found = first_shared(runs);
    ASSERT_EQ(found >= 0, is_shared) << "trial " << trial << ", id " << found;
    if (is_shared) {
      ASSERT_GT(owners[found], 1) << "trial " << trial << ", id " << found;
    }
    ++(is_shared ? shared_trials : apart_trials);
  }
  EXPECT_GT(shared_trials, 500);
  EXPECT_GT(apart_trials, 500);
}

TEST(CheckRows, FindTheIdThatAThousandRunsShare) {
  EXPECT_EQ(first_shared(std::vector<TokenRun>(1000, {5, 6, 1})), 5);
  EXPECT_EQ(first_shared(std::vector<TokenRun>(1000, {4, 11, 3})), 4);
}

/// A plan with only lists and slots.
RunListId add_list(Plan& plan, const std::vector<TokenRun>& runs) {
  const auto first = static_cast<int64_t>(plan.runs.size());
  plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  return plan.run_lists.push_back({first, static_cast<int64_t>(runs.size()), count_ids(runs)});
}

TEST(RowPicker, PicksTheIdsThatStandInTheRowsNamed) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<TokenRun> tokens(static_cast<size_t>(1 + draw_below(random, 4))), rows;
    for (TokenRun& run : tokens) run = draw_run(random, 60, 3);
    const std::vector<int64_t> ids = expand(tokens);
    const auto num_rows = static_cast<int64_t>(ids.size());
    for (int64_t i = draw_below(random, 4); i-- > 0;) rows.push_back(draw_run(random, num_rows, 3));
    std::vector<int64_t> expected;
    for (const int64_t row : expand(rows)) expected.push_back(ids[static_cast<size_t>(row)]);
    Plan plan;
    const RunListId token_list = add_list(plan, tokens), row_list = add_list(plan, rows);
    RowPicker picker(plan);
    ASSERT_EQ(expand(picker.pick(token_list, row_list)), expected) << "trial " << trial;
    ASSERT_EQ(expand(picker.pick(token_list, kAllRows)), ids) << "trial " << trial;
  }
}

/// Sequences, some with padding before or behind them, some empty, and a tail that belongs to no
/// sequence.
void draw_slots(std::mt19937& random, BatchSlots& slots) {
  for (int64_t s = 1 + draw_below(random, 4); s-- > 0;) {
    SequenceSlot slot{.q_begin = slots.tokens, .kv_begin = slots.kv_tokens};
    slot.q_valid = draw_below(random, 9);
    slot.kv_valid = draw_below(random, 9);
    slot.q_front = draw_below(random, 3);
    slot.kv_front = draw_below(random, 3);
    slot.q_slot = slot.q_front + slot.q_valid + draw_below(random, 3);
    slot.kv_slot = slot.kv_front + slot.kv_valid + draw_below(random, 3);
    slots.sequences.push_back(slot);
    slots.tokens += slot.q_slot;
    slots.kv_tokens += slot.kv_slot;
  }
  slots.tokens += 1 + draw_below(random, 4);
  slots.kv_tokens += 1 + draw_below(random, 4);
}

/// The place of a token, found by searching one slot after another.
RowPlace look_up(const BatchSlots& slots, int64_t token, Side side) {
  RowPlace place{.token = token};
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    const int64_t first = slot.begin + slot.front;
    if (token < first || token >= first + slot.valid) continue;
    place.sequence = static_cast<int64_t>(s);
    place.position = token - first;
  }
  return place;
}

struct ReadRows {
  Plan plan;
  std::vector<TokenRun> runs;
  std::vector<RowPlace> places;  // [row]
  RunListId list{};
  Side side = Side::kv;
};

ReadRows draw_rows(std::mt19937& random) {
  ReadRows rows;
  rows.side = random() % 2 == 0 ? Side::q : Side::kv;
  draw_slots(random, rows.plan.layout.slots);
  const BatchSlots& slots = rows.plan.layout.slots;
  for (int64_t i = 1 + draw_below(random, 3); i-- > 0;)
    rows.runs.push_back(draw_run(random, slots.tokens_of(rows.side), 3));
  for (const int64_t token : expand(rows.runs))
    rows.places.push_back(look_up(slots, token, rows.side));
  rows.list = add_list(rows.plan, rows.runs);
  return rows;
}

TEST(RowReader, KnowsTokenSequenceAndPositionOfEveryRow) {
  std::mt19937 random(13);
  for (int trial = 0; trial < 2000; ++trial) {
    const ReadRows rows = draw_rows(random);
    const RowReader reader(rows.plan, rows.list, rows.side);
    ASSERT_EQ(reader.rows(), static_cast<int64_t>(rows.places.size())) << "trial " << trial;
    for (int64_t row = 0; row < reader.rows(); ++row) {
      const RowPlace seen = reader.place(row), expected = rows.places[static_cast<size_t>(row)];
      ASSERT_EQ(seen.token, expected.token) << "trial " << trial << ", row " << row;
      ASSERT_EQ(seen.sequence, expected.sequence) << "trial " << trial << ", row " << row;
      ASSERT_EQ(seen.position, expected.position) << "trial " << trial << ", row " << row;
    }
  }
}

TEST(RowReader, CutsRowsIntoStretchesOfOneSequenceInAscendingOrder) {
  std::mt19937 random(14);
  for (int trial = 0; trial < 2000; ++trial) {
    const ReadRows rows = draw_rows(random);
    const RowReader reader(rows.plan, rows.list, rows.side);
    const int64_t begin = draw_below(random, reader.rows());
    const int64_t end = begin + 1 + draw_below(random, reader.rows() - begin);
    const auto [first, last] = reader.stretches(begin, end);
    ASSERT_NE(first, last);
    EXPECT_TRUE(first->row_begin <= begin && begin < first->row_end) << "trial " << trial;
    EXPECT_TRUE((last - 1)->row_begin < end && end <= (last - 1)->row_end) << "trial " << trial;
    for (const Stretch* stretch = first; stretch != last; ++stretch) {
      if (stretch != first) {
        ASSERT_EQ(stretch->row_begin, (stretch - 1)->row_end) << "trial " << trial;
      }
      for (int64_t row = stretch->row_begin; row < stretch->row_end; ++row) {
        ASSERT_EQ(reader.place(row).sequence, stretch->sequence) << "trial " << trial;
        if (stretch->sequence >= 0 && row > stretch->row_begin) {
          ASSERT_GT(reader.place(row).position, reader.place(row - 1).position) << trial;
        }
      }
      // No shorter than necessary: the next row is another sequence's, or goes back.
      const bool goes_on = stretch + 1 != last && (stretch + 1)->sequence == stretch->sequence;
      if (goes_on) {
        ASSERT_GE(stretch->sequence, 0) << "trial " << trial << ": padding is cut in two";
        ASSERT_LE(reader.place(stretch->row_end).position,
                  reader.place(stretch->row_end - 1).position)
            << "trial " << trial;
      }
    }
  }
}

TEST(RowReader, SaysWithWhichStrideRowsOfOneRunFollowEachOther) {
  std::mt19937 random(15);
  for (int trial = 0; trial < 3000; ++trial) {
    const ReadRows rows = draw_rows(random);
    const RowReader reader(rows.plan, rows.list, rows.side);
    const int64_t begin = draw_below(random, reader.rows());
    const int64_t end = begin + 1 + draw_below(random, reader.rows() - begin);
    int64_t run_begin = 0, expected = 0;
    for (const TokenRun& run : rows.runs) {
      const bool is_inside = run_begin <= begin && end <= run_begin + run.count();
      if (is_inside) expected = run.stride;
      run_begin += run.count();
    }
    // A run is cut where its tokens change to another sequence, or to padding.
    for (int64_t row = begin; row + 1 < end; ++row) {
      if (reader.place(row).sequence != reader.place(row + 1).sequence) expected = 0;
    }
    bool is_padding = false;
    for (int64_t row = begin; row < end; ++row)
      is_padding = is_padding || reader.place(row).sequence < 0;
    if (is_padding) continue;
    const RowSeries& series = reader.series(begin);
    ASSERT_EQ(end <= series.end ? series.stride : 0, expected) << "trial " << trial;
  }
}

}  // namespace
}  // namespace cpscope::tests
