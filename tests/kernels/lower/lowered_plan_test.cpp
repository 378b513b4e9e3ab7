// Plans as devices carry them out: proved to give the plan's answers, and what lowering saves.
#include "kernels/lower/lowered_plan.h"

#include "kernels/lower/lowered_check.h"
#include "kernels/lower/passes.h"
#include "sim/scenario/random_scenario.h"
#include "tests/kernels/lower/plan_cases.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

bool is_narrow(const LoweredPlan& lowered, BufferId id) { return lowered.buffers[id].is_narrow; }

struct Seen {
  int64_t cut = 0, saved_reorders = 0, saved_rows = 0;
  int64_t replacing = 0, rounding_sums = 0, rounding_values = 0;  // transfers
  int64_t narrow_dq = 0, narrow_dkv = 0, narrow_received = 0;     // gradients
  int64_t cut_results = 0;                                        // backward passes
  int64_t own_merges = 0, rounded_merges = 0;                     // of compute items
  int64_t narrow_merges = 0;                                      // into the dtype
  int64_t shares = 0;                                             // transfers
  int64_t wire_copies = 0;                                        // of buffers
  int64_t joined = 0;                                             // compute items
};

void expect_proved(const Plan& plan, int32_t most_pieces, const std::string& what, Seen& seen,
                   bool can_merge = true, bool adds_shares = false, bool can_join = false) {
  Lowering lowering;
  lowering.adds_shares = adds_shares;
  if (can_join) lowering.can_join = [](const ComputeItem&) { return true; };
  lowering.pieces = {most_pieces, 1};
  lowering.writes_dtype = lowering.waits_for_pieces = [](const ComputeItem&) { return true; };
  if (can_merge) lowering.can_merge = lowering.writes_dtype;
  const LoweredPlan lowered = lower_plan(plan, lowering);
  if (const auto error = check_lowered(plan, lowered))
    ADD_FAILURE() << what << ": " << to_text(*error);
  for (const Direction direction : kDirections) {
    const bool is_backward = direction == Direction::backward;
    const Pass &planned = plan.pass(direction), &made = lowered.plan.pass(direction);
    const PassNotes& notes = lowered.notes[direction];
    for (size_t i = 0; i < made.transfers.size(); ++i) {
      const TransferNote& note = notes.transfers[i];
      seen.shares += note.is_share ? 1 : 0;
      if (note.origin == kNoOrigin) continue;  // a joined item's gradients
      const auto origin = static_cast<size_t>(note.origin);
      seen.replacing += made.transfers[i].landing != planned.transfers[origin].landing ? 1 : 0;
      seen.rounding_sums += note.rounding.sums ? 1 : 0;
      seen.rounding_values += note.rounding.values ? 1 : 0;
    }
    seen.cut += notes.is_cut ? 1 : 0;
    seen.cut_results += is_backward && made.computes.size() > planned.computes.size() ? 1 : 0;
    for (const ComputeItem& item : made.computes) {
      seen.narrow_dq += is_backward && is_narrow(lowered, item.dq) ? 1 : 0;
      seen.narrow_dkv += is_backward && is_narrow(lowered, item.dkv) ? 1 : 0;
    }
    for (const ComputeNote& note : notes.computes) {
      seen.joined += note.parts.size() > 1 ? 1 : 0;
      seen.own_merges += note.own_merge.merges ? 1 : 0;
      seen.rounded_merges += note.own_merge.rounds ? 1 : 0;
    }
    for (const MergeItem& item : made.merges)
      seen.narrow_merges += item.partial != kNoBuffer && is_narrow(lowered, item.into) ? 1 : 0;
    for (const TransferItem& item : made.transfers)
      seen.narrow_received += is_backward && is_narrow(lowered, item.to) ? 1 : 0;
    seen.saved_reorders +=
        static_cast<int64_t>(planned.reorders.size()) - static_cast<int64_t>(made.reorders.size());
  }
  for (const BufferId id : plan.buffers.ids()) {
    seen.wire_copies += lowered.buffers[id].has_wire_copy ? 1 : 0;
    seen.saved_rows += plan.buffer(id).rows - lowered.plan.buffer(id).rows;
  }
}

TEST(LoweredPlan, GivesEveryAnswerThatThePlanGives) {
  Seen seen;
  for (uint64_t seed = 1; seed <= 800 && !::testing::Test::HasFailure(); ++seed) {
    Scenario scenario = random_scenario(seed, {});
    // Shares consist of numbers that are rounded once.
    const bool adds_shares = seed % 2 != 0 && scenario.numerics.accumulate == Accumulate::fp32;
    if (adds_shares) scenario.numerics.dtype = Dtype::bf16;
    const Result<Plan> plan = make_plan(scenario);
    if (!plan) continue;
    for (const int32_t most_pieces : {1, 4})
      expect_proved(plan.value(), most_pieces, fmt::format("seed {}, {} pieces", seed, most_pieces),
                    seen, seed % 4 != 0, adds_shares, seed % 3 != 0);
  }
  EXPECT_GT(seen.own_merges, 500);
  EXPECT_GT(seen.rounded_merges, 100);
  EXPECT_GT(seen.narrow_merges, 100);
  EXPECT_GT(seen.cut, 50);
  EXPECT_GT(seen.saved_reorders, 500);
  EXPECT_GT(seen.saved_rows, 10'000);
  EXPECT_GT(seen.replacing, 500);
  EXPECT_GT(seen.rounding_sums, 500);
  EXPECT_GT(seen.rounding_values, 100);
  EXPECT_GT(seen.narrow_dq, 100);
  EXPECT_GT(seen.narrow_dkv, 100);
  EXPECT_GT(seen.narrow_received, 100);
  EXPECT_GT(seen.shares, 150);
  EXPECT_GT(seen.wire_copies, 50);
  EXPECT_GT(seen.joined, 100);
}

/// What a random scenario's kernels can do, and which passes run.
Lowering random_lowering(uint64_t seed) {
  Lowering lowering;
  lowering.adds_shares = seed % 2 != 0;
  lowering.pieces = {seed % 3 == 0 ? 1 : 4, 1};
  lowering.writes_dtype = lowering.waits_for_pieces = [](const ComputeItem&) { return true; };
  lowering.can_merge = lowering.can_join = lowering.writes_dtype;
  return lowering;
}

TEST(LoweredPlan, GivesEveryAnswerWithoutAnyOneOfThePasses) {
  const std::span<const LoweringPass> passes = lowering_passes();
  for (uint64_t seed = 1; seed <= 120 && !::testing::Test::HasFailure(); ++seed) {
    Scenario scenario = random_scenario(seed, {});
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.accumulate = Accumulate::fp32;
    const Result<Plan> plan = make_plan(scenario);
    if (!plan) continue;
    for (size_t left_out = 0; left_out < passes.size(); ++left_out) {
      Lowering lowering = random_lowering(seed);
      lowering.without = {std::string(passes[left_out].name)};
      if (const auto error = check_lowered(plan.value(), lower_plan(plan.value(), lowering)))
        ADD_FAILURE() << "seed " << seed << " without " << passes[left_out].name << ": "
                      << to_text(*error);
      // And with no other.
      lowering.without.clear();
      for (const LoweringPass& other : passes) {
        if (other.name != passes[left_out].name) lowering.without.emplace_back(other.name);
      }
      if (const auto error = check_lowered(plan.value(), lower_plan(plan.value(), lowering)))
        ADD_FAILURE() << "seed " << seed << " with only " << passes[left_out].name << ": "
                      << to_text(*error);
    }
  }
}

// A share may bring the first gradient of some of its rows and a later one of others: nothing
// zeroes the sum before.
TEST(LoweredPlan, AddsSharesToZeros) {
  int64_t num_mixed = 0;
  for (const uint64_t seed : {935u, 981u, 1159u, 1325u}) {
    Scenario scenario = random_scenario(seed, {});
    scenario.numerics.dtype = Dtype::bf16;
    const Result<Plan> plan = make_plan(scenario);
    ASSERT_TRUE(plan) << seed;
    const LoweredPlan lowered = lower_plan(plan.value(), random_lowering(seed));
    if (const auto error = check_lowered(plan.value(), lowered))
      ADD_FAILURE() << "seed " << seed << ": " << to_text(*error);
    IdVector<BufferId, std::set<int64_t>> begun(plan.value().buffers.size());
    for (size_t i = 0; i < lowered.plan.backward.transfers.size(); ++i) {
      const TransferItem& item = lowered.plan.backward.transfers[i];
      if (!lowered.notes.backward.transfers[i].is_share) continue;
      const TokenRun all{0, lowered.plan.rows_of(item), 1};
      const std::vector<int64_t> rows = expand(runs_of_rows(lowered.plan, item.to_rows, all));
      size_t num_new = 0;
      for (const int64_t row : rows) num_new += begun[item.to].insert(row).second ? 1 : 0;
      num_mixed += num_new > 0 && num_new < rows.size() ? 1 : 0;
    }
  }
  EXPECT_GT(num_mixed, 0);
}

TEST(LoweredPlan, NamesEveryPassOnce) {
  std::vector<std::string_view> names;
  for (const LoweringPass& pass : lowering_passes()) {
    names.push_back(pass.name);
    EXPECT_FALSE(pass.summary.empty()) << pass.name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(LoweredPlan, TakesNamesOfPassesThatItHas) {
  EXPECT_TRUE(parse_pass_names("").value().empty());
  EXPECT_EQ(parse_pass_names("cut_inputs,narrow_outs").value(),
            (std::vector<std::string>{"cut_inputs", "narrow_outs"}));
  EXPECT_EQ(parse_pass_names("all").value().size(), lowering_passes().size());
  for (const char* wrong : {"cut", "cut_inputs,", ",cut_inputs", "all,cut_inputs", " "}) {
    const auto names = parse_pass_names(wrong);
    ASSERT_FALSE(names) << wrong;
    EXPECT_EQ(names.error().kind, ErrorKind::bad_input);
    EXPECT_NE(to_text(names.error()).find("join_computes, skip_reorders"), std::string::npos);
  }
}

Plan plan_of(const char* type, int64_t tokens = 256, int32_t kv_heads = 8, int32_t ranks = 4) {
  return make_case_plan({type, fmt::format("{}", tokens), ranks, kv_heads});
}

TEST(LoweredPlan, GivesEveryAnswerWhereHeadsAreComputedInTwoItems) {
  for (const char* type : {"a2a", "all_gather", "p2p", "group_cast"}) {
    Seen seen;
    expect_proved(plan_of(type, 256, 32), 8, type, seen);
    EXPECT_EQ(seen.cut_results, std::string(type) == "a2a" ? 1 : 0) << type;
  }
}

LoweredPlan lower(const Plan& plan, int32_t most_pieces, bool adds_shares = false) {
  Lowering lowering;
  lowering.adds_shares = adds_shares;
  lowering.pieces.most = most_pieces;
  lowering.writes_dtype = lowering.waits_for_pieces = [](const ComputeItem&) { return true; };
  lowering.can_merge = lowering.writes_dtype;
  return lower_plan(plan, lowering);
}

TEST(LoweredPlan, LeavesARingNothingButTransfersComputesAndTheSumsThatTravel) {
  const Plan plan = plan_of("p2p", 256, 32);
  const LoweredPlan lowered = lower(plan, 1);
  EXPECT_TRUE(lowered.plan.forward.merges.empty());
  EXPECT_TRUE(lowered.plan.forward.finishes.empty());
  const Pass& backward = lowered.plan.backward;
  // Three steps add a rank's result to the received sum; the first step has received none.
  EXPECT_EQ(backward.merges.size(), 12u);
  for (const MergeItem& item : backward.merges)
    EXPECT_EQ(plan.buffer(item.into).kind, BufferKind::dkv);
  // dq is rounded last, in a separate pass; dk and dv are sent in the dtype.
  EXPECT_EQ(backward.finishes.size(), 4u);
  for (const TransferItem& item : backward.transfers) {
    if (item.payload != Payload::dkv) continue;
    EXPECT_TRUE(is_narrow(lowered, item.from) && is_narrow(lowered, item.to));
  }
  for (const HomeBuffers& home : lowered.plan.home) {
    EXPECT_TRUE(is_narrow(lowered, home.dkv));
    EXPECT_FALSE(is_narrow(lowered, home.dq));
  }
}

TEST(LoweredPlan, HoldsASumInFp32ThatSomethingLandsInBeforeItIsRounded) {
  Plan plan = plan_of("p2p");
  Pass& pass = plan.backward;
  const auto sends_sums = [](const TransferItem& item) { return item.payload == Payload::dkv; };
  TransferItem extra = *std::find_if(pass.transfers.begin(), pass.transfers.end(), sends_sums);
  extra.to = plan.home[RankId{0}].dkv;
  pass.transfers.push_back(extra);
  const auto last = static_cast<int64_t>(pass.transfers.size());
  // After the last merge, before the finish.
  pass.stages.insert(pass.stages.end() - 1,
                     {pass.stages.back().step, StageKind::transfer, last - 1, last});
  const LoweredPlan lowered = lower(plan, 1);
  EXPECT_FALSE(is_narrow(lowered, plan.home[RankId{0}].dkv));
  EXPECT_TRUE(is_narrow(lowered, plan.home[RankId{1}].dkv));
}

TEST(LoweredPlan, HoldsWhatTravelsAroundARingInFp32WhereTheWireDoes) {
  Plan plan = plan_of("p2p");
  for (TransferItem& item : plan.backward.transfers) item.wire_fp32 = true;
  const LoweredPlan lowered = lower(plan, 1);
  for (const TransferItem& item : lowered.plan.backward.transfers) {
    if (item.payload != Payload::dkv) continue;
    EXPECT_FALSE(is_narrow(lowered, item.from) || is_narrow(lowered, item.to));
  }
}

TEST(LoweredPlan, LeavesUlyssesNothingButTransfersAndComputes) {
  const LoweredPlan lowered = lower(plan_of("a2a"), 1);
  EXPECT_TRUE(lowered.plan.forward.reorders.empty());
  EXPECT_TRUE(lowered.plan.forward.merges.empty());
  EXPECT_TRUE(lowered.plan.forward.finishes.empty());
  ASSERT_EQ(lowered.plan.forward.stages.size(), 3u);
  // Results have 16 bits from the kernel to their home.
  for (const HomeBuffers& home : lowered.plan.home) EXPECT_TRUE(is_narrow(lowered, home.out));
}

TEST(LoweredPlan, LeavesAUlyssesBackwardNeitherMergesNorRoundings) {
  const LoweredPlan lowered = lower(plan_of("a2a"), 1);
  EXPECT_TRUE(lowered.plan.backward.reorders.empty());
  EXPECT_TRUE(lowered.plan.backward.merges.empty());
  EXPECT_TRUE(lowered.plan.backward.finishes.empty());
  for (const TransferItem& item : lowered.plan.backward.transfers)
    EXPECT_EQ(item.landing, Landing::replace);
}

TEST(LoweredPlan, HoldsGradientsOfUlyssesInTheDtype) {
  const LoweredPlan lowered = lower(plan_of("a2a"), 1);
  for (const ComputeItem& item : lowered.plan.backward.computes) {
    EXPECT_TRUE(is_narrow(lowered, item.dkv));
    EXPECT_TRUE(is_narrow(lowered, item.dq));
  }
  for (const HomeBuffers& home : lowered.plan.home) {
    EXPECT_TRUE(is_narrow(lowered, home.dq));
    EXPECT_TRUE(is_narrow(lowered, home.dkv));
  }
}

TEST(LoweredPlan, HoldsGradientsThatAreAddedUpInFp32) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 1);
  for (const HomeBuffers& home : lowered.plan.home) EXPECT_FALSE(is_narrow(lowered, home.dkv));
  // Rows that stay on their rank are not rounded.
  for (const ComputeItem& item : lowered.plan.backward.computes)
    EXPECT_FALSE(is_narrow(lowered, item.dkv));
}

TEST(LoweredPlan, HoldsSumsInFp32EvenOfRoundedGradients) {
  Plan plan = plan_of("all_gather");
  for (TransferItem& item : plan.backward.transfers) item.link = LinkClass::ring;
  const LoweredPlan lowered = lower(plan, 1);
  for (const HomeBuffers& home : lowered.plan.home) EXPECT_FALSE(is_narrow(lowered, home.dkv));
}

TEST(LoweredPlan, HoldsGradientsOfOneRankInTheDtypeWhereTheyAreRoundedAtLast) {
  Plan plan = plan_of("p2p", 256, 8, 1);
  EXPECT_TRUE(is_narrow(lower(plan, 1), plan.home[RankId{0}].dkv));
  // Removes the rounding of the answer.
  std::erase_if(plan.backward.stages,
                [](const Stage& stage) { return stage.kind == StageKind::finish; });
  plan.backward.finishes.clear();
  EXPECT_FALSE(is_narrow(lower(plan, 1), plan.home[RankId{0}].dkv));
}

TEST(LoweredPlan, HoldsNoGradientsInADtypeThatNoKernelWrites) {
  Lowering lowering;
  lowering.writes_dtype = [](const ComputeItem& item) { return item.dq == kNoBuffer; };
  const LoweredPlan lowered = lower_plan(plan_of("a2a"), lowering);
  for (const ComputeItem& item : lowered.plan.backward.computes)
    EXPECT_FALSE(is_narrow(lowered, item.dkv));
  for (const HomeBuffers& home : lowered.plan.home) EXPECT_TRUE(is_narrow(lowered, home.dkv));
}

TEST(LoweredPlan, AddsGatheredGradientsToTheFirstOfThemAndRoundsTheLast) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 1);
  EXPECT_TRUE(lowered.plan.backward.merges.empty());
  // For a dq that a kernel writes rounded no finish is left.
  EXPECT_TRUE(lowered.plan.backward.finishes.empty());
  for (const HomeBuffers& home : lowered.plan.home) {
    std::vector<std::pair<Landing, Rounding>> landings;
    for (size_t i = 0; i < lowered.plan.backward.transfers.size(); ++i) {
      const TransferItem& item = lowered.plan.backward.transfers[i];
      if (item.to == home.dkv)
        landings.push_back({item.landing, lowered.notes.backward.transfers[i].rounding});
    }
    const std::pair add{Landing::add, Rounding{}};
    EXPECT_EQ(
        landings,
        (std::vector<std::pair<Landing, Rounding>>{
            {Landing::replace, Rounding{}}, add, add, {Landing::add, Rounding{.sums = true}}}));
  }
}

TEST(LoweredPlan, KeepsZerosWhereARowGetsNoGradient) {
  Plan plan = plan_of("a2a");
  // The last transfer of the backward adds to dk and dv of some rank: without it rows stay zeros.
  const BufferId to = plan.backward.transfers.back().to;
  plan.backward.transfers.pop_back();
  for (Stage& stage : plan.backward.stages) {
    if (stage.kind == StageKind::transfer)
      stage.end = std::min(stage.end, static_cast<int64_t>(plan.backward.transfers.size()));
  }
  const LoweredPlan lowered = lower(plan, 1);
  ASSERT_EQ(lowered.plan.backward.merges.size(), 1u);
  EXPECT_EQ(lowered.plan.backward.merges[0].into, to);
  for (const TransferItem& item : lowered.plan.backward.transfers) {
    if (item.payload == Payload::dkv) {
      EXPECT_EQ(item.landing == Landing::add, item.to == to);
    }
  }
}

TEST(LoweredPlan, RoundsAnAnswerThatIsSentOnAsWell) {
  Plan plan = plan_of("a2a");
  const BufferId sent = plan.backward.finishes.front().buffer;
  ASSERT_NE(sent, plan.home[RankId{0}].dq);
  EXPECT_TRUE(lower(plan, 1).plan.backward.finishes.empty());
  plan.home[RankId{0}].dq = sent;
  EXPECT_TRUE(is_narrow(lower(plan, 1), sent)) << "its kernel rounds it";
  const LoweredPlan lowered = lower_plan(plan, {});  // no kernel can
  ASSERT_EQ(lowered.plan.backward.finishes.size(), 1u);
  EXPECT_EQ(lowered.plan.backward.finishes[0].buffer, sent);
}

TEST(LoweredPlan, SendsPiecesInTheOrderInWhichTheyAreComputed) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 8);
  const PassNotes& notes = lowered.notes.forward;
  ASSERT_TRUE(notes.is_cut);
  EXPECT_EQ(notes.ranks[RankId{0}].cuts.kv, (std::vector<int32_t>{2, 4, 6, 8}));
  EXPECT_EQ(notes.ranks[RankId{0}].cuts.q, (std::vector<int32_t>{8, 16, 24, 32}));
  // Rows that stay on their rank are in pieces too.
  ASSERT_EQ(notes.transfers.size(), 4u * 16u);
  for (size_t i = 0; i < notes.transfers.size(); ++i)
    EXPECT_EQ(notes.transfers[i].piece, static_cast<int32_t>(i / 16)) << "transfer " << i;
  EXPECT_EQ(lowered.plan.forward.computes.size(), 4u);
}

TEST(LoweredPlan, SendsTheFirstHeadsOfUlyssesWhileTheLastAreComputed) {
  const LoweredPlan lowered = lower(plan_of("a2a", 16384), 8);
  const Pass& pass = lowered.plan.forward;
  ASSERT_EQ(pass.computes.size(), 8u);
  EXPECT_EQ(pass.computes[1].heads.begin, 8);
  EXPECT_EQ(pass.computes[1].heads.end, 14);
  EXPECT_EQ(pass.computes[5].heads.begin, 14);
  EXPECT_EQ(pass.computes[5].heads.end, 16);
  EXPECT_EQ(pass.computes[1].visible_pairs, 3 * pass.computes[5].visible_pairs);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(lowered.notes.forward.computes[i].origin, static_cast<int64_t>(i % 4));
  // Rows that stay on their rank wait for all heads, and so come among the last.
  const Stage& results = pass.stages.back();
  ASSERT_EQ(results.end - results.begin, 2 * 12 + 4);
  for (int64_t i = results.begin; i < results.end; ++i) {
    const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
    const bool is_early = i - results.begin < 12;
    EXPECT_EQ(item.heads.size(), item.src == item.dst ? 8 : is_early ? 6 : 2) << "transfer " << i;
  }
}

TEST(LoweredPlan, SendsTheFirstGradientsOfUlyssesWhileTheLastAreComputed) {
  const LoweredPlan lowered = lower(plan_of("a2a", 16384, 16), 8);
  const Pass& pass = lowered.plan.backward;
  ASSERT_EQ(pass.computes.size(), 4u);  // four KV heads a rank: two are more than a third
  const LoweredPlan longer = lower(plan_of("a2a", 32768, 16), 8);
  ASSERT_EQ(longer.plan.backward.computes.size(), 8u);
  // The last KV head, with two query heads.
  const std::vector<ComputeItem>& computes = longer.plan.backward.computes;
  EXPECT_EQ(computes[1].heads.begin, 8);
  EXPECT_EQ(computes[1].heads.end, 14);
  EXPECT_EQ(computes[5].heads.begin, 14);
  EXPECT_EQ(computes[5].heads.end, 16);
  // Rows that stay on their rank follow.
  const Stage& results = longer.plan.backward.stages.back();
  ASSERT_EQ(results.end - results.begin, 2 * (12 + 12) + 2 * 4);
  for (int64_t i = results.begin; i < results.begin + 48; ++i) {
    const TransferItem& item = longer.plan.backward.transfers[static_cast<size_t>(i)];
    const bool is_early = i - results.begin < 24;
    const int32_t each = item.payload == Payload::dkv ? 1 : 2;  // heads for each KV head
    EXPECT_NE(item.src, item.dst);
    EXPECT_EQ(item.heads.begin, each * (4 * to_index(item.src) + (is_early ? 0 : 3)));
    EXPECT_EQ(item.heads.size(), each * (is_early ? 3 : 1));
  }
}

TEST(LoweredPlan, KeepsHeadsTogetherWhereTheLastWouldLeaveMultiprocessorsIdle) {
  const LoweredPlan lowered = lower(plan_of("a2a", 4096, 32), 8);
  EXPECT_EQ(lowered.plan.forward.computes.size(), 4u);
  EXPECT_EQ(lowered.plan.backward.computes.size(), 4u);
}

TEST(LoweredPlan, SendsGradientsThatKernelsRoundWhenAllAreComputed) {
  EXPECT_EQ(lower(plan_of("all_gather", 16384, 16), 8).plan.backward.computes.size(), 4u);
}

int64_t num_shares_of(const LoweredPlan& lowered) {
  const std::vector<TransferNote>& notes = lowered.notes.backward.transfers;
  return std::count_if(notes.begin(), notes.end(),
                       [](const TransferNote& note) { return note.is_share; });
}

TEST(LoweredPlan, AddsSharesOfGatheredGradientsAtOnce) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 1, true);
  EXPECT_TRUE(lowered.plan.backward.merges.empty());
  EXPECT_TRUE(lowered.plan.backward.finishes.empty());
  for (const HomeBuffers& home : lowered.plan.home) EXPECT_TRUE(is_narrow(lowered, home.dkv));
  const std::vector<TransferNote>& notes = lowered.notes.backward.transfers;
  for (size_t i = 0; i < notes.size(); ++i) {
    const TransferItem& item = lowered.plan.backward.transfers[i];
    EXPECT_EQ(notes[i].is_share, item.payload == Payload::dkv);
  }
  EXPECT_EQ(num_shares_of(lowered), 16);
  // Rows that stay on their rank are fp32; others are sent in the dtype.
  for (const ComputeItem& item : lowered.plan.backward.computes) {
    EXPECT_FALSE(is_narrow(lowered, item.dkv));
    EXPECT_TRUE(lowered.buffers[item.dkv].has_wire_copy);
  }
}

TEST(LoweredPlan, SendsSharesToTheNearestNeighboursFirstWhenAllAreComputed) {
  const LoweredPlan lowered = lower(plan_of("all_gather", 16384, 16), 8, true);
  const Pass& pass = lowered.plan.backward;
  EXPECT_EQ(pass.computes.size(), 4u);
  const Stage& results = pass.stages.back();
  ASSERT_EQ(results.end - results.begin, 16);
  for (int64_t i = results.begin; i < results.end; ++i) {
    const TransferItem& item = pass.transfers[static_cast<size_t>(i)];
    EXPECT_EQ((to_index(item.dst) - to_index(item.src) + 4) % 4, (i - results.begin) / 4)
        << "share " << i;
  }
}

TEST(LoweredPlan, AddsOneByOneWhatRoundsEverySumOrComesTwice) {
  const auto has_shares = [](const Plan& plan) { return num_shares_of(lower(plan, 1, true)) > 0; };
  Plan plan = plan_of("all_gather");
  EXPECT_TRUE(has_shares(plan));
  plan.scenario.numerics.accumulate = Accumulate::dtype;
  EXPECT_FALSE(has_shares(plan)) << "each sum is rounded";
  plan.scenario.numerics.accumulate = Accumulate::fp32;
  plan.scenario.numerics.dtype = Dtype::fp32;
  EXPECT_FALSE(has_shares(plan)) << "nothing is rounded";
  plan.scenario.numerics.dtype = Dtype::bf16;
  plan.scenario.attention.head_dim_v = 60;
  EXPECT_FALSE(has_shares(plan)) << "lanes are added by eights";
  EXPECT_FALSE(has_shares(plan_of("all_gather", 256, 8, 1))) << "nothing comes over a wire";
  EXPECT_FALSE(has_shares(plan_of("all_gather", 256, 8, 32))) << "more than one kernel adds";
}

TEST(LoweredPlan, SendsExactGradientsWithoutACopyForWires) {
  Plan plan = plan_of("all_gather");
  for (TransferItem& item : plan.backward.transfers) item.wire_fp32 = true;
  const LoweredPlan lowered = lower(plan, 1, true);
  for (const BufferNote& note : lowered.buffers) EXPECT_FALSE(note.has_wire_copy);
  EXPECT_EQ(num_shares_of(lowered), 16);
}

TEST(LoweredPlan, KeepsARingWhole) { EXPECT_FALSE(lower(plan_of("p2p"), 8).notes.forward.is_cut); }

TEST(LoweredPlan, FetchesKeysAndValuesForABackwardInPieces) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 8);
  const PassNotes& notes = lowered.notes.backward;
  ASSERT_TRUE(notes.is_cut);
  EXPECT_EQ(notes.ranks[RankId{0}].cuts.kv, (std::vector<int32_t>{2, 4, 6, 8}));
  EXPECT_EQ(notes.ranks[RankId{0}].cuts.q, (std::vector<int32_t>{8, 16, 24, 32}));
  // Gradients arrive whole.
  int64_t num_pieces = 0;
  for (size_t i = 0; i < notes.transfers.size(); ++i) {
    if (notes.transfers[i].piece == kWhole) continue;
    ++num_pieces;
    EXPECT_EQ(lowered.plan.backward.transfers[i].payload, Payload::kv);
  }
  EXPECT_EQ(num_pieces, 4 * 16);
}

TEST(LoweredPlan, KeepsTheInputsOfAUlyssesBackwardWhole) {
  // Row statistics read d_out before any kernel waits for pieces.
  const LoweredPlan lowered = lower(plan_of("a2a"), 8);
  EXPECT_TRUE(lowered.notes.forward.is_cut);
  EXPECT_FALSE(lowered.notes.backward.is_cut);
}

TEST(LoweredPlan, CutsHeadsFromSmallToLarge) {
  constexpr int64_t kLarge = 100'000'000;
  EXPECT_EQ(cut_heads(8, 1, kLarge), (std::vector<int32_t>{8}));
  EXPECT_EQ(cut_heads(1, 8, kLarge), (std::vector<int32_t>{1}));
  EXPECT_EQ(cut_heads(5, 8, kLarge), (std::vector<int32_t>{1, 2, 4, 5}));
  EXPECT_EQ(cut_heads(32, 8, kLarge), (std::vector<int32_t>{1, 2, 4, 8, 16, 24, 32}));
  EXPECT_EQ(cut_heads(32, 3, kLarge), (std::vector<int32_t>{1, 2, 32}));
}

TEST(LoweredPlan, BeginsWithAQuarterOfSmallHeadsAtMost) {
  EXPECT_EQ(cut_heads(16, 8, 3'000'000), (std::vector<int32_t>{2, 4, 8, 12, 16}));
  EXPECT_EQ(cut_heads(16, 8, 1), (std::vector<int32_t>{4, 8, 12, 16}));
  EXPECT_EQ(cut_heads(16, 8, 0), (std::vector<int32_t>{4, 8, 12, 16}));
  EXPECT_EQ(cut_heads(8, 8, 3'000'000), (std::vector<int32_t>{2, 4, 6, 8}));
  EXPECT_EQ(cut_heads(8, 8, 100'000'000), (std::vector<int32_t>{1, 2, 4, 6, 8}));
  EXPECT_EQ(cut_heads(2, 8, 1), (std::vector<int32_t>{1, 2}));
}

TEST(LoweredPlan, TellsOfPiecesAsOfOneItem) {
  const LoweredPlan lowered = lower(plan_of("all_gather"), 8);
  std::vector<ItemEvent> events;
  std::vector<int64_t> origins;
  for (const TransferNote& note : lowered.notes.forward.transfers) origins.push_back(note.origin);
  for (size_t i = 0; i < origins.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    events.push_back({{Direction::forward, StageKind::transfer, at},
                      lowered.plan.forward.transfers[i].src,
                      StepId{0},
                      10 * at,
                      10 * at + 5});
  }
  const std::vector<ItemEvent> planned = planned_events(lowered, events);
  ASSERT_EQ(planned.size(), 16u);
  for (const ItemEvent& event : planned) {
    const auto first = std::find(origins.begin(), origins.end(), event.item.index);
    const auto last = std::find(origins.rbegin(), origins.rend(), event.item.index);
    EXPECT_EQ(event.start_ns, 10 * (first - origins.begin()));
    EXPECT_EQ(event.end_ns, 10 * (origins.rend() - last - 1) + 5);
  }
}

}  // namespace
}  // namespace cpscope::kernels
