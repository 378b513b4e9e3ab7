#include "sim/plan/planner/planner_reshard.h"
#include "tests/sim/plan/plan_cases.h"

#include <map>

#include <gtest/gtest.h>

// Tokens that change their order, and their rank, between layers.

namespace cpscope::tests {
namespace {

Plan reshard_of(const Scenario& scenario) {
  Scenario in_order = scenario;
  in_order.parallel.layout = LayoutKind::contiguous;
  return plan_reshard(scenario, layout_of(scenario), layout_of(in_order));
}

/// What lands in the buffers of every rank: tokens of the old order, -1 where nothing does.
Order landed(const Plan& plan) {
  std::map<BufferId, std::vector<int64_t>> content;
  Order order(plan.home.size());
  for (const TransferItem& item : plan.forward.transfers) {
    std::vector<int64_t>& to = order[static_cast<size_t>(to_index(item.dst))];
    to.resize(static_cast<size_t>(plan.buffer(item.to).rows), -1);
    const std::vector<int64_t> owned = expand(plan.list(plan.q_lists[item.src]));
    const std::vector<int64_t> from_rows = expand(plan.list(item.from_rows));
    const std::vector<int64_t> to_rows = expand(plan.list(item.to_rows));
    EXPECT_EQ(from_rows.size(), to_rows.size());
    for (size_t i = 0; i < from_rows.size(); ++i) {
      int64_t& row = to[static_cast<size_t>(to_rows[i])];
      EXPECT_EQ(row, -1) << "a row that lands twice";
      row = owned[static_cast<size_t>(from_rows[i])];
    }
  }
  return order;
}

// Of 16 tokens rank 0 owns [0, 4) and [12, 16), and needs [0, 8): 4 rows of 4 elements of 2 bytes
// go each way.
TEST(Reshard, SendsTheSecondChunkOfAZigzag) {
  const Plan plan = reshard_of(make_case({16}, 2));
  EXPECT_EQ(landed(plan), (Order{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
  int64_t bytes = 0;
  for (const TransferItem& item : plan.forward.transfers) bytes += item.bytes;
  EXPECT_EQ(bytes, 2 * 4 * 4 * 2);
}

TEST(Reshard, BringsEveryValidTokenIntoOrderWhateverTheLayout) {
  for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::dual_chunk,
                                  LayoutKind::dual_chunk_packed, LayoutKind::striped}) {
    for (const int64_t stripe : {1, 3}) {
      for (const int32_t ranks : {1, 3, 4}) {
        Scenario scenario = make_case({29, 0, 17, 5}, ranks, layout);
        scenario.parallel.stripe = stripe;
        SCOPED_TRACE(show(scenario));
        const Plan plan = reshard_of(scenario);
        std::vector<std::pair<int64_t, int64_t>> places;  // sequence, position
        for (const std::vector<int64_t>& rank : landed(plan)) {
          for (const int64_t token : rank) {
            for (size_t s = 0; s < plan.layout.slots.sequences.size(); ++s) {
              const SlotSide slot = plan.layout.slots.sequences[s].side(Side::q);
              if (slot.is_valid(token)) places.emplace_back(s, token - slot.valid_begin());
            }
          }
        }
        ASSERT_EQ(places.size(), 29u + 17u + 5u);
        EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
      }
    }
  }
}

TEST(Reshard, OfALayoutInOrderSendsNothing) {
  for (const TransferItem& item :
       reshard_of(make_case({64, 32}, 4, LayoutKind::contiguous)).forward.transfers)
    EXPECT_EQ(item.src, item.dst);
}

}  // namespace
}  // namespace cpscope::tests
