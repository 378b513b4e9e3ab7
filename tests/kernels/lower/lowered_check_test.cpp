// The proof of lowered plans: each way of spoiling one is found, and says what and where.
#include "kernels/lower/lowered_check.h"

#include "sim/plan/visit_items.h"
#include "tests/kernels/lower/plan_cases.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

LoweredPlan lower_fully(const Plan& plan, int32_t most_pieces = 4, bool adds_shares = true) {
  Lowering lowering;
  lowering.adds_shares = adds_shares;
  lowering.pieces = {most_pieces, 1};
  lowering.writes_dtype = lowering.waits_for_pieces = [](const ComputeItem&) { return true; };
  lowering.can_merge = lowering.can_join = lowering.writes_dtype;
  return lower_plan(plan, lowering);
}

/// What the proof says of a spoiled plan; "proved" if nothing.
std::string judge(const Plan& plan, const LoweredPlan& lowered) {
  const auto error = check_lowered(plan, lowered);
  return error ? to_text(*error) : "proved";
}

const std::vector<PlanCase>& cases() {
  static const std::vector<PlanCase> kCases = {
      {"p2p", "90, 38"},
      {"a2a", "128"},
      {"all_gather", "128"},
      {"a2a+p2p", "128", 4, 8, "dual_chunk", "a2a_size = 2\n"},
      {"group_cast", "100, 28", 4, 8, "lpt", "dispatch_chunk = 16\n"},
      {"group_cast", "90, 28", 4, 8, "dual_chunk", "dispatch = \"queries\"\n"},
      {"pass_q", "90, 38"},
      {"token_ring", "128"},
      {"helper_ring", "90, 38", 4, 8, "contiguous"},
      {"mesh", "90, 38", 4, 8, "dual_chunk", "mesh_q = 2\n"},
      {"gather_q", "128"}};
  return kCases;
}

/// Spoils one thing of a pass in each place where that is possible, and counts the places in which
/// the proof holds nevertheless.
struct Tally {
  int64_t places = 0, unseen = 0;
  std::string first_unseen;

  void judge_spoiled(const Plan& plan, const LoweredPlan& spoiled, const std::string& what) {
    ++places;
    if (judge(plan, spoiled) != "proved") return;
    if (unseen++ == 0) first_unseen = what;
  }
};

/// False where item i cannot be spoiled so.
using Spoil = std::function<bool(LoweredPlan&, Direction, size_t i)>;

Tally spoil_everywhere(StageKind kind, const Spoil& spoil) {
  Tally tally;
  for (const PlanCase& one : cases()) {
    const Plan plan = make_case_plan(one);
    for (const auto& [direction, adds_shares] :
         {std::pair(Direction::forward, false), std::pair(Direction::backward, false),
          std::pair(Direction::backward, true)}) {
      const LoweredPlan right = lower_fully(plan, 4, adds_shares);
      EXPECT_EQ(judge(plan, right), "proved") << one.type;
      const auto count = static_cast<size_t>(count_items(right.plan.pass(direction), kind));
      for (size_t i = 0; i < count; ++i) {
        LoweredPlan spoiled = right;
        if (!spoil(spoiled, direction, i)) continue;
        tally.judge_spoiled(
            plan, spoiled,
            fmt::format("{} {} of {}, {}", to_name(kind), i, one.type, to_name(direction)));
      }
    }
  }
  return tally;
}

/// The stages without one item, which stays in its array.
void leave_out(Pass& pass, StageKind kind, size_t item) {
  const auto i = static_cast<int64_t>(item);
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    Stage& stage = pass.stages[s];
    if (stage.kind != kind || i < stage.begin || i >= stage.end) continue;
    Stage rest = stage;
    rest.begin = i + 1;
    stage.end = i;
    pass.stages.insert(pass.stages.begin() + static_cast<std::ptrdiff_t>(s) + 1, rest);
    return;
  }
}

bool brings_rows(const Plan& plan, const TransferItem& item) {
  return item.heads.size() > 0 &&
         (item.from_rows != kAllRows ? plan.rows(item.from_rows) : plan.buffer(item.from).rows) > 0;
}

/// Keys and values that stay on their rank are still there after the forward pass.
bool changes_rows(const Plan& plan, const TransferItem& item, Direction direction) {
  const bool is_there =
      direction == Direction::backward && item.src == item.dst && item.payload == Payload::kv;
  return brings_rows(plan, item) && !is_there;
}

TEST(LoweredCheck, SeesEveryItemThatIsLeftOut) {
  int64_t places = 0;
  for (const StageKind kind : {StageKind::transfer, StageKind::reorder, StageKind::compute,
                               StageKind::merge, StageKind::finish}) {
    const Tally tally = spoil_everywhere(kind, [&](LoweredPlan& lowered, Direction direction,
                                                   size_t i) {
      Pass& pass = lowered.plan.pass(direction);
      if (kind == StageKind::transfer && !changes_rows(lowered.plan, pass.transfers[i], direction))
        return false;
      if (kind == StageKind::compute && pass.computes[i].num_slices == 0) return false;
      leave_out(pass, kind, i);
      return true;
    });
    EXPECT_EQ(tally.unseen, 0) << to_name(kind) << ": " << tally.first_unseen;
    places += tally.places;
  }
  EXPECT_GT(places, 200);
}

TEST(LoweredCheck, SeesATransferThatLandsOrRoundsOtherwise) {
  const Tally landing = spoil_everywhere(
      StageKind::transfer, [](LoweredPlan& lowered, Direction direction, size_t i) {
        TransferItem& item = lowered.plan.pass(direction).transfers[i];
        if (!brings_rows(lowered.plan, item)) return false;
        item.landing = item.landing == Landing::add ? Landing::replace : Landing::add;
        return true;
      });
  EXPECT_EQ(landing.unseen, 0) << landing.first_unseen;
  EXPECT_GT(landing.places, 100);
  const Tally rounding = spoil_everywhere(
      StageKind::transfer, [](LoweredPlan& lowered, Direction direction, size_t i) {
        const TransferItem& item = lowered.plan.pass(direction).transfers[i];
        Rounding& planned = lowered.notes[direction].transfers[i].rounding;
        // Shares are rounded as whole sums, and results in the dtype are rounded already.
        if (!brings_rows(lowered.plan, item) || !planned.sums) return false;
        if (lowered.buffers[item.to].is_narrow) return false;
        planned.sums = false;
        return true;
      });
  EXPECT_EQ(rounding.unseen, 0) << rounding.first_unseen;
  EXPECT_GT(rounding.places, 0);
}

TEST(LoweredCheck, SeesAComputeItemThatMergesOrRoundsOtherwise) {
  const Tally merging =
      spoil_everywhere(StageKind::compute, [](LoweredPlan& lowered, Direction direction, size_t i) {
        if (lowered.plan.pass(direction).computes[i].num_slices == 0) return false;
        OwnMerge& own = lowered.notes[direction].computes[i].own_merge;
        own.merges = !own.merges;
        return true;
      });
  EXPECT_EQ(merging.unseen, 0) << merging.first_unseen;
  EXPECT_GT(merging.places, 40);
}

TEST(LoweredCheck, SeesABufferInFp32WhereNothingElseRounds) {
  // A buffer in the dtype whose values are rounded before and after holds the same numbers in
  // fp32: those are no fault.
  int64_t places = 0, seen = 0;
  for (const PlanCase& one : cases()) {
    const Plan plan = make_case_plan(one);
    const LoweredPlan right = lower_fully(plan);
    for (const BufferId id : plan.buffers.ids()) {
      if (!right.buffers[id].is_narrow) continue;
      LoweredPlan spoiled = right;
      spoiled.buffers[id].is_narrow = false;
      ++places;
      seen += judge(plan, spoiled) != "proved" ? 1 : 0;
    }
  }
  EXPECT_GT(places, 30);
  EXPECT_GT(seen, 10);
}

TEST(LoweredCheck, SaysWhichRanksExchangeOtherBytes) {
  const Plan plan = make_case_plan({"p2p"});
  LoweredPlan lowered = lower_fully(plan);
  TransferItem& item = lowered.plan.forward.transfers.front();
  item.bytes += 2;
  EXPECT_EQ(judge(plan, lowered),
            fmt::format("the lowered plan is not the plan: rank {} sends rank {} 2 bytes more than "
                        "planned in the forward pass",
                        to_index(item.src), to_index(item.dst)));
}

TEST(LoweredCheck, SaysWhichComputeItemLacksPairs) {
  const Plan plan = make_case_plan({"a2a"});
  LoweredPlan lowered = lower_fully(plan);
  lowered.plan.backward.computes.back().visible_pairs -= 5;
  EXPECT_NE(judge(plan, lowered).find("of the backward pass lacks 5 pairs"), std::string::npos)
      << judge(plan, lowered);
}

TEST(LoweredCheck, SeesPiecesInAnOrderThatTheReceiverDoesNotExpect) {
  const Plan plan = make_case_plan({"all_gather"});
  const LoweredPlan right = lower_fully(plan);
  ASSERT_TRUE(right.notes.forward.is_cut);
  for (size_t i = 0; i < right.notes.forward.transfers.size(); ++i) {
    LoweredPlan spoiled = right;
    spoiled.notes.forward.transfers[i].piece += i == 0 ? 1 : -1;
    EXPECT_NE(judge(plan, spoiled).find("which that rank does not expect there"), std::string::npos)
        << "transfer " << i << ": " << judge(plan, spoiled);
  }
  LoweredPlan spoiled = right;
  spoiled.notes.forward.ranks[RankId{2}].cuts.kv.front() += 1;
  EXPECT_NE(judge(plan, spoiled).find("to rank 2 as piece"), std::string::npos)
      << judge(plan, spoiled);
}

TEST(LoweredCheck, SeesComputesThatRunBeforeTheirInputsArrive) {
  for (const PlanCase& one : cases()) {
    const Plan plan = make_case_plan(one);
    LoweredPlan lowered = lower_fully(plan, 1);
    std::vector<Stage>& stages = lowered.plan.forward.stages;
    const auto is_kind = [](StageKind kind) {
      return [kind](const Stage& stage) { return stage.kind == kind; };
    };
    const auto last = std::find_if(stages.rbegin(), stages.rend(), is_kind(StageKind::compute));
    ASSERT_NE(last, stages.rend()) << one.type;
    std::rotate(stages.begin(), last.base() - 1, last.base());
    EXPECT_NE(judge(plan, lowered), "proved") << one.type;
  }
}

TEST(LoweredCheck, NamesTheRowThatNothingWrites) {
  Plan plan = make_case_plan({"p2p"});
  plan.forward.transfers[0].bytes = 0;  // or its bytes would be missing
  LoweredPlan lowered = lower_fully(plan, 1);
  leave_out(lowered.plan.forward, StageKind::transfer, 0);
  const std::string said = judge(plan, lowered);
  EXPECT_NE(said.find("reads row 0 of buffer"), std::string::npos) << said;
  EXPECT_NE(said.find("which nothing writes"), std::string::npos) << said;
}

}  // namespace
}  // namespace cpscope::kernels
