#include "sim/plan/check/plan_check.h"
#include "sim/plan/plan_summary.h"
#include "tests/sim/plan/faulty_plans.h"
#include "tests/sim/plan/plan_cases.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

// group_cast with dispatch = "queries": only rows that see a key leave their rank. Bytes are
// counted by hand: a row of q, out, d_out or dq has heads x 4 elements of 2 bytes, a row of kv or
// dkv 8.

namespace cpscope::tests {
namespace {

Scenario moving_queries(Scenario scenario) {
  scenario.parallel.comm_type = CommType::group_cast;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.parallel.dispatch = Dispatch::queries;
  return scenario;
}

/// The plan of a scenario, which must pass the check; with what each rank sends.
void expect_sends(const Scenario& scenario, const std::vector<int64_t>& forward,
                  const std::vector<int64_t>& backward) {
  const Result<CheckedPlan> checked = check_plan(plan_of(scenario));
  ASSERT_TRUE(checked.ok()) << to_text(checked.error()) << "\n" << show(scenario);
  const PlanSummary summary = summarise(checked.value().plan());
  EXPECT_EQ(summary.forward_bytes, forward) << show(scenario);
  EXPECT_EQ(summary.backward_bytes, backward) << show(scenario);
}

/// Tokens 0 to 5 are valid, 6 to 15 padding, of which rank 1 owns 8 to 15.
Scenario padded_batch() {
  Scenario scenario = moving_queries(make_case({6}, 2, LayoutKind::contiguous));
  scenario.batch.slots = scenario.batch.kv_slots = {16};
  return scenario;
}

TEST(MovedQueries, SendNoRowOfPadding) {
  // Rank 1 computes queries 0 to 3 with keys 0 to 3. q 32 and KV 64 bytes go there, out 32 comes
  // back; then d_out 32 and KV 64, and dq 32 and dKV 64.
  expect_sends(padded_batch(), {96, 32}, {96, 96});
}

TEST(MovedQueries, SendNothingWhereOneQueryIsAllThereIs) {
  // The query stays on rank 0, which fetches two keys of 16 bytes from each other rank.
  Scenario scenario = moving_queries(make_cross_case({1}, {8}, 4, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  expect_sends(scenario, {0, 32, 32, 32}, {96, 32, 32, 32});
}

/// Queries 0, 1 see keys 0 to 3; 5, 6, 7 see keys 4 to 7; 2, 3, 4 see none.
Scenario holes_in_slices() {
  Scenario scenario = moving_queries(make_case({8}, 2, LayoutKind::contiguous));
  scenario.attention.heads = 2;
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 2, 0, 4, SliceType::full}, {5, 8, 4, 8, SliceType::full}};
  return scenario;
}

TEST(MovedQueries, SendNoEmptyRowOfSlices) {
  // Rank 0 computes query 5 of rank 1's half 4, 5: q, out, d_out and dq have one row of 16 bytes,
  // KV and dKV four of 16.
  expect_sends(holes_in_slices(), {16, 80}, {80, 80});
}

TEST(MovedQueries, SendNoEmptyRowOfAWindow) {
  // Queries 0 to 3 see no key; 4 sees 0; 5 sees 0, 1; 6 sees 1, 2; 7 sees 2, 3. Queries 6, 7 go to
  // rank 0 (2 x 8 bytes), keys 2, 3 too (2 x 16); keys 0, 1 go to rank 1.
  Scenario scenario = moving_queries(make_cross_case({8}, {4}, 2, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.window_left = 1;
  scenario.attention.window_right = 0;
  expect_sends(scenario, {48, 48}, {80, 80});
}

TEST(MovedQueries, SendNothingWhereNoQuerySeesAKey) {
  Scenario scenario = holes_in_slices();
  scenario.attention.slices = {{8, 8, 0, 8, SliceType::full}};
  expect_sends(scenario, {0, 0}, {0, 0});
}

TEST(MovedQueries, StayInTheOrderOfTheirRankWhereAllSeeAKey) {
  // 0 to 3 are on rank 0. Of equal halves 0, 1 stay, 2, 3 go to rank 1, and 4, 5 come.
  Scenario scenario = moving_queries(make_case({8}, 2, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::no_mask;
  const Plan plan = plan_of(scenario);
  ASSERT_EQ(plan.forward.computes.size(), 4u);
  EXPECT_EQ(show(expand(plan.list(plan.forward.computes[0].q_tokens))), "0 1 4 5");
  EXPECT_EQ(show(expand(plan.list(plan.forward.computes[2].q_tokens))), "2 3 6 7");
}

TEST(MovedQueries, ComeBeforeTheRowsThatSeeNothing) {
  const Plan plan = plan_of(holes_in_slices());
  std::vector<std::string> lists;
  for (const BufferSpec& spec : plan.buffers) {
    if (spec.role == BufferRole::moved && spec.kind == BufferKind::q)
      lists.push_back(show(expand(plan.list(spec.tokens))));
  }
  EXPECT_EQ(lists, (std::vector<std::string>{"0 1 5 2 3", "6 7 4"}));
}

/// The last transfer of a payload between two ranks that carries more than one row.
TransferItem* find_rows(Plan& plan, Direction direction, Payload payload) {
  std::vector<TransferItem>& items = plan.pass(direction).transfers;
  const auto found = std::find_if(items.rbegin(), items.rend(), [&](const TransferItem& item) {
    return item.payload == payload && item.src != item.dst && plan.rows_of(item) > 1 &&
           item.from_rows != kAllRows && item.to_rows != kAllRows;
  });
  return found == items.rend() ? nullptr : &*found;
}

/// Takes the last row of a transfer away, at both ends.
Fault lose_row(Direction direction, Payload payload) {
  return [=](Plan& plan) -> std::optional<Place> {
    if (plan.scenario.parallel.dispatch != Dispatch::queries) return std::nullopt;
    TransferItem* item = find_rows(plan, direction, payload);
    if (item == nullptr) return std::nullopt;
    const int64_t rows = plan.rows_of(*item);
    for (RunListId* list : {&item->from_rows, &item->to_rows}) {
      const std::vector<TokenRun> kept = slice_rows(plan.list(*list), 0, rows - 1);
      *list = plan.run_lists.push_back(
          {static_cast<int64_t>(plan.runs.size()), static_cast<int64_t>(kept.size()), rows - 1});
      plan.runs.insert(plan.runs.end(), kept.begin(), kept.end());
    }
    item->bytes = item->bytes / rows * (rows - 1);
    return Place{to_index(item->dst), -1};
  };
}

TEST(MovedQueries, AreMissedIfOneThatSeesKeysDoesNotLand) {
  expect_caught("movement", lose_row(Direction::forward, Payload::q), 2, "does not hold");
  expect_caught("movement", lose_row(Direction::forward, Payload::out), 2, "ends without its out");
  expect_caught("movement", lose_row(Direction::backward, Payload::d_out), 2, "lacks");
  expect_caught("movement", lose_row(Direction::backward, Payload::dq), 2, "ends without its dq");
}

/// Changes a plan in which all of 8 queries see all keys to a mask that hides them from query 2,
/// which still travels to rank 1, where it is row 0. A band of the plan lies in one mask slice.
Plan with_idle_traveller(const Scenario& all_see) {
  Plan plan = plan_of(all_see);
  plan.scenario.attention.mask_type = MaskType::slices;
  plan.scenario.attention.slices = {{0, 2, 0, 8, SliceType::full}, {3, 8, 0, 8, SliceType::full}};
  const std::vector<ComputeItem> computes = plan.forward.computes;
  for (const ComputeItem& item : computes) {
    std::vector<BandSlice> bands = slices_of(plan, item);
    if (item.rank == RankId{1}) {
      for (BandSlice& band : bands) band.q0 = std::max(band.q0, 1);
    } else {
      bands.resize(2, bands.front());
      bands[0].q1 = bands[1].q0 = 2;
    }
    set_slices_everywhere(plan, item, bands);
  }
  return plan;
}

TEST(MovedQueries, AreCaughtIfTheyTravelAndSeeNoKey) {
  Scenario scenario = moving_queries(make_case({8}, 2, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::no_mask;
  ASSERT_TRUE(check_plan(plan_of(scenario)).ok());
  const Plan plan = with_idle_traveller(scenario);
  for (const CheckResult& check : inspect_plan(plan)) {
    EXPECT_EQ(check.ok, check.name != "bytes") << check.name << ": " << check.detail;
    if (check.name == "bytes") {
      EXPECT_EQ(
          check.detail,
          "forward, step 0: q from rank 0 to rank 1 carries query token 2, which sees no key");
    }
  }
}

TEST(MovedQueries, AreCaughtOnTheirWayBackToo) {
  Scenario scenario = moving_queries(make_case({8}, 2, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::no_mask;
  for (const auto& [direction, payload] :
       {std::pair(Direction::forward, Payload::out), std::pair(Direction::backward, Payload::d_out),
        std::pair(Direction::backward, Payload::dq)}) {
    // Without the transfers before it, this one is the first that the check can name.
    Plan plan = with_idle_traveller(scenario);
    for (const Direction earlier : kDirections) {
      std::vector<TransferItem>& items = plan.pass(earlier).transfers;
      for (size_t t = items.size(); t-- > 0;) {
        const bool is_query_side =
            items[t].payload != Payload::kv && items[t].payload != Payload::dkv;
        if (is_query_side && (earlier != direction || items[t].payload != payload))
          erase_item(plan.pass(earlier), StageKind::transfer, t);
      }
    }
    const std::vector<CheckResult> checks = inspect_plan(plan);
    const auto bytes = std::find_if(checks.begin(), checks.end(),
                                    [](const CheckResult& check) { return check.name == "bytes"; });
    ASSERT_NE(bytes, checks.end());
    EXPECT_NE(bytes->detail.find(std::string(to_name(payload)) + " from rank"), std::string::npos)
        << bytes->detail;
    EXPECT_NE(bytes->detail.find("carries query token 2, which sees no key"), std::string::npos)
        << bytes->detail;
  }
}

TEST(MovedQueries, FetchNoKeyThatTheyDoNotSee) {
  // Without query 2 nobody on rank 1 needs all that rank 0 sends there.
  Scenario scenario = moving_queries(make_case({8}, 2, LayoutKind::contiguous));
  scenario.attention.mask_type = MaskType::no_mask;
  Plan plan = plan_of(scenario);
  plan.scenario.attention.mask_type = MaskType::slices;
  plan.scenario.attention.slices = {{0, 8, 1, 8, SliceType::full}};
  const std::vector<ComputeItem> computes = plan.forward.computes;
  for (const ComputeItem& item : computes) {
    if (plan.list(item.kv_tokens).front().begin != 0) continue;
    std::vector<BandSlice> bands = slices_of(plan, item);
    for (BandSlice& band : bands) band.k0 = std::max(band.k0, 1);
    set_slices_everywhere(plan, item, bands);
  }
  for (const CheckResult& check : inspect_plan(plan)) {
    EXPECT_EQ(check.ok, check.name != "bytes") << check.name << ": " << check.detail;
    if (check.name == "bytes") {
      EXPECT_EQ(check.detail, "112 KV bytes are necessary, 128 move");
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
