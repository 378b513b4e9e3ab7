// Shortcuts against the plan: both are executed with symbols for numbers, and every buffer that is
// read afterwards must have the same symbol.
#include "kernels/lower/merge_shortcuts.h"

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

/// What a buffer holds, in words: "r(a+b)" is the rounded sum of a and b.
class Symbols {
 public:
  Symbols(const Plan& plan, const Pass& pass, const MergeShortcuts& shortcuts)
      : plan_(plan), pass_(pass), shortcuts_(shortcuts), held_(plan.buffers.size(), "?") {}

  /// Every value that is read: by a transfer, a reorder, or at the end.
  std::vector<std::string> read() {
    for (const Stage& stage : pass_.stages) {
      for (int64_t i = stage.begin; i < stage.end; ++i) visit(stage.kind, static_cast<size_t>(i));
    }
    for (const FinishItem& item : pass_.finishes) read_.push_back(held(item.buffer));
    return read_;
  }

 private:
  std::string& held(BufferId id) { return held_[static_cast<size_t>(to_index(id))]; }

  void visit(StageKind kind, size_t i) {
    switch (kind) {
      case StageKind::transfer: {
        const TransferItem& item = pass_.transfers[i];
        read_.push_back(held(item.from));
        held(item.to) = item.landing == Landing::add
                            ? fmt::format("({} and {})", held(item.to), held(item.from))
                            : held(item.from);
        break;
      }
      case StageKind::reorder:
        read_.push_back(held(pass_.reorders[i].from));
        held(pass_.reorders[i].to) = held(pass_.reorders[i].from);
        break;
      case StageKind::compute:
        for (size_t r = 0; r < 2 && pass_.computes[i].num_slices > 0; ++r) {
          const WrittenResult& result = shortcuts_.written[i][r];
          if (result.buffer == kNoBuffer) continue;
          const std::string own = fmt::format("c{}.{}", i, r);
          held(result.buffer) = result.merges ? fmt::format("{}({}+{})", result.rounds ? "r" : "",
                                                            held(result.buffer), own)
                                              : own;
        }
        break;
      case StageKind::merge: {
        if (shortcuts_.is_merged[i]) break;
        const MergeItem& item = pass_.merges[i];
        const std::string partial = item.partial == kNoBuffer ? "0" : held(item.partial);
        const std::string sum =
            item.order == 0 ? partial : fmt::format("({}+{})", held(item.into), partial);
        held(item.into) = shortcuts_.rounds[i] ? fmt::format("r{}", sum) : sum;
        break;
      }
      case StageKind::finish: {
        const BufferId buffer = pass_.finishes[i].buffer;
        if (shortcuts_.is_finished[i]) break;
        const bool knows_sink = plan_.buffer(buffer).kind == BufferKind::out &&
                                plan_.scenario.attention.softmax_type != SoftmaxType::vanilla;
        held(buffer) = fmt::format("r{}{}", held(buffer), knows_sink ? " with sink" : "");
        break;
      }
    }
  }

  const Plan& plan_;
  const Pass& pass_;
  const MergeShortcuts& shortcuts_;
  std::vector<std::string> held_;  // [buffer]
  std::vector<std::string> read_;
};

struct Saved {
  size_t merges = 0, finishes = 0, written_once = 0, own_merges = 0;
};

const MergingKernels kNoneMerges, kAllMerge = [](const ComputeItem&) { return true; };

Saved expect_same_symbols(const Plan& plan, const Pass& pass, const std::string& what,
                          const MergingKernels& can_merge = kNoneMerges) {
  const MergeShortcuts none = no_shortcuts(plan, pass),
                       found = find_shortcuts(plan, pass, can_merge);
  EXPECT_EQ(Symbols(plan, pass, found).read(), Symbols(plan, pass, none).read()) << what;
  size_t own_merges = 0;
  for (const auto& results : found.written)
    own_merges += (results[0].merges ? 1u : 0u) + (results[1].merges ? 1u : 0u);
  const auto count = [](const std::vector<bool>& flags) {
    return static_cast<size_t>(std::count(flags.begin(), flags.end(), true));
  };
  return {count(found.is_merged), count(found.is_finished), count(found.is_written_once),
          own_merges};
}

Plan shipped(const std::string& name) {
  const Result<LoadedScenario> loaded =
      load_scenario(fmt::format("{}/{}.toml", CPSCOPE_SCENARIOS, name));
  return make_plan(loaded.value().scenario).value();
}

TEST(MergeShortcuts, LeaveEveryNumberThatIsRead) {
  Saved all;
  for (uint64_t seed = 1; seed <= 400 && !::testing::Test::HasFailure(); ++seed) {
    const Result<Plan> plan = make_plan(random_scenario(seed, {}));
    if (!plan) continue;
    for (const Pass* pass : {&plan.value().forward, &plan.value().backward}) {
      const Saved saved = expect_same_symbols(plan.value(), *pass, fmt::format("seed {}", seed));
      all.merges += saved.merges;
      all.finishes += saved.finishes;
      all.written_once += saved.written_once;
      const std::string merging = fmt::format("seed {}, kernels merge", seed);
      all.own_merges += expect_same_symbols(plan.value(), *pass, merging, kAllMerge).own_merges;
    }
  }
  EXPECT_GT(all.own_merges, 500u);
  EXPECT_GT(all.merges, 1000u);
  EXPECT_GT(all.finishes, 200u);
  EXPECT_GT(all.written_once, 200u);
}

TEST(MergeShortcuts, SaveTheFirstMergeAndTheRoundingOfARing) {
  const Plan plan = shipped("zigzag");  // 4 ranks
  const Saved saved = expect_same_symbols(plan, plan.forward, "zigzag");
  EXPECT_EQ(saved.merges, 4u);
  EXPECT_EQ(saved.finishes, 4u);
  EXPECT_EQ(saved.written_once, 0u);
}

TEST(MergeShortcuts, LeaveNoMergeOfARingWhoseKernelsMerge) {
  const Plan plan = shipped("zigzag");
  const Saved saved = expect_same_symbols(plan, plan.forward, "zigzag", kAllMerge);
  EXPECT_EQ(saved.own_merges, 12u);
  EXPECT_EQ(saved.merges, 16u);
  EXPECT_EQ(saved.finishes, 4u);
}

// A neighbour's sums are being sent while the kernel runs; dq stays at home.
TEST(MergeShortcuts, DoNotLetAKernelWaitForGradientsThatTravel) {
  const Plan plan = shipped("zigzag");
  const MergeShortcuts found = find_shortcuts(plan, plan.backward, kAllMerge);
  int32_t merging = 0;
  for (const auto& [dq, dkv] : found.written) {
    merging += dq.merges ? 1 : 0;
    EXPECT_FALSE(dq.rounds) << "kernels add to dq, tile by tile";
    EXPECT_FALSE(dkv.merges);
  }
  EXPECT_EQ(merging, 12);
  expect_same_symbols(plan, plan.backward, "zigzag backward", kAllMerge);
}

TEST(MergeShortcuts, DoNotLetAKernelMergeBeforeItsTurn) {
  Plan plan = shipped("zigzag");
  Pass& pass = plan.forward;
  // Two steps compute before the first one's partial is merged.
  for (ComputeItem& item : pass.computes) {
    if (to_index(item.step) != 1) continue;
    const BufferId other{static_cast<int32_t>(plan.buffers.size())};
    plan.buffers.push_back(plan.buffer(item.out));
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
  EXPECT_EQ(expect_same_symbols(plan, pass, "two partials", kAllMerge).own_merges, 8u);
}

/// The plan with one more transfer into the accumulator of the first rank, from somewhere, behind
/// the stage of `kind` of a step.
Plan with_transfer_to_out(StageKind kind, int32_t step) {
  Plan plan = shipped("zigzag");
  Pass& pass = plan.forward;
  TransferItem extra = pass.transfers[0];
  extra.from = plan.home[1].q;
  extra.to = plan.home[0].out;
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

TEST(MergeShortcuts, DoNotLetAKernelMergeWithWhatIsNotYetThere) {
  const Plan plan = with_transfer_to_out(StageKind::compute, 1);
  EXPECT_EQ(expect_same_symbols(plan, plan.forward, "out changes", kAllMerge).own_merges, 11u);
}

TEST(MergeShortcuts, DoNotLetAKernelWaitForWhatAWireBrings) {
  const Plan plan = with_transfer_to_out(StageKind::merge, 1);
  EXPECT_EQ(expect_same_symbols(plan, plan.forward, "out comes", kAllMerge).own_merges, 11u);
}

TEST(MergeShortcuts, DoTheOwnMergeOfAPartialThatIsReadAgain) {
  Plan plan = shipped("zigzag");
  // The last partial also travels, before the finish.
  TransferItem extra = plan.forward.transfers[0];
  extra.from = plan.forward.merges.back().partial;
  plan.forward.transfers.push_back(extra);
  const auto last = static_cast<int64_t>(plan.forward.transfers.size());
  plan.forward.stages.insert(plan.forward.stages.end() - 1, {plan.forward.merges.back().step,
                                                             StageKind::transfer, last - 1, last});
  const Saved saved =
      expect_same_symbols(plan, plan.forward, "zigzag with one more transfer", kAllMerge);
  EXPECT_EQ(saved.own_merges, 11u);
  EXPECT_EQ(saved.finishes, 4u);
}

TEST(MergeShortcuts, LetAnAllGatherWriteItsAnswerAtOnce) {
  const Plan plan = shipped("thd_padding_all_gather");
  const Saved saved = expect_same_symbols(plan, plan.forward, "all-gather");
  EXPECT_EQ(saved.merges, plan.forward.merges.size());
  EXPECT_EQ(saved.written_once, plan.forward.finishes.size());
}

TEST(MergeShortcuts, KeepTheFinishThatBringsASinkIn) {
  Plan plan = shipped("zigzag");
  plan.scenario.attention.softmax_type = SoftmaxType::off_by_one;
  const Saved saved = expect_same_symbols(plan, plan.forward, "zigzag with a sink");
  EXPECT_EQ(saved.merges, 4u);
  EXPECT_EQ(saved.finishes, 0u);
}

TEST(MergeShortcuts, DoTheMergeOfAPartialThatIsReadAgain) {
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
  const Saved saved = expect_same_symbols(plan, plan.forward, "zigzag with one more transfer");
  EXPECT_EQ(saved.merges, 3u);
}

}  // namespace
}  // namespace cpscope::kernels
