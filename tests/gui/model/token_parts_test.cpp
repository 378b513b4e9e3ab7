#include "gui/model/token_parts.h"

#include "tests/gui/model/random_plans.h"

#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;

/// Calls look(side, run) with runs of several lengths and strides on both sides.
template <class Look>
void for_some_runs(const PlanIndex& index, Look look) {
  for (const Side side : {Side::q, Side::kv}) {
    const int64_t tokens = index.tokens(side);
    for (const int64_t stride : {1, 2, 3, 7}) {
      for (int64_t begin = 0; begin < tokens; begin += 1 + tokens / 5) {
        for (const int64_t end : {begin + 1, (begin + tokens + 1) / 2, tokens})
          look(side, TokenRun{begin, end, stride});
      }
    }
  }
}

TEST(TokenParts, OfOwnersAreThoseOfEachToken) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    for_some_runs(index, [&](Side side, const TokenRun& run) {
      std::map<int32_t, int64_t> owned;      // number of ids of each rank
      std::map<int32_t, int64_t> first_row;  // local row of its first id
      for (const int64_t id : expand(std::vector{run})) {
        const gui::OwnedRow owner = index.owner(side, id);
        if (owner.rank < 0) continue;
        ++owned[owner.rank];
        first_row.try_emplace(owner.rank, owner.row);
      }
      std::vector<int32_t> ranks;
      for (const auto& [rank, count] : owned) ranks.push_back(rank);
      ASSERT_EQ(owners_of(index, std::vector{run}, side), ranks) << run.begin << " " << run.end;
      if (run.stride > 1) return;
      const auto parts = owned_parts(index, {side, run.begin, run.end});
      ASSERT_EQ(parts.size(), ranks.size()) << run.begin << " " << run.end;
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].rank, ranks[i]);
        EXPECT_EQ(parts[i].tokens, owned[ranks[i]]);
        if (parts[i].runs == 1) {
          EXPECT_EQ(parts[i].first_row, first_row[ranks[i]]);
        }
      }
    });
  });
}

TEST(TokenParts, OfSequencesAreThoseOfEachToken) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    for_some_runs(index, [&](Side side, const TokenRun& run) {
      std::map<int64_t, std::vector<int64_t>> ids;  // [sequence]
      int64_t valid = 0;
      for (const int64_t id : expand(std::vector{run})) {
        if (const int64_t sequence = index.sequence_of(side, id); sequence >= 0)
          ids[sequence].push_back(id);
        valid += index.is_valid(side, id) ? 1 : 0;
      }
      ASSERT_EQ(count_valid(index, side, run), valid) << run.begin << " " << run.end;
      const auto parts = sequence_parts(index, side, run);
      ASSERT_EQ(parts.size(), ids.size()) << run.begin << " " << run.end;
      for (const gui::SequencePart& part : parts) {
        EXPECT_EQ(expand(std::vector{part.ids}), ids[part.sequence]);
        const auto& slots = index.plan().layout.slots.sequences;
        EXPECT_EQ(
            part.position,
            part.ids.begin - slots[static_cast<size_t>(part.sequence)].side(side).valid_begin());
      }
    });
  });
}

}  // namespace
}  // namespace cpscope::tests
