#include "sim/plan/check/plan_check.h"
#include "sim/plan/visit_items.h"
#include "tests/sim/plan/document_mutations.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Results that are scaled by a gathered lse and then added, in a schedule without a name.
Plan scaled_plan(std::vector<int64_t> lengths = {24, 9}, int32_t ranks = 3,
                 LayoutKind layout = LayoutKind::dual_chunk) {
  Scenario scenario = make_case(std::move(lengths), ranks, layout, CommType::gather_q);
  scenario.attention.heads = 2;
  scenario.attention.kv_heads = 1;
  scenario.parallel.combine = Combine::reduce_scatter;
  Plan plan = plan_of(scenario);
  plan.scenario.parallel.comm_type = CommType::custom;
  return plan;
}

/// The same with every lse in two parts, of some rows each, so that rows are looked at one by one.
Plan scaled_in_parts() {
  Plan plan = scaled_plan();
  for (size_t i = 0; i < plan.forward.transfers.size(); ++i) {
    if (plan.forward.transfers[i].payload != Payload::lse) continue;
    const int64_t rows = plan.buffer(plan.forward.transfers[i].to).rows;
    repeat_item(plan.forward, StageKind::transfer, i);
    for (const bool is_first : {true, false}) {
      const int64_t begin = is_first ? 0 : rows / 3, end = is_first ? rows / 3 : rows;
      plan.run_lists.push_back({static_cast<int64_t>(plan.runs.size()), 1, end - begin});
      plan.runs.push_back({begin, end, 1});
      TransferItem& item = plan.forward.transfers[is_first ? i : i + 1];
      item.from_rows = item.to_rows = RunListId{static_cast<int32_t>(plan.run_lists.size()) - 1};
      item.bytes = wire_bytes(plan, item);
    }
    ++i;
  }
  return plan;
}

CheckResult first_broken(const Plan& plan) {
  const std::vector<CheckResult> checks = inspect_plan(plan);
  const auto broken =
      std::find_if(checks.begin(), checks.end(), [](const CheckResult& c) { return !c.ok; });
  return broken == checks.end() ? CheckResult{"none", true, "", {}} : *broken;
}

void expect_scales_refused(const Plan& plan, const std::string& said) {
  const CheckResult broken = first_broken(plan);
  EXPECT_EQ(broken.name, "partials") << broken.detail;
  EXPECT_NE(broken.detail.find(said), std::string::npos) << broken.detail;
  EXPECT_TRUE(broken.item.has_value()) << broken.detail;
  EXPECT_NE(broken.detail.find("forward, step 0, rank "), std::string::npos) << broken.detail;
}

/// The index of the first transfer of this kind, from `from` on.
size_t find_payload(const Plan& plan, Payload payload, size_t from = 0) {
  const auto& all = plan.forward.transfers;
  return static_cast<size_t>(
      std::find_if(all.begin() + static_cast<int64_t>(from), all.end(),
                   [&](const TransferItem& item) { return item.payload == payload; }) -
      all.begin());
}

size_t find_lse_merge(const Plan& plan) {
  const auto& all = plan.forward.merges;
  return static_cast<size_t>(std::find_if(all.begin(), all.end(),
                                          [&](const MergeItem& item) {
                                            return item.partial != kNoBuffer &&
                                                   plan.buffer(item.partial).kind ==
                                                       BufferKind::stats;
                                          }) -
                             all.begin());
}

TEST(ScaledPartials, OfACustomScheduleAreProved) {
  for (const Plan& plan :
       {scaled_plan(), scaled_in_parts(), scaled_plan({5}, 4, LayoutKind::contiguous),
        scaled_plan({1, 1, 1}, 2), scaled_plan({16}, 1)}) {
    const CheckResult broken = first_broken(plan);
    EXPECT_EQ(broken.name, "none") << broken.detail;
  }
}

TEST(ScaledPartials, NeedTheLseOfAllRanks) {
  for (Plan plan : {scaled_plan(), scaled_in_parts()}) {
    const size_t lost = find_lse_merge(plan);
    const BufferId sum = plan.forward.merges[lost].into;
    for (MergeItem& item : plan.forward.merges) {
      if (item.into == sum && item.order > plan.forward.merges[lost].order) --item.order;
    }
    erase_item(plan.forward, StageKind::merge, lost);
    expect_scales_refused(plan, "another lse than that of all ranks' results");
  }
}

// The lse of a rank's own results in the place of another's.
TEST(ScaledPartials, CountEachLseOnce) {
  Plan plan = scaled_plan();
  const size_t first = find_payload(plan, Payload::lse);
  const size_t second = find_payload(plan, Payload::lse, first + 1);
  TransferItem& item = plan.forward.transfers[second];
  ASSERT_EQ(item.dst, plan.forward.transfers[first].dst);
  item.src = plan.forward.transfers[first].src;
  item.from = plan.forward.transfers[first].from;
  expect_scales_refused(plan, "another lse");
}

TEST(ScaledPartials, AreNotUsedAlone) {
  Plan finished = scaled_plan();
  repeat_item(finished.forward, StageKind::finish, 0);
  FinishItem& finish = finished.forward.finishes.front();
  finish.buffer = finished.forward.merges[find_lse_merge(finished)].into;
  finish.rank = finished.buffer(finish.buffer).rank;
  expect_scales_refused(finished, "are finished alone");
  // As a partial result to another rank: its lse would be counted again.
  Plan sent = scaled_plan();
  for (TransferItem& item : sent.forward.transfers) {
    if (item.payload != Payload::out || item.src == item.dst) continue;
    item.payload = Payload::partial;
    item.landing = Landing::replace;
    item.bytes = wire_bytes(sent, item);
    break;
  }
  EXPECT_FALSE(first_broken(sent).ok);
}

TEST(ScaledPartials, TakeNoMergeByLseOnceTheyAreAdded) {
  // The sum of the owner begins with a result of its own instead of zeros.
  Plan plan = scaled_plan();
  for (MergeItem& item : plan.forward.merges) {
    if (item.into != plan.home.front().out) continue;
    const auto own = std::find_if(
        plan.forward.merges.begin(), plan.forward.merges.end(), [&](const MergeItem& other) {
          return other.rank == item.rank && other.into != item.into && other.order == 0;
        });
    ASSERT_NE(own, plan.forward.merges.end());
    std::swap(item.partial, own->partial);
    break;
  }
  EXPECT_FALSE(first_broken(plan).ok);
}

// A rank that computes nothing adds zeros to its own rows, and with them their lse.
TEST(ScaledPartials, BringTheLseOfTheRowsWithTheOwnAddend) {
  Plan plan = scaled_plan({5}, 4, LayoutKind::contiguous);
  for (size_t i = 0; i < plan.forward.transfers.size(); ++i) {
    const TransferItem& item = plan.forward.transfers[i];
    const bool is_idle =
        std::none_of(plan.forward.computes.begin(), plan.forward.computes.end(),
                     [&](const ComputeItem& c) { return c.rank == item.src && c.num_slices > 0; });
    if (item.payload != Payload::out || item.src != item.dst || !is_idle || plan.rows_of(item) == 0)
      continue;
    erase_item(plan.forward, StageKind::transfer, i);
    expect_scales_refused(plan, "has not the lse of one result of its own rank");
    return;
  }
  FAIL() << "no rank with rows computes nothing";
}

TEST(ScaledPartials, AreRefusedWithOneItemChanged) {
  for (const Plan& plan : {scaled_in_parts(), scaled_plan({24, 9}, 4)}) {
    const MutationCount count = refuse_mutations(plan, 3);
    EXPECT_GT(count.documents, 40);
    EXPECT_GT(count.refused, count.documents * 7 / 10);
  }
}

TEST(CustomGradients, TravelAsWideAsDkvWireSays) {
  int narrowed = 0;
  for (GoodPlan good : plans_of_every_type()) {
    Plan& plan = good.plan;
    if (plan.scenario.numerics.dkv_wire != WireFormat::fp32) continue;
    plan.scenario.parallel.comm_type = CommType::custom;
    EXPECT_EQ(first_broken(plan).name, "none") << good.name << first_broken(plan).detail;
    for (size_t i = 0; i < plan.backward.transfers.size(); ++i) {
      TransferItem& item = plan.backward.transfers[i];
      if (!item.wire_fp32 || item.src == item.dst || plan.rows_of(item) == 0) continue;
      item.wire_fp32 = false;
      item.bytes = wire_bytes(plan, item);
      const CheckResult broken = first_broken(plan);
      EXPECT_EQ(broken.name, "movement") << good.name << broken.detail;
      EXPECT_NE(broken.detail.find("dkv_wire"), std::string::npos) << broken.detail;
      EXPECT_EQ(broken.item,
                (ItemId{Direction::backward, StageKind::transfer, static_cast<int64_t>(i)}));
      ++narrowed;
      break;
    }
  }
  EXPECT_GT(narrowed, 3);
}

}  // namespace
}  // namespace cpscope::tests
