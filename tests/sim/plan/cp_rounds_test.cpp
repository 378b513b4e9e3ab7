#include "sim/plan/cp_rounds.h"

#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "sim/plan/planner/planner.h"
#include "sim/plan/round_steps.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

// Groups of ranks that work in rounds, each on sequences of its own (parallel.cp_sizes).

namespace cpscope::tests {
namespace {

using Groups = std::vector<CpGroup>;

Scenario make_rounds_case(std::vector<int64_t> lengths, std::vector<int64_t> sizes, int32_t cp_size,
                          LayoutKind layout = LayoutKind::dual_chunk,
                          CommType comm = CommType::p2p) {
  Scenario scenario = make_case(std::move(lengths), cp_size, layout, comm);
  scenario.attention.heads = scenario.attention.kv_heads = 4;
  scenario.parallel.group_rule = GroupRule::given;
  scenario.parallel.cp_sizes = std::move(sizes);
  return scenario;
}

std::vector<CpRound> rounds_in(Result<std::vector<CpRound>> rounds) {
  EXPECT_TRUE(rounds) << (rounds ? "" : rounds.error().complaints.front().what);
  return rounds ? std::move(rounds).value() : std::vector<CpRound>{};
}

std::vector<CpRound> hybrid(const std::vector<int64_t>& lengths, int64_t most, int32_t ranks) {
  return rounds_in(schedule_hybrid(lengths, most, ranks));
}

TEST(CpRounds, TakeTheNextFreeRanksInTheOrderOfTheBatch) {
  const Layout layout = layout_of(make_rounds_case({64, 16, 8, 8, 32}, {4, 2, 1, 1, 3}, 4));
  ASSERT_EQ(layout.rounds.size(), 3u);
  EXPECT_EQ(layout.rounds[0].groups, (Groups{{0, 4, {0}}}));
  EXPECT_EQ(layout.rounds[1].groups, (Groups{{0, 2, {1}}, {2, 1, {2}}, {3, 1, {3}}}));
  EXPECT_EQ(layout.rounds[2].groups, (Groups{{0, 3, {4}}}));
}

// 10 tokens on 2 ranks are padded to 12, the others to nothing; then chunks r and 3 - r of 3.
TEST(CpRounds, CutEachSequenceForTheRanksOfItsGroup) {
  const Layout layout = layout_of(make_rounds_case({10, 6, 4}, {2, 1, 1}, 4));
  EXPECT_EQ(layout.slots.tokens, 12 + 6 + 4);
  EXPECT_EQ(
      query_order(layout),
      (Order{
          {0, 1, 2, 9, 10, 11}, {3, 4, 5, 6, 7, 8}, {12, 13, 14, 15, 16, 17}, {18, 19, 20, 21}}));
  const Layout striped = layout_of(make_rounds_case({6, 4, 2}, {2, 2, 1}, 3, LayoutKind::striped));
  EXPECT_EQ(query_order(striped), (Order{{0, 2, 4, 6, 8}, {1, 3, 5, 7, 9}, {10, 11}}));
  const Layout whole = layout_of(make_rounds_case({6, 4}, {2, 1}, 2, LayoutKind::contiguous));
  EXPECT_EQ(query_order(whole), (Order{{0, 1, 2, 6, 7, 8, 9}, {3, 4, 5}}));
}

// 4 heads of 4 + 4 elements of 8 bytes (fp64 is not the default: bf16, 2 bytes): 64 bytes of K and
// V a row. Rank 0 of the first round sends its 16 rows on 3 times, in the second its 8 rows once.
TEST(CpRounds, SendWhatTheRingsOfTheirGroupsSend) {
  const Plan plan = plan_of(make_rounds_case({64, 16, 8}, {4, 2, 1}, 4));
  expect_proved(plan);
  const int64_t row = 4 * (4 + 4) * 2;
  EXPECT_EQ(summarise(plan).forward_bytes,
            (std::vector<int64_t>{3 * 16 * row + 8 * row, 3 * 16 * row + 8 * row, 3 * 16 * row,
                                  3 * 16 * row}));
  // KV and dKV travel as far in the backward.
  EXPECT_EQ(summarise(plan).backward_bytes,
            (std::vector<int64_t>{2 * (3 * 16 * row + 8 * row), 2 * (3 * 16 * row + 8 * row),
                                  2 * 3 * 16 * row, 2 * 3 * 16 * row}));
  EXPECT_EQ(plan.forward.num_steps, 4 + 2);
  EXPECT_EQ(rounds_of_steps(plan, Direction::forward), (std::vector<int32_t>{0, 0, 0, 0, 1, 1}));
}

TEST(CpRounds, AreProvedForEveryScheduleAndLayoutThatHasThem) {
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::all_gather}) {
    for (const LayoutKind layout :
         {LayoutKind::dual_chunk, LayoutKind::contiguous, LayoutKind::striped}) {
      for (const bool is_cross : {false, true}) {
        Scenario scenario =
            make_rounds_case({29, 17, 0, 8, 3, 40}, {4, 3, 2, 1, 2, 1}, 4, layout, comm);
        if (is_cross) {
          scenario.batch.kv_lengths = scenario.batch.kv_slots = {5, 31, 9, 0, 8, 12};
          scenario.batch.self_attention = false;
        }
        SCOPED_TRACE(show(scenario));
        expect_proved(plan_of(scenario));
      }
    }
  }
}

// The hops of an empty sequence carry nothing, and no compute tells which round they are of.
TEST(CpRounds, AreProvedWhereARoundHasNoToken) {
  for (const LayoutKind layout : {LayoutKind::dual_chunk, LayoutKind::contiguous}) {
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{0, 1, 0}, {0, 0, 0}, {5, 0, 8}})
      expect_proved(plan_of(make_rounds_case(lengths, {2, 1, 2}, 2, layout)));
    // Nothing but padding travels in the second round.
    Scenario padding = make_rounds_case({21, 14, 0, 0}, {1, 3, 3, 4}, 4, layout);
    padding.batch.slots = padding.batch.kv_slots = {24, 18, 6, 0};
    expect_proved(plan_of(padding));
  }
}

// Ten times as long, if every group looked at all sequences.
TEST(CpRounds, OfThousandsOfGroupsAreProved) {
  std::vector<int64_t> lengths, sizes;
  for (int64_t s = 0; s < 8192; ++s) {
    lengths.push_back(1 + s * 7 % 40);
    sizes.push_back(1 + s % 2);
  }
  const Plan plan = plan_of(make_rounds_case(lengths, sizes, 48));
  EXPECT_EQ(plan.layout.rounds.size(), 256u);
  expect_proved(plan);
}

TEST(CpRounds, OfAllRanksAreThePlanWithoutThemButForCopies) {
  const Plan rounds = plan_of(make_rounds_case({64, 64}, {4, 4}, 4));
  Scenario one = rounds.scenario;
  one.parallel.group_rule = GroupRule::all_ranks;
  one.parallel.cp_sizes.clear();
  const Plan whole = plan_of(one);
  EXPECT_EQ(query_order(rounds.layout), query_order(whole.layout));
  EXPECT_EQ(summarise(rounds).forward_bytes, summarise(whole).forward_bytes);
  EXPECT_EQ(summarise(rounds).backward_bytes, summarise(whole).backward_bytes);
  EXPECT_EQ(summarise(rounds).pairs_by_rank, summarise(whole).pairs_by_rank);
}

Scenario make_fixed_case(std::vector<int64_t> lengths, int64_t size, int32_t cp_size,
                         LayoutKind layout = LayoutKind::dual_chunk,
                         CommType comm = CommType::p2p) {
  Scenario scenario = make_rounds_case(std::move(lengths), {size}, cp_size, layout, comm);
  scenario.parallel.group_rule = GroupRule::fixed;
  return scenario;
}

TEST(FixedGroups, GiveTheNextSequenceToTheGroupWithTheFewestTokens) {
  const std::vector<int64_t> lengths = {8, 3, 3, 5, 1, 1};
  std::vector<CpRound> rounds = rounds_in(share_among_groups(lengths, 3, 0, 6));
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 3, {0, 4, 5}}, {3, 3, {1, 2, 3}}}));
  // A group without a sequence is none.
  rounds = rounds_in(share_among_groups(std::vector<int64_t>{7}, 1, 0, 3));
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 1, {0}}}));
  EXPECT_TRUE(rounds_in(share_among_groups({}, 2, 0, 4)).empty());
}

TEST(FixedGroups, AreProvedInOneRoundForEveryScheduleAndLayoutThatHasRounds) {
  for (const CommType comm : {CommType::p2p, CommType::a2a, CommType::all_gather}) {
    for (const LayoutKind layout :
         {LayoutKind::dual_chunk, LayoutKind::contiguous, LayoutKind::striped}) {
      for (const int64_t size : {1, 2, 4}) {
        Scenario scenario = make_fixed_case({29, 17, 0, 8, 3, 40}, size, 4, layout, comm);
        SCOPED_TRACE(show(scenario));
        const Plan plan = plan_of(scenario);
        expect_proved(plan);
        EXPECT_EQ(plan.layout.rounds.size(), 1u);
      }
    }
  }
}

// Two rings of 2 ranks, 24 and 16 tokens a rank; a row of K and V has 64 bytes (see above).
TEST(FixedGroups, SendWhatTheirOwnRingsSend) {
  const Plan plan = plan_of(make_fixed_case({48, 16, 16}, 2, 4));
  EXPECT_EQ(summarise(plan).forward_bytes,
            (std::vector<int64_t>{24 * 64, 24 * 64, 16 * 64, 16 * 64}));
  EXPECT_EQ(plan.forward.num_steps, 2);
}

TEST(FixedGroups, NameASizeThatDoesNotDivideAndASequenceThatDoesNotFit) {
  const auto refusal_of = [](const Scenario& scenario) {
    const Result<Plan> plan = make_plan(scenario);
    return plan ? std::string("none") : plan.error().complaints.front().what;
  };
  Scenario scenario = make_fixed_case({8, 16}, 3, 4);
  EXPECT_EQ(refusal_of(scenario),
            "one CP size for all sequences must divide cp_size: 3 does not divide 4");
  scenario.parallel.cp_sizes = {2};
  scenario.parallel.max_tokens_per_rank = 7;
  EXPECT_EQ(refusal_of(scenario),
            "sequence 1 of 16 tokens does not fit on 2 ranks of 7 tokens each");
  scenario.parallel.max_tokens_per_rank = 8;
  EXPECT_EQ(refusal_of(scenario), "none");
}

struct Refused {
  std::string what;
  Scenario scenario;
};

TEST(CpRounds, AreRejectedByNameWhereTheyAreNotPlanned) {
  const Scenario good = make_rounds_case({64, 16}, {2, 4}, 4);
  std::vector<Refused> cases;
  const auto add = [&](std::string what, auto change) {
    cases.push_back({std::move(what), good});
    change(cases.back().scenario);
  };
  add("not for pass_q", [](Scenario& s) { s.parallel.comm_type = CommType::pass_q; });
  add("kv_replicated = 0", [](Scenario& s) { s.parallel.kv_replicated = 4; });
  add("ring_backward = \"kv\"", [](Scenario& s) { s.parallel.ring_backward = RingBackward::q; });
  add("which lpt does not", [](Scenario& s) { s.parallel.layout = LayoutKind::lpt; });
  add("which dual_chunk_packed does not",
      [](Scenario& s) { s.parallel.layout = LayoutKind::dual_chunk_packed; });
  add("requires qkv_format thd", [](Scenario& s) {
    s.batch.qkv_format = QkvFormat::bshd;
    s.batch.slots = s.batch.kv_slots = {64, 64};
  });
  add("a2a requires heads >= cp_size: heads = 3, cp_size = 4", [](Scenario& s) {
    s.parallel.comm_type = CommType::a2a;
    s.attention.heads = s.attention.kv_heads = 3;
  });
  add("not divisible by 8", [](Scenario& s) {
    s.batch.lengths[1] = s.batch.kv_lengths[1] = s.batch.slots[1] = s.batch.kv_slots[1] = 15;
    s.batch.pad_between_seqs = false;
  });
  add("sequence 0 of 64 tokens needs 8 ranks that hold at most 8 tokens of it, cp_size is 4",
      [](Scenario& s) {
        s.parallel.group_rule = GroupRule::hybrid;
        s.parallel.max_tokens_per_rank = 8;
      });
  for (const Refused& one : cases) {
    SCOPED_TRACE(one.what);
    const Result<Plan> plan = make_plan(one.scenario);
    ASSERT_FALSE(plan);
    EXPECT_NE(plan.error().complaints.front().what.find(one.what), std::string::npos)
        << plan.error().complaints.front().what;
  }
}

// What BalancedCPScheduler of megatron-core 0.16.1 (megatron/core/pipeline_parallel/
// hybrid_cp_schedule.py) returns for these lengths; tests/peers/frameworks/megatron.py runs it.
TEST(HybridSchedule, IsMegatrons) {
  std::vector<CpRound> rounds =
      hybrid({20000, 1000, 8192, 8193, 70000, 3000, 500, 12000}, 8192, 16);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 16, {4}}}));
  // Only two groups are as large as they must be; the others double until no rank is idle.
  EXPECT_EQ(rounds[1].groups, (Groups{{0, 4, {0}},
                                      {4, 2, {7}},
                                      {6, 2, {3}},
                                      {8, 2, {2}},
                                      {10, 2, {5}},
                                      {12, 2, {1}},
                                      {14, 2, {6}}}));
  rounds = hybrid({4000, 3000, 2000, 1000, 9000, 500}, 4096, 4);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 4, {4}}}));
  EXPECT_EQ(rounds[1].groups, (Groups{{0, 1, {0}}, {1, 1, {1}}, {2, 1, {2}}, {3, 1, {3, 5}}}));
  rounds = hybrid({100, 100, 100}, 1000, 8);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 4, {0}}, {4, 2, {1}}, {6, 2, {2}}}));
}

TEST(HybridSchedule, GivesEachSequenceTheSmallestPowerOfTwoOfRanks) {
  const std::pair<int64_t, int32_t> cases[] = {
      {1000, 1}, {8192, 1}, {8193, 2}, {20000, 4}, {70000, 16}};
  for (const auto& [length, size] : cases)
    EXPECT_EQ(hybrid({length}, 8192, size).front().groups.front().size, size) << length;
}

// On 3 ranks one group of 1 grows to 2, and the last rank has no other group to join.
TEST(HybridSchedule, NamesIdleRanksThatMegatronCannotUse) {
  const Result<std::vector<CpRound>> rounds =
      schedule_hybrid(std::vector<int64_t>{5000, 5000}, 4096, 5);
  ASSERT_FALSE(rounds);
  EXPECT_NE(rounds.error().complaints.front().what.find("no use for 1 of 5 ranks"),
            std::string::npos)
      << rounds.error().complaints.front().what;
}

/// Milliseconds of a sequence on some ranks, as FlexSP's solver.py counts them.
double flexsp_time(int64_t tokens, int64_t size) {
  const auto s = static_cast<double>(tokens);
  const std::map<int64_t, double> speeds = {{2, 154}, {4, 137}, {8, 121}};
  const double exchange =
      size == 1 ? 0.0 : 4.0 * 2 * 32 * 4096 * s * 2 / 1024 / 1024 / speeds.at(size);
  return (5.128e-6 * s * s + 183.9576e-3 * s + exchange) / static_cast<double>(size);
}

/// The best time of the slowest group: every assignment to every set of sizes is tried.
double best_of_all(const std::vector<int64_t>& lengths, int64_t capacity) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{4}, {2, 2}, {2, 1, 1}, {1, 1, 1, 1}}) {
    std::vector<size_t> chosen(lengths.size(), 0);
    for (bool is_last = false; !is_last;) {
      std::vector<double> times(sizes.size(), 0.0);
      std::vector<int64_t> tokens(sizes.size(), 0);
      for (size_t s = 0; s < lengths.size(); ++s) {
        times[chosen[s]] += flexsp_time(lengths[s], sizes[chosen[s]]);
        tokens[chosen[s]] += lengths[s];
      }
      bool is_allowed = true;
      for (size_t g = 0; g < sizes.size(); ++g)
        is_allowed = is_allowed && tokens[g] > 0 && tokens[g] <= capacity * sizes[g];
      if (is_allowed) best = std::min(best, *std::max_element(times.begin(), times.end()));
      is_last = true;
      for (size_t& group : chosen) {
        if (++group < sizes.size()) {
          is_last = false;
          break;
        }
        group = 0;
      }
    }
  }
  return best;
}

// The integer program is replaced by a search, so the optimum is tried next to it.
TEST(FlexSp, IsNearTheBestOfAllGroupsInEveryDrawnBatch) {
  std::mt19937_64 draw(5);
  int compared = 0, optimal = 0;
  for (int batch = 0; batch < 60; ++batch) {
    std::vector<int64_t> lengths(4 + draw() % 4);
    for (int64_t& length : lengths) length = 200 + static_cast<int64_t>(draw() % 30000);
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const int64_t capacity = std::max(longest / 2, total / 3);
    const double best = best_of_all(lengths, capacity);
    const std::vector<CpRound> rounds = rounds_in(schedule_flexsp(lengths, capacity, 4));
    ASSERT_EQ(rounds.size(), 1u);
    double slowest = 0;
    for (const CpGroup& group : rounds.front().groups) {
      double time = 0;
      for (const int64_t s : group.sequences)
        time += flexsp_time(lengths[static_cast<size_t>(s)], group.size);
      slowest = std::max(slowest, time);
    }
    EXPECT_GE(slowest, best * (1 - 1e-12));
    EXPECT_LE(slowest, 1.08 * best) << "batch " << batch;
    ++compared;
    optimal += slowest <= best * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GE(optimal, compared * 8 / 10);
}

TEST(FlexSp, CutsABatchThatDoesNotFitIntoRounds) {
  const std::vector<int64_t> lengths(24, 1000);
  const std::vector<CpRound> rounds = rounds_in(schedule_flexsp(lengths, 2000, 4));
  ASSERT_EQ(rounds.size(), 3u);
  for (const CpRound& round : rounds) {
    ASSERT_EQ(round.groups.size(), 4u);
    for (const CpGroup& group : round.groups) EXPECT_EQ(group.sequences.size(), 2u);
  }
}

// Documents of any length, ranks that hold one and ranks that hold many: four times as many
// sequences take at most six times as many steps.
TEST(FlexSp, TakesAboutAsManyStepsForEachSequenceOfALongBatch) {
  for (const auto& [capacity, ranks] : {std::pair(20000, 8), {4000, 64}, {1000000000, 64}}) {
    std::vector<double> steps;
    for (const int64_t count : {5000, 20000}) {
      std::mt19937_64 draw(3);
      std::vector<int64_t> lengths(static_cast<size_t>(count));
      for (int64_t& length : lengths)
        length = 1 + static_cast<int64_t>(draw() % (draw() % 50 == 0 ? 20000 : 1000));
      int64_t counted = 0;
      ASSERT_TRUE(schedule_flexsp(lengths, capacity, ranks, &counted));
      steps.push_back(static_cast<double>(counted));
    }
    EXPECT_LE(steps[1], 6 * steps[0]) << capacity << " tokens on each of " << ranks << " ranks";
  }
}

// 70 000, 20 000, 12 000 and 8193 tokens need 9, 3, 2 and 2 ranks that hold 8192; the other three,
// of 12 192 tokens, wait for the next round.
TEST(ByteScale, GivesEachSequenceAsManyRanksAsHoldIt) {
  const std::vector<int64_t> lengths = {20000, 1000, 8192, 8193, 70000, 3000, 12000};
  const std::vector<CpRound> rounds = rounds_in(schedule_bytescale(lengths, 8192, 16));
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].groups, (Groups{{0, 9, {4}}, {9, 3, {0}}, {12, 2, {6}}, {14, 2, {3}}}));
  EXPECT_EQ(rounds[1].groups, (Groups{{0, 1, {2}}, {1, 1, {5}}, {2, 1, {1}}}));
}

TEST(ByteScale, PacksShortSequencesOnRanksWithLittleWork) {
  const std::vector<int64_t> lengths = {4000, 1000, 1000, 1000};
  const std::vector<CpRound> rounds = rounds_in(schedule_bytescale(lengths, 2000, 4));
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds.front().groups, (Groups{{0, 2, {0}}, {2, 1, {1, 3}}, {3, 1, {2}}}));
}

TEST(CpRounds, ThatARuleChoosesAreProved) {
  for (const GroupRule rule : {GroupRule::flexsp, GroupRule::bytescale}) {
    Scenario scenario = make_rounds_case({29, 17, 0, 8, 3, 40, 40, 11}, {}, 4);
    scenario.parallel.group_rule = rule;
    scenario.parallel.max_tokens_per_rank = 14;
    SCOPED_TRACE(show(scenario));
    const Plan plan = plan_of(scenario);
    EXPECT_GT(plan.layout.rounds.size(), 1u);
    expect_proved(plan);
    scenario.parallel.max_tokens_per_rank = 9;
    const Result<Plan> refused = make_plan(scenario);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().complaints.front().what.find("sequence 5 of 40 tokens does not fit"),
              std::string::npos);
  }
}

/// A plan in rounds that something has been done to.
std::string broken_check(const Scenario& scenario, const std::function<void(Plan&)>& spoil) {
  Plan plan = plan_of(scenario);
  spoil(plan);
  for (const CheckResult& check : inspect_plan(plan)) {
    if (!check.ok) return check.name + ": " + check.detail;
  }
  return "";
}

TEST(CpRounds, AreProvedAgainstTheScenario) {
  const Scenario scenario = make_rounds_case({64, 16, 8, 8}, {4, 2, 1, 1}, 4);
  EXPECT_EQ(broken_check(scenario, [](Plan&) {}), "");
  const auto expect = [&](std::string_view what, const std::function<void(Plan&)>& spoil) {
    const std::string broken = broken_check(scenario, spoil);
    EXPECT_NE(broken.find(what), std::string::npos) << broken;
  };
  expect("ranks 1 to 1 are in another group too",
         [](Plan& plan) { plan.layout.rounds[1].groups[1].first_rank = 1; });
  expect("sequence 2 is in two groups",
         [](Plan& plan) { plan.layout.rounds[1].groups[2].sequences = {2}; });
  expect("sequence 3 is in no group", [](Plan& plan) { plan.layout.rounds[1].groups.pop_back(); });
  expect("round 1: sequence 1 of 16 tokens is on 2 ranks",
         [](Plan& plan) { plan.scenario.parallel.cp_sizes[1] = 1; });
  Scenario filled = scenario;
  filled.parallel.group_rule = GroupRule::bytescale;
  filled.parallel.max_tokens_per_rank = 16;
  const std::string broken =
      broken_check(filled, [](Plan& plan) { plan.scenario.parallel.max_tokens_per_rank = 15; });
  EXPECT_NE(broken.find("tokens is on"), std::string::npos) << broken;
  const Scenario fixed = make_fixed_case({64, 16, 8, 8}, 2, 4);
  EXPECT_EQ(broken_check(fixed, [](Plan&) {}), "");
  EXPECT_NE(broken_check(fixed, [](Plan& plan) { plan.scenario.parallel.cp_sizes = {4}; })
                .find("round 0: sequence 0 of 64 tokens is on 2 ranks"),
            std::string::npos);
  EXPECT_NE(broken_check(fixed, [](Plan& plan) { plan.scenario.parallel.max_tokens_per_rank = 31; })
                .find("round 0: sequence 0 of 64 tokens is on 2 ranks"),
            std::string::npos);
  expect("rank 2 owns queries of sequence 2, which is on ranks 3 to 3", [](Plan& plan) {
    std::swap(plan.layout.rounds[1].groups[1].sequences, plan.layout.rounds[1].groups[2].sequences);
  });
}

}  // namespace
}  // namespace cpscope::tests
