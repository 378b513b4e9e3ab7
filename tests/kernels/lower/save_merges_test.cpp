// Merges and finishes that computes do: how many, and proved to leave every answer as it is.
#include "kernels/lower/lowered_check.h"
#include "kernels/lower/passes.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

struct Saved {
  size_t merges = 0, finishes = 0, written_once = 0, own_merges = 0;

  friend Saved operator+(const Saved& a, const Saved& b) {
    return {a.merges + b.merges, a.finishes + b.finishes, a.written_once + b.written_once,
            a.own_merges + b.own_merges};
  }
};

const AskKernel kNoneMerges, kAllMerge = [](const ComputeItem&) { return true; };

LoweredPlan save(const Plan& plan, const AskKernel& can_merge) {
  LoweredPlan lowered = as_planned(plan);
  save_merges(lowered, {.can_merge = can_merge});
  return lowered;
}

Saved count_saved(const Plan& plan, LoweredPlan lowered, Direction direction) {
  Saved saved;
  const Pass &planned = plan.pass(direction), &made = lowered.plan.pass(direction);
  saved.merges = planned.merges.size() - made.merges.size();
  saved.finishes = planned.finishes.size() - made.finishes.size();
  for (const ComputeNote& note : lowered.notes[direction].computes)
    saved.own_merges += note.own_merge.merges ? 1u : 0u;
  if (direction == Direction::backward) return saved;
  narrow_outs(lowered, {.writes_dtype = kAllMerge});
  for (const BufferNote& note : lowered.buffers) saved.written_once += note.is_narrow ? 1u : 0u;
  return saved;
}

Saved prove_saved(const Plan& plan, Direction direction, const std::string& what,
                  const AskKernel& can_merge = kNoneMerges) {
  const LoweredPlan lowered = save(plan, can_merge);
  if (const auto error = check_lowered(plan, lowered))
    ADD_FAILURE() << what << ": " << to_text(*error);
  return count_saved(plan, lowered, direction);
}

Plan shipped(const std::string& name) {
  const Result<LoadedScenario> loaded =
      load_scenario(fmt::format("{}/{}.toml", CPSCOPE_SCENARIOS, name));
  return make_plan(loaded.value().scenario).value();
}

TEST(SaveMerges, LeavesEveryAnswer) {
  Saved all;
  for (uint64_t seed = 1; seed <= 400 && !::testing::Test::HasFailure(); ++seed) {
    const Result<Plan> plan = make_plan(random_scenario(seed, {}));
    if (!plan) continue;
    for (const Direction direction : kDirections) {
      const std::string what = fmt::format("seed {}, {}", seed, to_name(direction));
      const Saved saved = prove_saved(plan.value(), direction, what);
      EXPECT_EQ(saved.own_merges, 0u);
      const Saved merging =
          prove_saved(plan.value(), direction, what + ", kernels merge", kAllMerge);
      all = all + Saved{saved.merges, saved.finishes, saved.written_once, merging.own_merges};
    }
  }
  EXPECT_GT(all.own_merges, 500u);
  EXPECT_GT(all.merges, 1000u);
  EXPECT_GT(all.finishes, 200u);
  EXPECT_GT(all.written_once, 200u);
}

TEST(SaveMerges, SavesTheFirstMergeAndTheRoundingOfARing) {
  const Plan plan = shipped("zigzag");  // 4 ranks
  const Saved saved = prove_saved(plan, Direction::forward, "zigzag");
  EXPECT_EQ(saved.merges, 4u);
  EXPECT_EQ(saved.finishes, 4u);
  EXPECT_EQ(saved.written_once, 0u);
}

TEST(SaveMerges, LeavesNoMergeOfARingWhoseKernelsMerge) {
  const Plan plan = shipped("zigzag");
  const Saved saved = prove_saved(plan, Direction::forward, "zigzag", kAllMerge);
  EXPECT_EQ(saved.own_merges, 12u);
  EXPECT_EQ(saved.merges, 16u);
  EXPECT_EQ(saved.finishes, 4u);
}

// A neighbour's sums are being sent while the kernel runs; dq stays at home.
TEST(SaveMerges, DoesNotLetAKernelWaitForGradientsThatTravel) {
  const Plan plan = shipped("zigzag");
  for (const ComputeNote& note : save(plan, kAllMerge).notes.backward.computes)
    EXPECT_FALSE(note.own_merge.rounds) << "kernels add to dq, tile by tile";
  // dq of three steps on four ranks; dk and dv are merged by no kernel.
  const Saved saved = prove_saved(plan, Direction::backward, "zigzag backward", kAllMerge);
  EXPECT_EQ(saved.own_merges, 12u);
}

TEST(SaveMerges, DoesNotLetAKernelMergeBeforeItsTurn) {
  Plan plan = shipped("zigzag");
  Pass& pass = plan.forward;
  // Two steps compute before the first one's partial is merged.
  for (ComputeItem& item : pass.computes) {
    if (to_index(item.step) != 1) continue;
    const BufferId other = plan.buffers.push_back(plan.buffer(item.out));
    for (MergeItem& merge : pass.merges) {
      if (merge.partial == item.out && to_index(merge.step) == 1) merge.partial = other;
    }
    item.out = other;
  }
  const auto find_stage = [&](StageKind kind, int32_t step) {
    return std::find_if(pass.stages.begin(), pass.stages.end(), [&](const Stage& stage) {
      return stage.kind == kind && to_index(stage.step) == step;
    });
  };
  const auto second = find_stage(StageKind::compute, 1);
  std::rotate(find_stage(StageKind::merge, 0), second, second + 1);
  EXPECT_EQ(prove_saved(plan, Direction::forward, "two partials", kAllMerge).own_merges, 8u);
}

/// The plan with one more transfer into the accumulator of the first rank, from somewhere, behind
/// the stage of `kind` of a step.
Plan with_transfer_to_out(StageKind kind, int32_t step) {
  Plan plan = shipped("zigzag");
  Pass& pass = plan.forward;
  TransferItem extra = pass.transfers[0];
  extra.from = plan.home[RankId{1}].q;
  extra.to = plan.home[RankId{0}].out;
  extra.heads = plan.buffer(extra.to).heads;
  extra.payload = Payload::q;
  extra.tokens = kNoTokens;
  pass.transfers.push_back(extra);
  const auto last = static_cast<int64_t>(pass.transfers.size());
  for (size_t s = 0; s < pass.stages.size(); ++s) {
    if (pass.stages[s].kind != kind || to_index(pass.stages[s].step) != step) continue;
    pass.stages.insert(pass.stages.begin() + static_cast<int64_t>(s) + 1,
                       {pass.stages[s].step, StageKind::transfer, last - 1, last});
    break;
  }
  return plan;
}

TEST(SaveMerges, DoesNotLetAKernelMergeWithWhatIsNotYetThere) {
  const Plan plan = with_transfer_to_out(StageKind::compute, 1);
  EXPECT_EQ(prove_saved(plan, Direction::forward, "out changes", kAllMerge).own_merges, 11u);
}

TEST(SaveMerges, DoesNotLetAKernelWaitForWhatAWireBrings) {
  const Plan plan = with_transfer_to_out(StageKind::merge, 1);
  EXPECT_EQ(prove_saved(plan, Direction::forward, "out comes", kAllMerge).own_merges, 11u);
}

TEST(SaveMerges, KeepsTheOwnMergeOfAPartialThatIsReadAgain) {
  Plan plan = shipped("zigzag");
  // The last partial also travels, before the finish.
  TransferItem extra = plan.forward.transfers[0];
  extra.from = plan.forward.merges.back().partial;
  plan.forward.transfers.push_back(extra);
  const auto last = static_cast<int64_t>(plan.forward.transfers.size());
  plan.forward.stages.insert(plan.forward.stages.end() - 1, {plan.forward.merges.back().step,
                                                             StageKind::transfer, last - 1, last});
  const Saved saved =
      prove_saved(plan, Direction::forward, "zigzag with one more transfer", kAllMerge);
  EXPECT_EQ(saved.own_merges, 11u);
  EXPECT_EQ(saved.finishes, 4u);
}

TEST(SaveMerges, LetsAnAllGatherWriteItsAnswerAtOnce) {
  const Plan plan = shipped("thd_padding_all_gather");
  const Saved saved = prove_saved(plan, Direction::forward, "all-gather");
  EXPECT_EQ(saved.merges, plan.forward.merges.size());
  EXPECT_EQ(saved.written_once, plan.forward.finishes.size());
}

TEST(SaveMerges, KeepsTheFinishThatBringsASinkIn) {
  Plan plan = shipped("zigzag");
  plan.scenario.attention.softmax_type = SoftmaxType::off_by_one;
  const Saved saved = prove_saved(plan, Direction::forward, "zigzag with a sink");
  EXPECT_EQ(saved.merges, 4u);
  EXPECT_EQ(saved.finishes, 0u);
}

TEST(SaveMerges, KeepsTheMergeOfAPartialThatIsReadAgain) {
  Plan plan = shipped("zigzag");
  // The first partial also travels, after its merge.
  const MergeItem first = plan.forward.merges[0];
  TransferItem extra = plan.forward.transfers[0];
  extra.from = first.partial;
  plan.forward.transfers.push_back(extra);
  for (size_t s = 0; s < plan.forward.stages.size(); ++s) {
    if (plan.forward.stages[s].kind != StageKind::merge) continue;
    const auto last = static_cast<int64_t>(plan.forward.transfers.size());
    plan.forward.stages.insert(plan.forward.stages.begin() + static_cast<int64_t>(s) + 1,
                               {first.step, StageKind::transfer, last - 1, last});
    break;
  }
  const Saved saved = prove_saved(plan, Direction::forward, "zigzag with one more transfer");
  EXPECT_EQ(saved.merges, 3u);
}

}  // namespace
}  // namespace cpscope::kernels
