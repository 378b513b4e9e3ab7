#include "sim/plan/planner/schedule_draft.h"

#include "sim/plan/check/pair_fault.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "tests/sim/plan/plan_cases.h"

#include <functional>

#include <gtest/gtest.h>

// Schedules that planners do not write: parts of buffers, heads, joined blocks, a backward of its
// own, and what is wrong with a schedule.

namespace cpscope::tests {
namespace {

Scenario make_drafted_case(int32_t ranks = 4, std::vector<int64_t> lengths = {40, 0, 24}) {
  Scenario scenario = make_case(std::move(lengths), ranks);
  scenario.attention.heads = 8;
  scenario.attention.kv_heads = 2;
  return scenario;
}

using Write = std::function<void(PlanBuilder&, ScheduleDraft&, const HomeBlocks&)>;

Result<Plan> compile(const Scenario& scenario, const Write& write, DraftTrace* trace = nullptr) {
  return make_custom_plan(scenario, [&](PlanBuilder& builder) {
    ScheduleDraft draft;
    const HomeBlocks home = add_home_blocks(builder, draft);
    write(builder, draft, home);
    return compile_draft(builder, std::move(draft), trace);
  });
}

Plan prove_draft(const Scenario& scenario, const Write& write) {
  Result<Plan> plan = compile(scenario, write);
  EXPECT_TRUE(plan.ok()) << (plan ? "" : to_text(plan.error()));
  for (const CheckResult& check : inspect_plan(plan.value()))
    EXPECT_TRUE(check.ok) << check.name << ": " << check.detail;
  return std::move(plan).value();
}

void send_all_keys(const PlanBuilder& builder, DraftStep& step, const HomeBlocks& home) {
  for (const RankId dst : builder.ranks()) {
    for (const RankId src : builder.ranks()) {
      if (src != dst) step.before.push_back({src, dst, home.kv[src]});
    }
  }
}

/// All keys on every rank, then what `computes` says.
void gather_keys(PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
  DraftStep& step = draft.steps.emplace_back();
  send_all_keys(builder, step, home);
  for (const RankId rank : builder.ranks()) {
    for (const RankId owner : builder.ranks())
      step.computes.push_back({rank, home.q[rank], home.kv[owner]});
  }
}

int64_t bytes_of(const Plan& plan, Direction direction, Payload payload) {
  int64_t bytes = 0;
  for (const TransferItem& item : plan.pass(direction).transfers)
    bytes += item.payload == payload ? item.bytes : 0;
  return bytes;
}

// Ulysses: two query heads a rank, and the KV head that they read, which two ranks share.
TEST(ScheduleDraft, SendsAndComputesSomeHeads) {
  const Scenario scenario = make_drafted_case();
  const Plan plan = prove_draft(scenario, [](PlanBuilder& builder, ScheduleDraft& draft,
                                             const HomeBlocks&) {
    DraftStep& step = draft.steps.emplace_back();
    const Plan& made = builder.plan();
    for (const RankId rank : builder.ranks()) {
      const int32_t r = to_index(rank);
      std::vector<BlockId> q, kv;
      for (const RankId owner : builder.ranks()) {
        q.push_back(
            draft.add_block({Side::q, owner, made.q_lists[owner], kAllRows, {2 * r, 2 * r + 2}}));
        kv.push_back(
            draft.add_block({Side::kv, owner, made.kv_lists[owner], kAllRows, {r / 2, r / 2 + 1}}));
        if (owner == rank) continue;
        step.before.push_back({owner, rank, q.back()});
        step.before.push_back({owner, rank, kv.back()});
      }
      for (const BlockId a : q) {
        for (const BlockId b : kv) step.computes.push_back({rank, a, b});
      }
    }
  });
  Scenario exchanged = scenario;
  exchanged.parallel.comm_type = CommType::a2a;
  const Plan ulysses = plan_of(exchanged);
  for (const Payload payload : {Payload::q, Payload::kv})
    EXPECT_EQ(bytes_of(plan, Direction::forward, payload),
              bytes_of(ulysses, Direction::forward, payload));
  EXPECT_EQ(bytes_of(plan, Direction::backward, Payload::dkv),
            bytes_of(ulysses, Direction::backward, Payload::dkv));
}

TEST(ScheduleDraft, JoinsBlocksForOneCompute) {
  Scenario scenario = make_drafted_case();
  scenario.parallel.layout = LayoutKind::striped;  // where all_gather reorders nothing
  const Plan plan =
      prove_draft(scenario, [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
        const BlockId all = draft.add_block(join_blocks(builder, draft, home.kv.values()));
        DraftStep& step = draft.steps.emplace_back();
        for (const RankId rank : builder.ranks()) {
          step.before.push_back({kSeveralRanks, rank, all});
          step.computes.push_back({rank, home.q[rank], all});
        }
      });
  EXPECT_EQ(plan.scenario.parallel.comm_type, CommType::custom);
  Scenario gathered = scenario;
  gathered.parallel.comm_type = CommType::all_gather;
  const Plan all_gather = plan_of(gathered);
  ASSERT_EQ(plan.forward.computes.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const ComputeItem &mine = plan.forward.computes[i], &theirs = all_gather.forward.computes[i];
    EXPECT_EQ(mine.visible_pairs, theirs.visible_pairs) << "rank " << i;
    EXPECT_EQ(mine.num_slices, theirs.num_slices) << "rank " << i;
  }
  EXPECT_EQ(plan.forward.transfers.size(), all_gather.forward.transfers.size());
  for (const Direction direction : kDirections) {
    for (const Payload payload : {Payload::kv, Payload::dkv})
      EXPECT_EQ(bytes_of(plan, direction, payload), bytes_of(all_gather, direction, payload));
  }
}

// Queries of the other ranks in one buffer; a rank's own queries stay in theirs.
TEST(ScheduleDraft, JoinsQueriesOfOtherRanks) {
  const Write write = [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
    DraftStep& step = draft.steps.emplace_back();
    for (const RankId rank : builder.ranks()) {
      std::vector<BlockId> others;
      for (const RankId owner : builder.ranks()) {
        if (owner != rank) others.push_back(home.q[owner]);
      }
      const BlockId joined = draft.add_block(join_blocks(builder, draft, others));
      step.before.push_back({kSeveralRanks, rank, joined});
      step.computes.push_back({rank, home.q[rank], home.kv[rank]});
      step.computes.push_back({rank, joined, home.kv[rank]});
    }
  };
  const Plan plan = prove_draft(make_drafted_case(), write);
  EXPECT_GT(bytes_of(plan, Direction::forward, Payload::partial), 0);
}

// Dual chunks: two full rectangles a step in place of a mask.
TEST(ScheduleDraft, ComputesWithPartsOfWhatARankHolds) {
  const Scenario scenario = make_drafted_case(4, {64});
  const Plan plan = prove_draft(scenario, [](PlanBuilder& builder, ScheduleDraft& draft,
                                             const HomeBlocks& home) {
    DraftStep& step = draft.steps.emplace_back();
    send_all_keys(builder, step, home);
    for (const RankId rank : builder.ranks()) {
      const BlockId late = draft.add_block(make_part_block(builder, Side::q, rank, {{8, 16, 1}}));
      for (const RankId owner : builder.ranks()) {
        const BlockId early =
            draft.add_block(make_part_block(builder, Side::kv, owner, {{0, 8, 1}}));
        if (owner == rank) {
          step.computes.push_back({rank, home.q[rank], home.kv[rank]});
        } else if (owner < rank) {
          step.computes.push_back({rank, home.q[rank], early});
        } else {
          step.computes.push_back({rank, late, home.kv[owner]});
        }
      }
    }
  });
  // Whole blocks see no more: what a part leaves out is masked.
  const Plan whole = prove_draft(scenario, gather_keys);
  ASSERT_EQ(plan.forward.computes.size(), whole.forward.computes.size());
  for (size_t i = 0; i < plan.forward.computes.size(); ++i)
    EXPECT_EQ(plan.forward.computes[i].visible_pairs, whole.forward.computes[i].visible_pairs);
}

// Even and odd rows travel apart; a part of a received part is found in it.
TEST(ScheduleDraft, SendsRowsThatDoNotFollowEachOther) {
  const Write write = [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
    DraftStep& step = draft.steps.emplace_back();
    for (const RankId rank : builder.ranks()) {
      step.computes.push_back({rank, home.q[rank], home.kv[rank]});
      for (const RankId owner : builder.ranks()) {
        if (owner == rank) continue;
        const int64_t rows = builder.plan().rows(builder.plan().kv_lists[owner]);
        const BlockId even =
            draft.add_block(make_part_block(builder, Side::kv, owner, {{0, rows, 2}}));
        const BlockId some =
            draft.add_block(make_part_block(builder, Side::kv, owner, {{0, rows / 2, 4}}));
        const BlockId rest = draft.add_block(make_part_block(
            builder, Side::kv, owner, {{2, rows / 2, 4}, {(rows / 2 + 1) / 2 * 2, rows, 2}}));
        const BlockId odd =
            draft.add_block(make_part_block(builder, Side::kv, owner, {{1, rows, 2}}));
        for (const BlockId block : {even, odd}) step.before.push_back({owner, rank, block});
        for (const BlockId block : {some, rest, odd})
          step.computes.push_back({rank, home.q[rank], block});
      }
    }
  };
  prove_draft(make_drafted_case(2, {37, 11}), write);
}

TEST(ScheduleDraft, MayHaveABackwardOfItsOwn) {
  const Plan plan = prove_draft(
      make_drafted_case(), [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
        gather_keys(builder, draft, home);
        // Queries travel in the backward.
        draft.backward_steps.emplace();
        DraftStep& step = draft.backward_steps->emplace_back();
        for (const RankId rank : builder.ranks()) {
          for (const RankId owner : builder.ranks()) {
            if (owner != rank) step.before.push_back({owner, rank, home.q[owner]});
            step.computes.push_back({rank, home.q[owner], home.kv[rank]});
          }
        }
      });
  EXPECT_EQ(bytes_of(plan, Direction::backward, Payload::kv), 0);
  EXPECT_GT(bytes_of(plan, Direction::backward, Payload::q), 0);
  EXPECT_EQ(bytes_of(plan, Direction::forward, Payload::q), 0);
}

TEST(ScheduleDraft, TakesTheNameOfThePlannerThatMakesTheSamePlan) {
  Scenario scenario = make_drafted_case();
  scenario.parallel.comm_type = CommType::gather_q;
  const Write gather_q = [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
    draft.returns = ReturnTime::end;
    DraftStep& step = draft.steps.emplace_back();
    for (const RankId rank : builder.ranks()) {
      for (const RankId owner : builder.ranks()) {
        if (owner != rank) step.before.push_back({owner, rank, home.q[owner]});
        step.computes.push_back({rank, home.q[owner], home.kv[rank]});
      }
    }
  };
  EXPECT_EQ(compile(scenario, gather_q).value().hash, plan_of(scenario).hash);
  EXPECT_EQ(compile(scenario, gather_q).value().scenario.parallel.comm_type, CommType::gather_q);
  scenario.parallel.comm_type = CommType::p2p;
  EXPECT_EQ(compile(scenario, gather_q).value().scenario.parallel.comm_type, CommType::custom);
}

struct WrongDraft {
  const char* said;
  DraftPart part;
  size_t index;
  Write write;
};

std::vector<WrongDraft> wrong_drafts() {
  const RankId r0{0}, r1{1}, r2{2};
  return {
      {"rank 0 computes with the keys of rank 1, which it does not hold then", DraftPart::compute,
       0,
       [=](PlanBuilder&, ScheduleDraft& draft, const HomeBlocks& home) {
         draft.steps.emplace_back().computes.push_back({r0, home.q[r0], home.kv[r1]});
       }},
      // What a step sends while it computes arrives for the next one.
      {"rank 0 computes with the keys of rank 1, which it does not hold then", DraftPart::compute,
       0,
       [=](PlanBuilder&, ScheduleDraft& draft, const HomeBlocks& home) {
         draft.steps.push_back({{}, {{r0, home.q[r0], home.kv[r1]}}, {{r1, r0, home.kv[r1]}}});
       }},
      // Sends of one list run at the same time.
      {"rank 1 sends the keys of rank 0, which it does not hold then", DraftPart::before, 1,
       [=](PlanBuilder&, ScheduleDraft& draft, const HomeBlocks& home) {
         draft.steps.push_back({{{r0, r1, home.kv[r0]}, {r1, r2, home.kv[r0]}}, {}, {}});
       }},
      {"rank 1 receives the keys of rank 0, which it holds already", DraftPart::during, 0,
       [=](PlanBuilder&, ScheduleDraft& draft, const HomeBlocks& home) {
         draft.steps.push_back({{{r0, r1, home.kv[r0]}}, {}, {{r0, r1, home.kv[r0]}}});
       }},
      {"rank 1 receives the keys of rank 0 at token ids 0..3, which it holds already",
       DraftPart::during, 1,
       [=](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
         const BlockId part = draft.add_block(make_part_block(builder, Side::kv, r0, {{0, 4, 1}}));
         draft.steps.push_back({{}, {}, {{r0, r1, home.kv[r0]}, {r0, r1, part}}});
       }},
      {"rank 1 computes with the keys of rank 0, which it does not hold then", DraftPart::compute,
       0,
       [=](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
         const BlockId part = draft.add_block(make_part_block(builder, Side::kv, r0, {{0, 4, 1}}));
         draft.steps.push_back({{{r0, r1, part}}, {{r1, home.q[r1], home.kv[r0]}}, {}});
       }},
      {"no query head of the one reads a KV head of the other", DraftPart::compute, 0,
       [=](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks&) {
         const Plan& plan = builder.plan();
         const BlockId q = draft.add_block({Side::q, r0, plan.q_lists[r0], kAllRows, {0, 4}});
         const BlockId kv = draft.add_block({Side::kv, r0, plan.kv_lists[r0], kAllRows, {1, 2}});
         draft.steps.emplace_back().computes.push_back({r0, q, kv});
       }},
      {"rank 0 computes heads 2..5 of", DraftPart::compute, 0,
       [=](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
         const BlockId kv =
             draft.add_block({Side::kv, r0, builder.plan().kv_lists[r0], kAllRows, {0, 1}});
         draft.steps.emplace_back().computes.push_back({r0, home.q[r0], kv, {2, 6}});
       }},
      {"rank 1 gathers its own queries", DraftPart::before, 0,
       [=](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
         const BlockId all = draft.add_block(join_blocks(builder, draft, home.q.values()));
         draft.steps.push_back({{{kSeveralRanks, r1, all}}, {}, {}});
       }},
  };
}

TEST(ScheduleDraft, SaysWhichSendOrComputeIsWrong) {
  for (const WrongDraft& wrong : wrong_drafts()) {
    DraftTrace trace;
    const Result<Plan> plan = compile(make_drafted_case(), wrong.write, &trace);
    ASSERT_FALSE(plan.ok()) << wrong.said;
    EXPECT_NE(to_text(plan.error()).find(wrong.said), std::string::npos)
        << to_text(plan.error()) << "\n instead of: " << wrong.said;
    ASSERT_TRUE(trace.wrong) << wrong.said;
    EXPECT_EQ(trace.wrong->step, 0U) << wrong.said;
    EXPECT_EQ(trace.wrong->part, wrong.part) << wrong.said;
    EXPECT_EQ(trace.wrong->index, wrong.index) << wrong.said;
  }
}

// Contiguous chunks of 16 tokens of one sequence.
Scenario make_fault_case() {
  Scenario scenario = make_drafted_case(4, {64});
  scenario.parallel.layout = LayoutKind::contiguous;
  return scenario;
}

TEST(PairFault, NamesQueriesThatNeverMeetKeys) {
  const Plan plan = compile(make_fault_case(), [](PlanBuilder& builder, ScheduleDraft& draft,
                                                  const HomeBlocks& home) {
                      gather_keys(builder, draft, home);
                      std::erase_if(draft.steps.front().computes, [](const DraftCompute& item) {
                        return item.rank == RankId{2} && item.kv == BlockId{3};
                      });
                    }).value();
  // Block 3 is the keys of rank 1: blocks alternate.
  const auto fault = find_pair_fault(plan, Direction::forward);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->sequence, 0);
  EXPECT_EQ(fault->queries.owner, RankId{2});
  EXPECT_EQ(fault->queries.begin, 32);
  EXPECT_EQ(fault->queries.end, 48);
  EXPECT_EQ(fault->keys.owner, RankId{1});
  EXPECT_EQ(fault->keys.begin, 16);
  EXPECT_EQ(fault->keys.end, 32);
  EXPECT_EQ(fault->heads, (HeadRange{0, 8}));
  EXPECT_EQ(fault->first, -1);
}

// Of a triangle the first row has one pair; the others belong to the same fault.
TEST(PairFault, GrowsWithTheMask) {
  const Plan plan = compile(make_fault_case(), [](PlanBuilder& builder, ScheduleDraft& draft,
                                                  const HomeBlocks& home) {
                      gather_keys(builder, draft, home);
                      draft.steps.front().computes.erase(draft.steps.front().computes.begin());
                    }).value();
  const auto fault = find_pair_fault(plan, Direction::forward);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->queries.begin, 0);
  EXPECT_EQ(fault->queries.end, 16);
  EXPECT_EQ(fault->keys.begin, 0);
  EXPECT_EQ(fault->keys.end, 16);
}

TEST(PairFault, NamesBothComputesOfAPair) {
  DraftTrace trace;
  const Plan plan = compile(
                        make_fault_case(),
                        [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
                          gather_keys(builder, draft, home);
                          // Some heads of some keys once more.
                          const BlockId some = draft.add_block(
                              make_part_block(builder, Side::kv, RankId{1}, {{4, 8, 1}}));
                          draft.steps.emplace_back().computes.push_back(
                              {RankId{3}, home.q[RankId{3}], some, {5, 7}});
                        },
                        &trace)
                        .value();
  for (const Direction direction : kDirections) {
    const auto fault = find_pair_fault(plan, direction);
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->queries.begin, 48);
    EXPECT_EQ(fault->queries.end, 64);
    EXPECT_EQ(fault->keys.begin, 20);
    EXPECT_EQ(fault->keys.end, 24);
    EXPECT_EQ(fault->heads, (HeadRange{5, 7}));
    const auto& computes =
        direction == Direction::forward ? trace.forward_computes : trace.backward_computes;
    EXPECT_EQ(computes.at(static_cast<size_t>(fault->first)).step, 0U);
    EXPECT_EQ(computes.at(static_cast<size_t>(fault->first)).index, 3U * 4 + 1);
    EXPECT_EQ(computes.at(static_cast<size_t>(fault->second)).step, 1U);
  }
}

TEST(PairFault, IsNoneOfARightPlan) {
  const Plan plan = compile(make_fault_case(), gather_keys).value();
  EXPECT_FALSE(find_pair_fault(plan, Direction::forward));
  EXPECT_FALSE(find_pair_fault(plan, Direction::backward));
}

TEST(PairFault, FollowsStripes) {
  Scenario scenario = make_drafted_case(4, {64});
  scenario.parallel.layout = LayoutKind::striped;
  const Plan plan =
      compile(scenario, [](PlanBuilder& builder, ScheduleDraft& draft, const HomeBlocks& home) {
        gather_keys(builder, draft, home);
        draft.steps.front().computes.pop_back();  // rank 3 with its own keys
      }).value();
  const auto fault = find_pair_fault(plan, Direction::forward);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->queries.begin, 3);
  EXPECT_EQ(fault->queries.stride, 4);
  EXPECT_EQ(fault->queries.end, 64);
  EXPECT_EQ(fault->keys.begin, 3);
  EXPECT_EQ(fault->keys.stride, 4);
}

}  // namespace
}  // namespace cpscope::tests
