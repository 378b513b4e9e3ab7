#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/scenario/random_scenario.h"
#include "tests/sim/plan/dense_mask.h"
#include "tests/sim/plan/plan_cases.h"

#include <functional>
#include <numeric>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

constexpr uint64_t kNumSeeds = 600;

/// Calls visit for every random scenario that can be planned; the others must be refused by a rule.
/// Returns the number of planned ones.
int64_t for_each_random_plan(const std::function<void(const Plan&, const std::string&)>& visit) {
  int64_t planned = 0;
  for (uint64_t seed = 0; seed < kNumSeeds && !testing::Test::HasFailure(); ++seed) {
    const Scenario scenario = random_scenario(seed, {.has_rare = seed % 3 == 0});
    const std::string where = "seed " + std::to_string(seed) + "\n" + show(scenario);
    const Result<Plan> plan = make_plan(scenario);
    if (!plan.ok()) {
      EXPECT_EQ(plan.error().kind, ErrorKind::refused) << where << to_text(plan.error());
      continue;
    }
    ++planned;
    visit(plan.value(), where);
  }
  return planned;
}

TEST(RandomPlan, ComputesEachVisibleTripleExactlyOnceForwardAndBackward) {
  const int64_t planned = for_each_random_plan([](const Plan& plan, const std::string& where) {
    DenseCount expected = count_visible_cells(plan.scenario, plan.layout.slots);
    DenseCount forward = paint_computes(plan, plan.forward);
    EXPECT_EQ(first_difference(plan, plan.forward, expected, forward), "") << where;
    if (!plan.scenario.numerics.backward) return;
    DenseCount backward = paint_computes(plan, plan.backward);
    EXPECT_EQ(first_difference(plan, plan.backward, expected, backward), "") << where;
  });
  EXPECT_GE(planned, 400);
}

TEST(RandomPlan, CountsPairsInClosedFormAsTheCellsSay) {
  for_each_random_plan([](const Plan& plan, const std::string& where) {
    DenseCount visible = count_visible_cells(plan.scenario, plan.layout.slots);
    const int64_t cells = std::accumulate(visible.count.begin(), visible.count.end(), int64_t{0});
    EXPECT_EQ(summarise(plan).visible_pairs, cells) << where;
    for (const ComputeItem& item : plan.forward.computes) {
      int64_t pairs = 0;
      for (const BandSlice& band : plan.slices_of(item)) {
        for (int64_t q = band.q0; q < band.q1; ++q) {
          for (int64_t k = band.k0; k < band.k1; ++k) {
            const int64_t diagonal = (k - band.k0) - (q - band.q0);
            pairs += diagonal >= band.lo && diagonal <= band.hi ? item.heads.size() : 0;
          }
        }
      }
      EXPECT_EQ(item.visible_pairs, pairs)
          << "rank " << to_index(item.rank) << ", step " << to_index(item.step) << "\n"
          << where;
    }
  });
}

TEST(RandomPlan, PassesEveryCheck) {
  for_each_random_plan([](const Plan& plan, const std::string& where) {
    for (const CheckResult& check : inspect_plan(plan))
      EXPECT_TRUE(check.ok) << check.name << ": " << check.detail << "\n" << where;
  });
}

TEST(RandomPlan, NamesTheNecessaryKvBytesThatTheCellsName) {
  for_each_random_plan([](const Plan& plan, const std::string& where) {
    DenseCount visible = count_visible_cells(plan.scenario, plan.layout.slots);
    const int64_t expected = count_necessary_kv_bytes(plan, visible);
    const PlanSummary summary = summarise(plan);
    EXPECT_EQ(summary.kv_bytes_necessary, expected) << where;
    const Parallel& parallel = plan.scenario.parallel;
    if (parallel.comm_type == CommType::group_cast && parallel.dispatch == Dispatch::tokens) {
      EXPECT_EQ(summary.kv_bytes_moved, expected) << where;
    }
  });
}

/// Steps of a group of so many ranks.
int32_t count_steps(const Scenario& scenario, int32_t ranks) {
  const Parallel& parallel = scenario.parallel;
  if (parallel.comm_type == CommType::p2p) return ranks;
  if (parallel.comm_type == CommType::a2a_p2p) return ranks / parallel.a2a_size;
  if (parallel.heads_per_stage == 0 || !has_head_stages(parallel.comm_type)) return 1;
  const Attention& attention = scenario.attention;
  const int32_t heads = parallel.comm_type == CommType::all_gather
                            ? attention.kv_heads
                            : (attention.heads + ranks - 1) / ranks;
  return (heads + parallel.heads_per_stage - 1) / parallel.heads_per_stage;
}

TEST(RandomPlan, HasTheNumberOfStepsThatItsCommunicationTypeSays) {
  for_each_random_plan([](const Plan& plan, const std::string& where) {
    int32_t expected = 0;
    for (const CpRound& round : plan.layout.rounds) {
      int32_t longest = 0;
      for (const CpGroup& group : round.groups)
        longest = std::max(longest, count_steps(plan.scenario, group.size));
      expected += longest;
    }
    if (plan.layout.rounds.empty())
      expected = count_steps(plan.scenario, plan.scenario.parallel.cp_size);
    EXPECT_EQ(plan.forward.num_steps, expected) << where;
    if (plan.scenario.numerics.backward) {
      EXPECT_EQ(plan.backward.num_steps, expected) << where;
    }
  });
}

TEST(RandomPlan, IsTheSameWhenMadeTwice) {
  for_each_random_plan([](const Plan& plan, const std::string& where) {
    EXPECT_EQ(plan_of(plan.scenario).hash, plan.hash) << where;
  });
}

TEST(LongRandomPlan, ComputesEachVisibleTripleExactlyOnce) {
  RandomSpace space;
  space.max_length = 150;
  space.max_ranks = 9;
  space.any_dtype = true;
  for (uint64_t seed = 10'000; seed < 10'040 && !HasFailure(); ++seed) {
    const Result<Plan> plan = make_plan(random_scenario(seed, space));
    if (!plan.ok()) continue;
    DenseCount expected = count_visible_cells(plan.value().scenario, plan.value().layout.slots);
    DenseCount seen = paint_computes(plan.value(), plan.value().forward);
    EXPECT_EQ(first_difference(plan.value(), plan.value().forward, expected, seen), "")
        << "seed " << seed << "\n"
        << show(plan.value().scenario);
    for (const CheckResult& check : inspect_plan(plan.value()))
      EXPECT_TRUE(check.ok) << check.name << ": " << check.detail << "\n"
                            << show(plan.value().scenario);
  }
}

/// A scenario with too many ranks to be planned, and the number of items that its plan would have.
struct TooLarge {
  CommType comm;
  int32_t ranks;
  bool has_backward;
  int64_t items;
};

TEST(PlanSize, IsSaidWhereAPlanIsRefusedForIt) {
  const int64_t ring = 65536 / 4;
  const TooLarge cases[] = {
      // Forward: a transfer, a compute and a merge for each rank and step; backward twice that.
      {CommType::p2p, 16384, false, int64_t{3} * 16384 * 16384},
      {CommType::p2p, 16384, true, int64_t{9} * 16384 * 16384},
      {CommType::a2a, 16384, true, int64_t{9} * 16384 * 16384},
      // Each rank fetches from each; all other items are few.
      {CommType::all_gather, 16384, false, int64_t{16384} * 16384},
      {CommType::group_cast, 16384, true, int64_t{3} * 16384 * 16384},
      {CommType::a2a_p2p, 65536, true, int64_t{9} * 65536 * (4 + ring)},
  };
  for (const TooLarge& one : cases) {
    Scenario scenario = make_case({131072}, one.ranks, LayoutKind::contiguous, one.comm);
    scenario.attention.heads = scenario.attention.kv_heads = 16384;
    scenario.parallel.a2a_size = 4;
    scenario.numerics.backward = one.has_backward;
    const Result<Plan> plan = make_plan(scenario);
    ASSERT_FALSE(plan.ok()) << to_name(one.comm);
    EXPECT_EQ(plan.error().kind, ErrorKind::refused) << to_name(one.comm);
    EXPECT_NE(to_text(plan.error()).find(" " + std::to_string(one.items) + " items"),
              std::string::npos)
        << to_name(one.comm) << ": " << to_text(plan.error());
  }
}

TEST(PlanRules, AreThoseOfTheContractForEveryNumberOfHeadsRanksAndGroups) {
  for (int32_t heads = 1; heads <= 8; ++heads) {
    for (int32_t ranks = 1; ranks <= 6; ++ranks) {
      for (int32_t group = 1; group <= 4; ++group) {
        for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::all_gather,
                                    CommType::a2a_p2p, CommType::group_cast}) {
          Scenario scenario = make_case({24}, ranks, LayoutKind::contiguous, comm);
          scenario.attention.heads = scenario.attention.kv_heads = heads;
          scenario.parallel.a2a_size = group;
          const bool is_refused = comm == CommType::a2a ? heads < ranks
                                                        : comm == CommType::a2a_p2p &&
                                                              (ranks % group != 0 || heads < group);
          EXPECT_EQ(make_plan(scenario).ok(), !is_refused) << show(scenario);
        }
      }
    }
  }
}

TEST(AllGatherPlan, PutsKvInSequenceOrderUnlessStripesOfOneTokenMeetTheirLike) {
  for (const int32_t stripe : {1, 2, 4}) {
    Scenario scenario = make_case({64}, 4, LayoutKind::striped, CommType::all_gather);
    scenario.parallel.stripe = stripe;
    EXPECT_EQ(plan_of(scenario).forward.reorders.empty(), stripe == 1) << "stripe " << stripe;
  }
  for (const LayoutKind layout : {LayoutKind::contiguous, LayoutKind::dual_chunk}) {
    const Scenario scenario = make_case({64}, 4, layout, CommType::all_gather);
    EXPECT_FALSE(plan_of(scenario).forward.reorders.empty()) << to_name(layout);
  }
}

}  // namespace
}  // namespace cpscope::tests
