#include "sim/faults/rank_posts.h"

#include "sim/plan/planner/planner.h"
#include "tests/support/walker_cases.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Post send_to(int32_t peer, int64_t bytes, int32_t step = 0) {
  return {RankId{peer}, StepId{step}, bytes, {}, true};
}
Post receive_from(int32_t peer, int64_t bytes, int32_t step = 0) {
  return {RankId{peer}, StepId{step}, bytes, {}, false};
}

TEST(RankPosts, OfEveryPlanComeToAnEnd) {
  for (const CommType comm : kCommTypes) {
    Scenario scenario = walker_case({37, 16, 21}, 4);
    scenario.parallel.comm_type = comm;
    const RankPosts posts = make_posts(make_plan(scenario).value());
    const auto stall = find_stall(posts, posts);
    EXPECT_FALSE(stall.has_value()) << to_name(comm) << ": " << stall->text;
  }
}

TEST(RankPosts, OfARingAreOneSendAndOneReceiveAStepOnEveryRank) {
  const RankPosts posts = make_posts(make_plan(walker_case({64}, 4)).value());
  for (const auto& rank : posts.groups) {
    // 3 hops of KV forward; backward 3 of KV and 3 of dKV.
    ASSERT_EQ(rank.size(), 9u);
    for (const auto& group : rank) EXPECT_EQ(group.size(), 2u);
  }
}

TEST(RankPosts, StandStillWhereASendIsNotReceived) {
  const RankPosts posts{{{{send_to(1, 8)}}, {}}};
  const auto stall = find_stall(posts, posts);
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(to_index(stall->rank), 0);
  EXPECT_TRUE(stall->post.is_send);
}

TEST(RankPosts, StandStillWhereSizesDiffer) {
  const RankPosts fit{{{{send_to(1, 8)}}, {{receive_from(0, 8)}}}},
      differ{{{{send_to(1, 8)}}, {{receive_from(0, 4)}}}};
  EXPECT_FALSE(find_stall(fit, fit).has_value());
  const auto stall = find_stall(differ, fit);
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(to_index(stall->culprit), 1) << "rank 0 posts as it should";
}

TEST(RankPosts, StandStillWhereAllSendBeforeTheyReceive) {
  const RankPosts grouped{
      {{{send_to(1, 8), receive_from(1, 8)}}, {{send_to(0, 8), receive_from(0, 8)}}}};
  EXPECT_FALSE(find_stall(grouped, grouped).has_value());
  const RankPosts blocking{
      {{{send_to(1, 8)}, {receive_from(1, 8)}}, {{send_to(0, 8)}, {receive_from(0, 8)}}}};
  EXPECT_TRUE(find_stall(blocking, blocking).has_value());
  const RankPosts by_parity{
      {{{send_to(1, 8)}, {receive_from(1, 8)}}, {{receive_from(0, 8)}, {send_to(0, 8)}}}};
  EXPECT_FALSE(find_stall(by_parity, by_parity).has_value());
}

}  // namespace
}  // namespace cpscope::tests
