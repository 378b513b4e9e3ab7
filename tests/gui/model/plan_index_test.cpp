#include "gui/model/plan_index.h"

#include "sim/plan/planner/planner.h"
#include "sim/plan/visible_interval.h"
#include "sim/scenario/random_scenario.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::When;

constexpr uint64_t kSeeds = 60;

/// Calls `look` with the plans of random scenarios.
template <class Look>
void for_indexed_plans(Look look) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto plan = plan_unless_refused(random_scenario(seed));
    if (!plan) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    look(PlanIndex(*plan));
    ++planned;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(planned, 30);
}

TEST(PlanIndex, FindsTheOwnerAndLocalRowOfEveryToken) {
  for_indexed_plans([](const PlanIndex& index) {
    for (const Side side : {Side::q, Side::kv}) {
      const auto& by_rank = index.plan().layout.runs(side);
      for (const RankId rank : by_rank.ids()) {
        const std::vector<int64_t> tokens = expand(by_rank[rank]);
        for (size_t row = 0; row < tokens.size(); ++row) {
          const gui::OwnedRow owner = index.owner(side, tokens[row]);
          ASSERT_EQ(owner.rank, to_index(rank)) << "token " << tokens[row];
          ASSERT_EQ(owner.row, static_cast<int64_t>(row)) << "token " << tokens[row];
        }
      }
      EXPECT_EQ(index.owner(side, index.tokens(side)).rank, -1) << "beyond the last token";
    }
  });
}

TEST(PlanIndex, CountsTheVisiblePairsOfAnyRectangle) {
  for_indexed_plans([](const PlanIndex& index) {
    const int64_t q = index.tokens(Side::q), k = index.tokens(Side::kv);
    const int64_t all = count_all_visible(index.plan());
    ASSERT_EQ(index.count_visible(0, q, 0, k), all);
    // The counts of an uneven partition into rectangles add up to the total.
    int64_t sum = 0;
    for (int64_t q0 = 0; q0 < q; q0 += 7)
      for (int64_t k0 = 0; k0 < k; k0 += 5)
        sum += index.count_visible(q0, std::min(q, q0 + 7), k0, std::min(k, k0 + 5));
    ASSERT_EQ(sum, all);
  });
}

TEST(PlanIndex, NumbersAllStagesOfBothPassesByStep) {
  for_indexed_plans([](const PlanIndex& index) {
    const size_t stages = index.plan().forward.stages.size() + index.plan().backward.stages.size();
    ASSERT_EQ(index.stages().size(), stages);
    ASSERT_EQ(index.steps().size(), static_cast<size_t>(index.plan().forward.num_steps +
                                                        index.plan().backward.num_steps));
    int32_t next = 0;
    for (size_t s = 0; s < index.steps().size(); ++s) {
      const gui::StepRef& step = index.steps()[s];
      ASSERT_EQ(step.first_stage, next);
      for (int32_t stage = step.first_stage; stage < step.end_stage; ++stage) {
        EXPECT_EQ(index.step_of_stage(stage), static_cast<int32_t>(s));
        EXPECT_EQ(PlanIndex::when(stage, index.moment_of_step(static_cast<int32_t>(s))), When::now);
      }
      next = step.end_stage;
    }
    EXPECT_EQ(static_cast<size_t>(next), stages);
  });
}

/// Items of a stage with this rank, found by checking each item.
std::vector<int64_t> look_for(const gui::StageRef& stage, const std::vector<int32_t>& ranks,
                              int32_t rank) {
  std::vector<int64_t> items;
  for (int64_t i = stage.begin; i < stage.end; ++i)
    if (ranks[static_cast<size_t>(i)] == rank) items.push_back(i);
  return items;
}

TEST(PlanIndex, FindsTheItemsOfARankInEveryStage) {
  int64_t found = 0;
  for_indexed_plans([&](const PlanIndex& index) {
    for (const gui::StageRef& stage : index.stages()) {
      const gui::ItemColumns& columns = index.columns(stage.direction, stage.kind);
      for (int32_t rank = 0; rank < index.num_ranks(); ++rank) {
        const std::vector<int64_t> items = index.items_of(stage, rank);
        ASSERT_EQ(items, look_for(stage, columns.rank, rank));
        found += static_cast<int64_t>(items.size());
        if (stage.kind != StageKind::transfer) continue;
        ASSERT_EQ(columns.items_to(stage.begin, stage.end, rank),
                  look_for(stage, columns.other_rank, rank));
      }
    }
  });
  EXPECT_GT(found, 1000);
}

TEST(PlanIndex, KnowsPaddingAndSequences) {
  for_indexed_plans([](const PlanIndex& index) {
    const auto& sequences = index.plan().layout.slots.sequences;
    for (int64_t token = 0; token < index.tokens(Side::q); ++token) {
      int64_t sequence = -1;
      bool is_valid = false;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const SequenceSlot& slot = sequences[s];
        if (token < slot.q_begin || token >= slot.q_begin + slot.q_slot) continue;
        sequence = static_cast<int64_t>(s);
        const int64_t first = slot.q_begin + slot.q_front;
        is_valid = token >= first && token < first + slot.q_valid;
      }
      ASSERT_EQ(index.sequence_of(Side::q, token), sequence) << "token " << token;
      ASSERT_EQ(index.is_valid(Side::q, token), is_valid) << "token " << token;
    }
  });
}

}  // namespace
}  // namespace cpscope::tests
