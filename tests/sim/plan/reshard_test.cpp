#include "sim/plan/planner/planner_reshard.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

// Tokens that change their order, and their rank, between layers.

namespace cpscope::tests {
namespace {

Plan reshard_of(const Scenario& scenario, size_t round = 0) {
  Scenario in_order = scenario;
  in_order.parallel.layout = LayoutKind::contiguous;
  return plan_reshard(scenario, layout_of(scenario), layout_of(in_order), round);
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

/// The rank of a group of so many that owns a position of a sequence, by the layouts' definition.
int64_t rank_in_group(LayoutKind layout, int64_t stripe, int64_t length, int64_t size,
                      int64_t position) {
  const auto part = [&](int64_t parts) {
    return position / ((length + parts - 1) / parts);  // slots are rounded up to whole parts
  };
  if (layout == LayoutKind::striped) return position / stripe % size;
  if (layout == LayoutKind::contiguous) return part(size);
  return std::min(part(2 * size), 2 * size - 1 - part(2 * size));
}

// Groups of 4; of 1, 2 and 1; of 3 and 1; of 4 again.
TEST(Reshard, OfRoundsSendsEveryTokenThatAnotherRankOfItsGroupNeeds) {
  const std::vector<int64_t> lengths{64, 9, 37, 20, 31, 5, 16};
  const std::vector<int64_t> sizes{4, 1, 2, 1, 3, 1, 4};
  const std::vector<int64_t> round_of{0, 1, 1, 1, 2, 2, 3}, first_of{0, 0, 1, 3, 0, 3, 0};
  for (const LayoutKind layout :
       {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::striped}) {
    for (const int64_t stripe : {1, 3}) {
      Scenario scenario = make_case(lengths, 4, layout);
      scenario.parallel.stripe = stripe;
      scenario.parallel.group_rule = GroupRule::given;
      scenario.parallel.cp_sizes = sizes;
      SCOPED_TRACE(show(scenario));
      const int64_t row = scenario.attention.heads * scenario.attention.head_dim_qk * 2;
      int64_t landed_tokens = 0;
      for (size_t round = 0; round < 4; ++round) {
        std::map<std::pair<int64_t, int64_t>, int64_t> expected, sent;  // bytes by (from, to)
        for (size_t s = 0; s < lengths.size(); ++s) {
          if (round_of[s] != static_cast<int64_t>(round)) continue;
          for (int64_t position = 0; position < lengths[s]; ++position) {
            const auto owner = [&](LayoutKind kind) {
              return first_of[s] + rank_in_group(kind, stripe, lengths[s], sizes[s], position);
            };
            const int64_t from = owner(layout), to = owner(LayoutKind::contiguous);
            if (from != to) expected[{from, to}] += row;
          }
        }
        const Plan plan = reshard_of(scenario, round);
        for (const TransferItem& item : plan.forward.transfers)
          if (item.src != item.dst) sent[{to_index(item.src), to_index(item.dst)}] += item.bytes;
        EXPECT_EQ(sent, expected) << "round " << round;
        EXPECT_EQ(sent.empty(), layout == LayoutKind::contiguous);
        for (const std::vector<int64_t>& rank : landed(plan)) {
          EXPECT_TRUE(std::is_sorted(rank.begin(), rank.end())) << "round " << round;
          landed_tokens += std::ssize(rank);
          EXPECT_EQ(std::count(rank.begin(), rank.end(), -1), 0) << "round " << round;
        }
      }
      EXPECT_EQ(landed_tokens, std::reduce(lengths.begin(), lengths.end(), int64_t{0}));
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
