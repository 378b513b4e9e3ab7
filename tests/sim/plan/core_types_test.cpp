#include "sim/base/id_vector.h"
#include "sim/plan/batch_slots.h"
#include "sim/plan/item_uses.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/visit_items.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

template <class Vector, class Index>
concept IsIndexedBy = requires(Vector vector, Index index) {
  vector[index];
};

TEST(IdVector, IsIndexedByItsIdsAndCountsThem) {
  using ByRank = IdVector<RankId, int64_t>;
  static_assert(IsIndexedBy<ByRank, RankId>);
  static_assert(!IsIndexedBy<ByRank, StepId> && !IsIndexedBy<ByRank, size_t>);
  ByRank values{7, 8};
  EXPECT_EQ(values.push_back(9), RankId{2});
  std::vector<RankId> ids;
  for (const RankId id : values.ids()) ids.push_back(id);
  EXPECT_EQ(ids, (std::vector<RankId>{RankId{0}, RankId{1}, RankId{2}}));
  EXPECT_EQ(values.size(), ids.size());
  EXPECT_EQ(values[RankId{1}], 8);
  EXPECT_EQ(values[RankId{2}], 9);
  EXPECT_TRUE(values.has(RankId{2}));
  EXPECT_FALSE(values.has(RankId{3}));
  EXPECT_FALSE(values.has(RankId{-1}));
}

TEST(Items, AreEachVisitedOnceInTheOrderOfTheStages) {
  const char* path = CPSCOPE_SCENARIOS "/thd_padding_hierarchical.toml";
  const Plan plan = plan_of(load_scenario(path).value().scenario);
  for (const Direction direction : kDirections) {
    const Pass& pass = plan.pass(direction);
    std::vector<ItemId> expected, visited;
    for (const Stage& stage : pass.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        expected.push_back({direction, stage.kind, i});
    }
    std::set<const void*> items;
    for_each_item(plan, direction, [&](const ItemId& id, const auto& item) {
      visited.push_back(id);
      items.insert(&item);
      visit_item(plan, id, [&](const auto& named) {
        EXPECT_EQ(static_cast<const void*>(&named), static_cast<const void*>(&item));
      });
    });
    EXPECT_TRUE(visited == expected) << to_name(direction);
    EXPECT_EQ(static_cast<int64_t>(visited.size()), pass.num_items()) << to_name(direction);
    EXPECT_EQ(static_cast<int64_t>(items.size()), pass.num_items()) << to_name(direction);
  }
}

TEST(Items, ReadAndWriteOnlyBuffersThatTheyName) {
  int64_t seen = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Result<Plan> plan = make_plan(random_scenario(seed));
    if (!plan.ok()) continue;
    for (const Direction direction : kDirections) {
      for_each_item(plan.value(), direction, [&](const ItemId& id, const auto& item) {
        const auto named = buffers_of(item);
        const auto expect_named = [&](BufferId buffer) {
          ++seen;
          EXPECT_TRUE(buffer != kNoBuffer &&
                      std::find(named.begin(), named.end(), buffer) != named.end())
              << "seed " << seed << ", " << to_name(direction) << " " << to_name(id.kind) << " "
              << id.index << ", buffer " << to_index(buffer);
        };
        visit_reads(item, expect_named);
        visit_writes(item, expect_named);
      });
    }
  }
  EXPECT_GT(seen, 1000);
}

TEST(SequenceSlot, HasOnEachSideTheFieldsOfThatSide) {
  const SequenceSlot slot{.q_begin = 10,
                          .q_valid = 3,
                          .q_slot = 4,
                          .kv_begin = 20,
                          .kv_valid = 5,
                          .kv_slot = 8,
                          .q_front = 1,
                          .kv_front = 2};
  using Fields = std::array<int64_t, 6>;
  const auto fields_of = [&](Side side) {
    const SlotSide on = slot.side(side);
    return Fields{on.begin, on.valid, on.slot, on.valid_begin(), on.valid_end(), on.end()};
  };
  EXPECT_EQ(fields_of(Side::q), (Fields{10, 3, 4, 11, 14, 14}));
  EXPECT_EQ(fields_of(Side::kv), (Fields{20, 5, 8, 22, 27, 28}));
  EXPECT_EQ(slot.q_valid_begin(), 11);
  EXPECT_EQ(slot.kv_valid_begin(), 22);
  const SlotSide keys = slot.side(Side::kv);
  for (int64_t id = 18; id < 30; ++id) EXPECT_EQ(keys.is_valid(id), id >= 22 && id < 27) << id;
}

}  // namespace
}  // namespace cpscope::tests
