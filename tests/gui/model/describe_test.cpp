#include "gui/model/describe.h"

#include "tests/gui/model/random_plans.h"
#include "tests/support/walker_cases.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using gui::PlanIndex;
using gui::Target;

TEST(Describe, NamesTargetsWithAndWithoutAPlan) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 4)));
  const auto name = [&](const Target& target) { return name_target(target, &index); };
  EXPECT_EQ(name(gui::TokenRange{Side::kv, 128, 1'256}), "tokens [128, 1 256) of keys");
  EXPECT_EQ(name(gui::TokenRange{Side::q, 17, 18}), "token 17 of queries");
  EXPECT_EQ(name(gui::PairRange{0, 8, 16, 32}), "queries [0, 8) x keys [16, 32)");
  EXPECT_EQ(name(gui::RankTarget{3}), "rank 3");
  EXPECT_EQ(name(gui::LinkTarget{1, 2}), "link 1 -> 2");
  EXPECT_EQ(name(ItemId{Direction::backward, StageKind::merge, 12}), "backward merge 12");
  EXPECT_EQ(name(gui::StepTarget{5}), "step 2 of 4, backward");
  EXPECT_EQ(name(gui::RowTarget{3, 17, 1}), "dk[token 17, head 1]");
  EXPECT_EQ(gui::capitalise(name(gui::RowTarget{0, 17, 1})), "out[token 17, head 1]");
  EXPECT_EQ(gui::capitalise(name(gui::LinkTarget{1, 2})), "Link 1 -> 2");
  // Targets that no plan has get a name, too.
  EXPECT_EQ(name(gui::StepTarget{99}), "step number 100 of the schedule");
  EXPECT_EQ(name_target(gui::StepTarget{1}, nullptr), "step number 2 of the schedule");
  EXPECT_EQ(name(gui::RowTarget{77, 5, 0}), "tensor[token 5, head 0]");
}

TEST(Describe, TellsFiguresOfThePlan) {
  const PlanIndex index(*plan_unless_refused(walker_case({256}, 4)));
  // Rank 0 of four owns chunks 0 and 7 of 32 tokens.
  EXPECT_EQ(describe_target(gui::TokenRange{Side::q, 224, 256}, index),
            "Tokens [224, 256) of queries: 32 tokens, rank 0, local rows [32, 64), sequence 0");
  EXPECT_EQ(describe_target(gui::TokenRange{Side::kv, 0, 64}, index),
            "Tokens [0, 64) of keys: 64 tokens, ranks 0 and 1, sequence 0");
  EXPECT_EQ(describe_target(gui::PairRange{0, 8, 0, 8}, index),
            "Queries [0, 8) x keys [0, 8): 36 pairs visible, 56.2 % of 64");
  EXPECT_EQ(describe_target(ItemId{Direction::forward, StageKind::compute, 0}, index),
            "Forward compute 0: rank 0, step 1 of 4, forward, 8 320 pairs");
  EXPECT_EQ(describe_target(ItemId{Direction::forward, StageKind::transfer, 0}, index),
            "Forward transfer 0: rank 0 to rank 1, step 1 of 4, forward, kv 16 KiB");
  EXPECT_EQ(describe_target(gui::StepTarget{0}, index),
            "Step 1 of 4, forward: 4 transfers, 4 computes, 4 merges");
  EXPECT_EQ(describe_target(gui::RowTarget{0, 225, 1}, index),
            "out[token 225, head 1]: rank 0, local row 33, sequence 0");
}

TEST(Describe, ReadsTheItemIdsThatItPrints) {
  for (const Direction direction : kDirections) {
    for (const StageKind kind : {StageKind::transfer, StageKind::reorder, StageKind::compute,
                                 StageKind::merge, StageKind::finish}) {
      const ItemId item{direction, kind, 41'822};
      EXPECT_EQ(gui::parse_item(gui::print_item(item)), item);
      EXPECT_EQ(gui::parse_item(gui::print_item(item) + ".rank3.step1.out"), item);
    }
  }
  for (const char* bad :
       {"", ".", "..", "forward.compute", "forward.compute.", "forward.sum.1", "sideward.compute.1",
        "forward.compute.-1", "forward.compute.1x", "forward.compute.99999999999999999999"})
    EXPECT_EQ(gui::parse_item(bad), std::nullopt) << bad;
}

TEST(Describe, CountsFlopsWithItsOwnFormula) {
  Scenario scenario = walker_case({64}, 2);
  const PlanIndex same(*plan_unless_refused(scenario));
  EXPECT_EQ(gui::flops_of(same, Direction::forward, 1'000), 4.0 * 1'000 * 8);
  EXPECT_EQ(gui::flops_of(same, Direction::backward, 1'000), 10.0 * 1'000 * 8);
  EXPECT_EQ(gui::flops_formula(same, Direction::forward, 1'000), "4 x 1 000 pairs x head_dim 8");
  scenario.attention.head_dim_v = 4;
  const PlanIndex other(*plan_unless_refused(scenario));
  EXPECT_EQ(gui::flops_of(other, Direction::backward, 10), 2.0 * 10 * (3 * 8 + 2 * 4));
  EXPECT_EQ(gui::flops_formula(other, Direction::backward, 10),
            "2 x 10 pairs x (3 x head_dim 8 + 2 x 4)");
  EXPECT_EQ(gui::print_flops(4.26e6), "4.26 MFLOP");
  EXPECT_EQ(gui::print_flops(0), "0 FLOP");
}

TEST(Describe, SaysSomethingOfWhateverAPlanHas) {
  for_plans_of_seeds(60, [](const PlanIndex& index, uint64_t) {
    std::vector<Target> targets = {gui::Nothing{},
                                   gui::TokenRange{Side::q, 0, 1},
                                   gui::TokenRange{Side::kv, 0, index.tokens(Side::kv)},
                                   gui::PairRange{0, index.tokens(Side::q), 0, 1},
                                   gui::RankTarget{index.num_ranks() - 1},
                                   gui::RowTarget{4, index.tokens(Side::kv) - 1, 0}};
    for (const gui::StageRef& stage : index.stages()) {
      for (int64_t i = stage.begin; i < stage.end; ++i)
        targets.push_back(ItemId{stage.direction, stage.kind, i});
    }
    for (size_t s = 0; s < index.steps().size(); ++s)
      targets.push_back(gui::StepTarget{static_cast<int32_t>(s)});
    for (const Target& target : targets) {
      const std::string text = describe_target(target, index);
      EXPECT_GT(text.size(), 10u);
      EXPECT_LT(text.size(), 200u) << text;
      for (const char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
    }
  });
}

}  // namespace
}  // namespace cpscope::tests
