// Plans that are wrong on purpose, made by admit_faulty_plan: their results fail the grade.

#include "reference/dense_oracle.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario faulty_case(CommType comm, Dtype dtype) {
  Scenario scenario = walker_case({61, 30, 97}, 4);
  scenario.parallel.comm_type = comm;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// Runs the modified plan and grades it against the original. `spoil` returns false when the plan
/// has no such item.
struct FaultyRun {
  bool is_spoilt = false;
  Grade grade;
};
FaultyRun run_faulty(const Scenario& scenario, const std::function<bool(Plan&)>& spoil) {
  Plan plan = make_plan(scenario).value();
  const Hops hops = count_hops(plan);
  FaultyRun run;
  run.is_spoilt = spoil(plan);
  const CheckedPlan admitted = admit_faulty_plan(std::move(plan), "a test");
  const RunInputs inputs = make_run_inputs(admitted.plan(), false);
  const Answer answer = walk(admitted, inputs, {false, 0});
  const Verdict verdict = reference::judge(scenario, inputs, hops, {}).value();
  run.grade = grade_answer(admitted.plan(), inputs, answer, verdict);
  return run;
}

void expect_caught(const char* what, const std::function<bool(Plan&)>& spoil) {
  int caught = 0;
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::fp64, Dtype::bf16}) {
      const Scenario scenario = faulty_case(comm, dtype);
      const FaultyRun run = run_faulty(scenario, spoil);
      EXPECT_NE(run.grade.passed, run.is_spoilt) << what << "\n" << print_scenario(scenario);
      caught += run.is_spoilt ? 1 : 0;
    }
  }
  EXPECT_GE(caught, 2) << what << ": no plan has such an item";
}

TEST(FaultyPlan, IsNoFaultWhenNothingIsSpoilt) {
  for (const CommType comm : kCommTypes) {
    const Scenario scenario = faulty_case(comm, Dtype::bf16);
    const FaultyRun run = run_faulty(scenario, [](Plan&) { return false; });
    EXPECT_TRUE(run.grade.passed) << describe(scenario, run.grade);
  }
}

TEST(FaultyPlan, ThatDropsASliceFails) {
  expect_caught("the last slice of the busiest item is dropped", [](Plan& plan) {
    const auto most = std::max_element(
        plan.forward.computes.begin(), plan.forward.computes.end(),
        [](const ComputeItem& a, const ComputeItem& b) { return a.num_slices < b.num_slices; });
    --most->num_slices;
    return true;
  });
}

/// A slice whose diagonal cuts its rectangle, so that one more step still lies inside.
bool shift_diagonal(Plan& plan, int32_t by) {
  for (const ComputeItem& item : plan.forward.computes) {
    for (int64_t s = item.first_slice; s < item.first_slice + item.num_slices; ++s) {
      BandSlice& slice = plan.slices[static_cast<size_t>(s)];
      if (slice.hi >= slice.k1 - slice.k0 - 1 || slice.hi + by < slice.lo) continue;
      slice.hi += by;
      return true;
    }
  }
  return false;
}

TEST(FaultyPlan, ThatShiftsADiagonalByOneFails) {
  expect_caught("a row sees one key more", [](Plan& plan) { return shift_diagonal(plan, 1); });
  expect_caught("a row sees one key less", [](Plan& plan) { return shift_diagonal(plan, -1); });
}

/// The transfer keeps its place in the stage but carries no head.
bool drop_transfer(Pass& pass, Payload payload) {
  for (TransferItem& item : pass.transfers) {
    if (item.payload != payload || item.link == LinkClass::self) continue;
    item.heads.end = item.heads.begin;
    return true;
  }
  return false;
}

TEST(FaultyPlan, ThatDropsATransferFails) {
  expect_caught("keys do not arrive",
                [](Plan& plan) { return drop_transfer(plan.forward, Payload::kv); });
  expect_caught("gradients of keys do not arrive",
                [](Plan& plan) { return drop_transfer(plan.backward, Payload::dkv); });
  expect_caught("an output does not come home",
                [](Plan& plan) { return drop_transfer(plan.forward, Payload::out); });
}

/// Replaces a row list by one with its first two rows exchanged.
bool swap_first_rows(Plan& plan, RunListId& list) {
  if (list == kAllRows || plan.rows(list) < 2) return false;
  std::vector<int64_t> rows = expand(plan.list(list));
  std::swap(rows[0], rows[1]);
  const std::vector<TokenRun> runs = runs_of(rows);
  list = plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()),
                                   static_cast<int64_t>(runs.size()),
                                   static_cast<int64_t>(rows.size())});
  plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  return true;
}

TEST(FaultyPlan, ThatSwapsTwoTokensInAnOrderFails) {
  // Rank 0 owns the first query, which sees one key only: elsewhere two exchanged keys have the
  // same weight.
  expect_caught("a reorder exchanges two rows", [](Plan& plan) {
    return !plan.forward.reorders.empty() && swap_first_rows(plan, plan.forward.reorders[0].order);
  });
  expect_caught("a rank takes two of its queries for one another",
                [](Plan& plan) { return swap_first_rows(plan, plan.q_lists[RankId{1}]); });
}

/// The last stage of merges loses its last item; the item of the rank with most work in causal
/// order.
bool forget_merge(Pass& pass, const Plan& plan, BufferKind kind) {
  for (size_t s = pass.stages.size(); s-- > 0;) {
    Stage& stage = pass.stages[s];
    if (stage.kind != StageKind::merge || stage.begin == stage.end) continue;
    for (int64_t i = stage.end; i-- > stage.begin;) {
      MergeItem& item = pass.merges[static_cast<size_t>(i)];
      if (plan.buffer(item.into).kind != kind || item.partial == kNoBuffer) continue;
      std::swap(item, pass.merges[static_cast<size_t>(stage.end - 1)]);
      --stage.end;
      return true;
    }
  }
  return false;
}

TEST(FaultyPlan, ThatForgetsAMergeFails) {
  expect_caught("a partial output is left out",
                [](Plan& plan) { return forget_merge(plan.forward, plan, BufferKind::out); });
  expect_caught("a partial dq is left out",
                [](Plan& plan) { return forget_merge(plan.backward, plan, BufferKind::dq); });
  expect_caught("a partial dkv is left out",
                [](Plan& plan) { return forget_merge(plan.backward, plan, BufferKind::dkv); });
}

TEST(FaultyPlan, ThatMergesTwiceFails) {
  expect_caught("the last partial output is merged once more", [](Plan& plan) {
    MergeItem again = plan.forward.merges.back();
    if (again.partial == kNoBuffer) return false;
    ++again.order;
    const auto last = std::find_if(
        plan.forward.stages.rbegin(), plan.forward.stages.rend(), [](const Stage& stage) {
          return stage.begin < stage.end && stage.kind == StageKind::merge;
        });
    plan.forward.merges.push_back(again);
    ++last->end;
    // An empty row stays empty, and a row with one partial keeps its output: the lse shows it.
    return true;
  });
}

}  // namespace
}  // namespace cpscope::tests
