#include "sim/plan/check/plan_check.h"
#include "sim/plan/mask_bands.h"
#include "sim/plan/piece_table.h"
#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

// Plans of hundreds of ranks: each takes a fraction of a second, and 5 to 14 seconds where every
// rank or piece is compared with every other, or what is refused is made first.

namespace cpscope::tests {
namespace {

/// 512 ranks with a head each.
Scenario case_of_documents(int64_t documents, int64_t length, LayoutKind layout, CommType comm) {
  Scenario scenario =
      make_case(std::vector<int64_t>(static_cast<size_t>(documents), length), 512, layout, comm);
  scenario.attention.heads = scenario.attention.kv_heads = 512;
  return scenario;
}

TEST(ManyRanks, ExchangeTheHeadsOfManyDocumentsInOneSweepOfTheProof) {
  const Plan plan = plan_of(case_of_documents(300, 2048, LayoutKind::dual_chunk, CommType::a2a));
  EXPECT_GT(plan.runs.size(), 500'000U);
  expect_proved(plan);
}

// A slice for each document, the same 200000 on every rank.
TEST(ManyRanks, ProveTheSlicesThatAllShareOnce) {
  const Plan plan = plan_of(case_of_documents(200'000, 8, LayoutKind::contiguous, CommType::a2a));
  EXPECT_EQ(plan.slices.size(), 200'000U);
  expect_proved(plan);
}

std::string complaint_of(const Scenario& scenario) {
  const Result<Plan> plan = make_plan(scenario);
  return plan ? "" : plan.error().complaints.front().what;
}

// 200 million slices, one for each pair of ranks in each document.
TEST(ManyRanks, AreRefusedForTheSlicesOfGatheredStripesBeforeTheseAreMade) {
  EXPECT_EQ(complaint_of(case_of_documents(1500, 2048, LayoutKind::striped, CommType::all_gather)),
            "the plan has more than 134217728 band slices");
}

TEST(ManyRanks, AreRefusedForTheRunsOfAGroupCastBeforeTheseAreMade) {
  for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::striped})
    EXPECT_EQ(complaint_of(case_of_documents(1500, 2048, layout, CommType::group_cast)),
              "group_cast has too many token runs to send: more than 67108864");
}

// Two of every eight tokens of one sequence, in order: each piece of queries sees all pieces of
// keys before it, which are one band, and a part of its own.
TEST(ManyRanks, MeetInStripesOfOneLongSequenceWithoutALookAtEveryPairOfPieces) {
  constexpr int64_t kPieces = 200'000;
  const Scenario scenario = make_case({8 * kPieces}, 1, LayoutKind::contiguous);
  const BatchSlots slots = layout_of(scenario).slots;
  std::vector<TokenRun> runs;
  for (int64_t piece = 0; piece < kPieces; ++piece) runs.push_back({8 * piece, 8 * piece + 2, 1});
  std::vector<BandSlice> bands;
  const int64_t pairs =
      intersect(make_pieces(runs, slots, Side::q), make_pieces(runs, slots, Side::kv),
                compile_mask(scenario.attention, slots.sequences), bands);
  EXPECT_EQ(std::ssize(bands), 2 * kPieces - 1);
  EXPECT_EQ(pairs, 2 * kPieces * (kPieces - 1) + 3 * kPieces);
  EXPECT_EQ(bands.back(),
            (BandSlice{2 * kPieces - 2, 2 * kPieces, 2 * kPieces - 2, 2 * kPieces, -1, 0}));
}

}  // namespace
}  // namespace cpscope::tests
