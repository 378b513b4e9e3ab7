#include "sim/plan/check/share_sums.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

RunListId put_list(Plan& plan, const std::vector<TokenRun>& runs) {
  const auto first = static_cast<int64_t>(plan.runs.size());
  plan.runs.insert(plan.runs.end(), runs.begin(), runs.end());
  return plan.run_lists.push_back({first, std::ssize(runs), count_ids(runs)});
}

/// Lists of consecutive tokens, some of which overlap.
Plan plan_of_lists() {
  Plan plan;
  for (const auto& [begin, end] : {std::pair{0, 4}, {4, 8}, {0, 8}, {2, 6}, {6, 7}})
    put_list(plan, {{begin, end, 1}});
  return plan;
}

/// (head, token) and the weights there that do not cancel, in this order.
using UnequalSums = std::map<std::pair<int32_t, int64_t>, uint64_t>;

void add_to(UnequalSums& sums, const Plan& plan, const Share& share) {
  for (int32_t head = share.heads.begin; head < share.heads.end; ++head) {
    for (const int64_t token : expand(plan.list(share.tokens))) sums[{head, token}] += share.weight;
  }
}

TEST(ShareLedger, FindsTheFirstHeadAndTokenWhoseResultsDoNotCancel) {
  std::mt19937 random(4);
  const Plan plan = plan_of_lists();
  int64_t balanced = 0, different = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    ShareLedger ledger(plan);
    UnequalSums sums;
    const auto add = [&](const Share& share) {
      ledger.add(share);
      add_to(sums, plan, share);
    };
    const auto count = static_cast<int64_t>(random() % 6);
    for (int64_t i = 0; i < count; ++i) {
      const auto begin = static_cast<int32_t>(random() % 5);
      const HeadRange heads{begin, begin + 1 + static_cast<int32_t>(random() % 3)};
      const uint64_t weight = fingerprint(static_cast<int64_t>(random() % 3));
      add({RunListId{2}, kAllRows, heads, weight});
      // The same tokens or heads in two parts, of which one is left out now and then.
      if (random() % 2 == 0) {
        add({RunListId{0}, kAllRows, heads, 0 - weight});
        if (random() % 8 != 0) add({RunListId{1}, kAllRows, heads, 0 - weight});
      } else {
        add({RunListId{2}, kAllRows, {heads.begin, heads.begin + 1}, 0 - weight});
        if (random() % 8 != 0)
          add({RunListId{2}, kAllRows, {heads.begin + 1, heads.end}, 0 - weight});
      }
    }
    std::erase_if(sums, [](const auto& entry) { return entry.second == 0; });
    const std::optional<TokenHead> found = ledger.first_difference();
    ASSERT_EQ(found.has_value(), !sums.empty()) << "trial " << trial;
    ++(found ? different : balanced);
    if (!found) continue;
    EXPECT_EQ(found->head, sums.begin()->first.first) << "trial " << trial;
    EXPECT_EQ(found->token, sums.begin()->first.second) << "trial " << trial;
  }
  EXPECT_GT(balanced, 500);
  EXPECT_GT(different, 500);
}

// What one head has too much another lacks, so that the sum over all heads alone shows nothing.
TEST(ShareLedger, FindsHeadsThatCancelEachOther) {
  const Plan plan = plan_of_lists();
  for (const uint64_t weight : {uint64_t{1}, fingerprint(0), fingerprint(7)}) {
    ShareLedger ledger(plan);
    ledger.add({RunListId{2}, kAllRows, {0, 8}, weight});
    ledger.add({RunListId{2}, kAllRows, {0, 8}, 0 - weight});
    ledger.add({RunListId{3}, kAllRows, {2, 3}, weight});
    ledger.add({RunListId{3}, kAllRows, {5, 6}, 0 - weight});
    const std::optional<TokenHead> found = ledger.first_difference();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->head, 2);
    EXPECT_EQ(found->token, 2);
  }
}

// A list of which parts of the rows go to three owners: the rows show that all arrives, or the
// first token that does not. Rows that the list does not have carry nothing.
TEST(ShareLedger, FindsTheTokenOfARowThatNoPartHas) {
  Plan plan;
  const RunListId tokens = put_list(plan, {{100, 104, 1}, {7, 15, 2}});
  const RunListId other = put_list(plan, {{50, 60, 1}});
  const RunListId parts[] = {put_list(plan, {{0, 2, 1}, {6, 8, 1}}), put_list(plan, {{2, 6, 3}}),
                             put_list(plan, {{3, 5, 1}})};
  const RunListId short_part = put_list(plan, {{3, 4, 1}}), beyond = put_list(plan, {{8, 9, 1}});
  const auto difference = [&](const std::vector<RunListId>& arrived, uint64_t of_other) {
    ShareLedger ledger(plan);
    ledger.add({tokens, kAllRows, {0, 2}, 0 - fingerprint(0)});
    ledger.add({other, kAllRows, {0, 2}, 0 - fingerprint(1)});
    ledger.add({other, kAllRows, {0, 2}, of_other});
    for (const RunListId rows : arrived) ledger.add({tokens, rows, {0, 2}, fingerprint(0)});
    const auto found = ledger.first_difference();
    return found ? found->token : -1;
  };
  const std::vector<RunListId> all{parts[0], parts[1], parts[2]};
  EXPECT_EQ(difference(all, fingerprint(1)), -1);
  EXPECT_EQ(difference({parts[0], parts[1], parts[2], beyond}, fingerprint(1)), -1);
  EXPECT_EQ(difference({parts[0], parts[1], short_part}, fingerprint(1)), 7);
  EXPECT_EQ(difference({parts[1], parts[2]}, fingerprint(1)), 100);
  EXPECT_EQ(difference(all, fingerprint(2)), 50);
}

// One head for each of 8192 ranks, 200000 runs: visited once for every head, they take many
// seconds.
TEST(ShareLedger, VisitsTheRunsOfAllHeadsOnce) {
  constexpr int32_t kHeads = 8192;
  constexpr int64_t kRuns = 200'000;
  Plan plan;
  std::vector<TokenRun> even, odd;
  for (int64_t run = 0; run < kRuns; ++run)
    (run % 2 == 0 ? even : odd).push_back({run * 2, run * 2 + 2, 1});
  const RunListId all = put_list(plan, {{0, 2 * kRuns, 1}}), first = put_list(plan, even),
                  second = put_list(plan, odd);
  ShareLedger ledger(plan);
  for (int32_t head = 0; head < kHeads; ++head) {
    const uint64_t weight = fingerprint(head);
    ledger.add({all, kAllRows, {head, head + 1}, 0 - weight});
    ledger.add({first, kAllRows, {head, head + 1}, weight});
    ledger.add({second, kAllRows, {head, head + 1}, weight});
  }
  EXPECT_FALSE(ledger.first_difference().has_value());
}

}  // namespace
}  // namespace cpscope::tests
