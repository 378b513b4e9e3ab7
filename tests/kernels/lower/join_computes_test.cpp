// Compute items of own and of received keys joined into one: the resulting plan, and the places of
// rows.
#include "kernels/lower/passes.h"
#include "tests/kernels/lower/plan_cases.h"
#include "tests/kernels/tiles/turn_model.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

Plan group_cast(const std::string& lengths, int32_t ranks, const char* layout = "dual_chunk",
                const char* more = "") {
  return make_case_plan({"group_cast", lengths, ranks, 8, layout, more});
}

bool can_all(const ComputeItem& /*item*/) { return true; }

int64_t pairs_of(const Plan& plan, const ComputeItem& item) {
  int64_t pairs = 0;
  for (const BandSlice& slice : plan.slices_of(item)) pairs += count_pairs(slice);
  return pairs * item.heads.size();
}

/// The plan after that pass alone.
LoweredPlan join(const Plan& plan, const AskKernel& can_join = can_all) {
  LoweredPlan lowered = as_planned(plan);
  join_computes(lowered, {.can_join = can_join});
  return lowered;
}

bool joins(const Plan& plan, const AskKernel& can_join = can_all) {
  const LoweredPlan lowered = join(plan, can_join);
  return lowered.plan.forward.computes.size() < plan.forward.computes.size();
}

LoweredPlan lower_joined(const Plan& plan) {
  Lowering lowering;
  lowering.pieces.most = 8;
  lowering.adds_shares = true;
  lowering.can_join = lowering.writes_dtype = lowering.waits_for_pieces = can_all;
  return lower_plan(plan, lowering);
}

TEST(JoinComputes, LeaveGroupCastNothingButTransfersAndAnItemForEachRank) {
  const Plan plan = group_cast("256", 4);
  const LoweredPlan lowered = lower_joined(plan);
  for (const Direction direction : kDirections) {
    const Pass& pass = lowered.plan.pass(direction);
    EXPECT_EQ(pass.computes.size(), 4u);
    EXPECT_TRUE(pass.merges.empty() && pass.finishes.empty()) << to_name(direction);
    EXPECT_TRUE(lowered.notes[direction].is_cut) << to_name(direction);
    EXPECT_EQ(lowered.planned_computes[direction], 8);
  }
  const auto is_narrow = [&](BufferId id) { return lowered.buffers[id].is_narrow; };
  for (const HomeBuffers& home : lowered.plan.home)
    EXPECT_TRUE(is_narrow(home.out) && is_narrow(home.dq) && is_narrow(home.dkv));
}

TEST(JoinComputes, HaveThePairsOfTheirParts) {
  const struct {
    const char *lengths, *layout, *more;
  } cases[] = {{"4096", "dual_chunk", ""},
               {"300, 1500, 90, 700, 40, 1466", "dual_chunk", ""},
               {"3000, 1096", "striped", ""},
               {"300, 1500, 90, 700, 40, 1466", "lpt_local", "dispatch_chunk = 128\n"}};
  for (const auto& [lengths, layout, more] : cases) {
    const Plan plan = group_cast(lengths, 4, layout, more);
    const LoweredPlan joined = join(plan);
    for (const Direction direction : kDirections) {
      const Pass &planned = plan.pass(direction), &made = joined.plan.pass(direction);
      int64_t num_joined = 0;
      for (size_t i = 0; i < made.computes.size(); ++i) {
        const ComputeNote& note = joined.notes[direction].computes[i];
        int64_t pairs = 0;
        for (const JoinedPart& part : note.parts) {
          const ComputeItem& item = planned.computes[static_cast<size_t>(part.origin)];
          EXPECT_EQ(part.visible_pairs, item.visible_pairs);
          EXPECT_EQ(count_ids(part.kv_rows), plan.rows(item.kv_tokens));
          pairs += item.visible_pairs;
        }
        if (note.parts.empty())
          pairs = planned.computes[static_cast<size_t>(note.origin)].visible_pairs;
        num_joined += note.parts.size() > 1 ? 1 : 0;
        EXPECT_EQ(made.computes[i].visible_pairs, pairs) << layout << " " << lengths;
        EXPECT_EQ(pairs_of(joined.plan, made.computes[i]), pairs) << layout << " " << lengths;
      }
      EXPECT_GT(num_joined, 0);
    }
  }
}

/// Begins of the stretches of received rows on each rank.
std::vector<std::vector<int64_t>> begins_of_received(const Plan& plan) {
  std::vector<std::vector<int64_t>> begins;
  for (const ComputeNote& note : join(plan).notes.forward.computes) {
    std::vector<int64_t>& here = begins.emplace_back();
    if (note.parts.size() <= 1) continue;
    for (const TokenRun& run : note.parts.back().kv_rows) here.push_back(run.begin);
  }
  return begins;
}

TEST(JoinComputes, PutReceivedDocumentsOnTilesOfTheirOwn) {
  // Each rank has halves of all three documents, 2000 tokens, and needs the tokens before them from
  // the others.
  const Plan plan = group_cast("1000, 2000, 1000", 2);
  int64_t num_stretches = 0;
  for (const std::vector<int64_t>& begins : begins_of_received(plan)) {
    for (const int64_t begin : begins) {
      EXPECT_EQ(begin % 128, 0);
      EXPECT_GT(begin, 2000) << "own rows end there: keys of both sides would be one range";
      ++num_stretches;
    }
  }
  EXPECT_EQ(num_stretches, 6);
}

TEST(JoinComputes, CutABandWhereItsRowsAreNoMoreTogether) {
  Plan plan = group_cast("1000, 2000, 1000", 2);
  ComputeItem& received = plan.forward.computes[1];
  const auto q = static_cast<int32_t>(plan.rows(received.q_tokens)),
             kv = static_cast<int32_t>(plan.rows(received.kv_tokens));
  received.first_slice = static_cast<int64_t>(plan.slices.size());
  received.num_slices = 1;
  plan.slices.push_back({0, q, 0, kv, -500, 300});
  received.visible_pairs = pairs_of(plan, received);
  const LoweredPlan joined = join(plan);
  const ComputeItem& item = joined.plan.forward.computes[0];
  EXPECT_GE(item.num_slices, plan.forward.computes[0].num_slices + 3);
  EXPECT_EQ(pairs_of(joined.plan, item), item.visible_pairs);
}

TEST(JoinComputes, KeepManyShortStretchesTogether) {
  // Every second token.
  for (const std::vector<int64_t>& begins : begins_of_received(group_cast("512", 2, "striped")))
    EXPECT_LE(begins.size(), 1u);
}

TEST(JoinComputes, AreNoneWhereKernelsCannotOrSomebodyElseReadsWhatCame) {
  const Plan plan = group_cast("256", 4);
  EXPECT_TRUE(joins(plan));
  EXPECT_FALSE(joins(plan, [](const ComputeItem& item) { return item.dq == kNoBuffer; }));
  // A third item.
  Plan third = plan;
  third.forward.computes.push_back(third.forward.computes.back());
  third.forward.stages[1].end += 1;
  ASSERT_EQ(third.forward.stages[1].kind, StageKind::compute);
  EXPECT_FALSE(joins(third));
  // Received keys are sent on.
  Plan relayed = plan;
  std::swap(relayed.forward.transfers[0].from, relayed.forward.transfers[0].to);
  EXPECT_FALSE(joins(relayed));
  // Gradients of received keys are rounded before they leave.
  Plan rounded = plan;
  rounded.backward.finishes.front().buffer = rounded.backward.transfers.back().from;
  EXPECT_FALSE(joins(rounded));
}

TEST(JoinComputes, AreToldAsItemsOneAfterTheOther) {
  const Plan plan = group_cast("256", 4);
  const LoweredPlan lowered = lower_joined(plan);
  const ComputeItem &own = plan.forward.computes[0], &received = plan.forward.computes[1];
  ASSERT_EQ(own.rank, received.rank);
  const int64_t all = own.visible_pairs + received.visible_pairs;
  const std::vector<ItemEvent> events = planned_events(
      lowered,
      {{{Direction::forward, StageKind::compute, 0}, own.rank, StepId{0}, 1000, 1000 + all}});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].item.index, 0);
  EXPECT_EQ(events[1].item.index, 1);
  EXPECT_EQ(events[0].start_ns, 1000);
  EXPECT_NEAR(static_cast<double>(events[0].end_ns),
              1000.0 + static_cast<double>(own.visible_pairs), 1.0);
  EXPECT_EQ(events[1].start_ns, events[0].end_ns);
  EXPECT_NEAR(static_cast<double>(events[1].end_ns), 1000.0 + static_cast<double>(all), 1.0);
  // Transfers of gradients on their way home are no items of the plan.
  const std::vector<TransferNote>& notes = lowered.notes.backward.transfers;
  const auto is_new = [](const TransferNote& note) { return note.origin == kNoOrigin; };
  const auto home = std::find_if(notes.begin(), notes.end(), is_new) - notes.begin();
  ASSERT_LT(home, static_cast<int64_t>(notes.size()));
  EXPECT_TRUE(
      planned_events(
          lowered, {{{Direction::backward, StageKind::transfer, home}, RankId{0}, StepId{0}, 0, 1}})
          .empty());
}

// By the model of turns. With received rows directly after own ones, a row's keys on both sides
// were one range, in another range set than its neighbours', and CTAs reached blocks against the
// order of their turns; the fused backward took 2.6 times as long in the model, twice as long on
// devices.
TEST(JoinComputes, LoseLittleToTurns) {
  for (const auto& [lengths, most_loss, most_terabytes] :
       {std::tuple{"16384", 1.08, 1.4},
        std::tuple{"5660, 1172, 3650, 2677, 889, 2336", 1.23, 2.1}}) {
    const LoweredPlan joined = join(group_cast(lengths, 2));
    for (const ComputeItem& item : joined.plan.backward.computes) {
      const TileList list =
          make_tile_list(joined.plan.slices_of(item), joined.plan.rows(item.q_tokens),
                         joined.plan.rows(item.kv_tokens), {8, 4, 1, 20'000'000 / 1024},
                         {128, 64, true}, TileOwner::keys);
      EXPECT_TRUE(list.walks_by_tile);
      const TurnTimes times = walk_in_turns(list, 4, 132, {});
      EXPECT_LE(times.loss(), most_loss) << lengths << ", rank " << to_index(item.rank);
      EXPECT_LE(times.terabytes_per_second(), most_terabytes)
          << lengths << ", rank " << to_index(item.rank);
    }
  }
}

}  // namespace
}  // namespace cpscope::kernels
