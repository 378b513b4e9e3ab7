#include "sim/faults/rank_posts.h"

#include "sim/plan/planner.h"
#include "tests/support/walker_cases.h"

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Post send_to(int32_t peer, int64_t bytes, int32_t step = 0) {
  return {RankId{peer}, StepId{step}, bytes, 0, false, true};
}
Post receive_from(int32_t peer, int64_t bytes, int32_t step = 0) {
  return {RankId{peer}, StepId{step}, bytes, 0, false, false};
}

TEST(RankPosts, OfEveryPlanComeToAnEnd) {
  for (const CommType comm : kCommTypes) {
    Scenario scenario = walker_case({37, 16, 21}, 4);
    scenario.parallel.comm_type = comm;
    const auto stall = find_stall(make_posts(make_plan(scenario).value()));
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
  const auto stall = find_stall(posts);
  ASSERT_TRUE(stall.has_value());
  EXPECT_EQ(to_index(stall->rank), 0);
  EXPECT_TRUE(stall->post.is_send);
}

TEST(RankPosts, StandStillWhereSizesDiffer) {
  EXPECT_FALSE(find_stall({{{{send_to(1, 8)}}, {{receive_from(0, 8)}}}}).has_value());
  EXPECT_TRUE(find_stall({{{{send_to(1, 8)}}, {{receive_from(0, 4)}}}}).has_value());
}

TEST(RankPosts, StandStillWhereAllSendBeforeTheyReceive) {
  const RankPosts grouped{
      {{{send_to(1, 8), receive_from(1, 8)}}, {{send_to(0, 8), receive_from(0, 8)}}}};
  EXPECT_FALSE(find_stall(grouped).has_value());
  const RankPosts blocking{
      {{{send_to(1, 8)}, {receive_from(1, 8)}}, {{send_to(0, 8)}, {receive_from(0, 8)}}}};
  EXPECT_TRUE(find_stall(blocking).has_value());
  const RankPosts by_parity{
      {{{send_to(1, 8)}, {receive_from(1, 8)}}, {{receive_from(0, 8)}, {send_to(0, 8)}}}};
  EXPECT_FALSE(find_stall(by_parity).has_value());
}

}  // namespace
}  // namespace cpscope::tests
