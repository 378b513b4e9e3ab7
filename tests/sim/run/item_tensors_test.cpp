#include "sim/run/record/item_tensors.h"

#include <gtest/gtest.h>

namespace cpscope {
namespace {

TEST(ItemTensors, AreNamedByPassKindItemRankStepAndArray) {
  const ItemTensorName name{
      {Direction::forward, StageKind::compute, 12}, RankId{3}, StepId{1}, "out"};
  EXPECT_EQ(print_item_name(name), "forward.compute.12.rank3.step1.out");
  const ItemTensorName other{
      {Direction::backward, StageKind::finish, 0}, RankId{0}, StepId{7}, "dk"};
  EXPECT_EQ(print_item_name(other), "backward.finish.0.rank0.step7.dk");
}

TEST(ItemTensors, ReadTheirNamesBack) {
  const auto name = parse_item_name("backward.compute.9007199254740993.rank2.step5.dv");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->item, (ItemId{Direction::backward, StageKind::compute, 9007199254740993}));
  EXPECT_EQ(name->rank, RankId{2});
  EXPECT_EQ(name->step, StepId{5});
  EXPECT_EQ(name->array, "dv");
}

TEST(ItemTensors, TakeNothingElseForAName) {
  for (const char* text :
       {"", "out", "forward", "forward.compute.1.rank0.step0", "forward.compute.1.rank0.step0.o",
        "sideways.compute.1.rank0.step0.out", "forward.merge.1.rank0.step0.out",
        "forward.compute.-1.rank0.step0.out", "forward.compute.01.rank0.step0.out",
        "forward.compute.1.rank.step0.out", "forward.compute.1.rank99999999999.step0.out",
        "forward.compute.1.rank0.step0.out.", "forward.compute.1.rank0.step0.out.x",
        "forward.compute.1.step0.rank0.out", "forward.compute..rank0.step0.out"})
    EXPECT_FALSE(parse_item_name(text).has_value()) << text;
}

TEST(ItemTensors, HoldShapeAndValuesOfTheResult) {
  const ItemResult result{{Direction::forward, StageKind::finish, 4},
                          RankId{1},
                          StepId{2},
                          "lse",
                          {2, 1, 1},
                          {0.1, -2.0}};
  const Tensor tensor = make_item_tensor(result, Dtype::fp64);
  EXPECT_EQ(tensor.name, "forward.finish.4.rank1.step2.lse");
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(tensor.dtype, Dtype::fp64);
  EXPECT_EQ(tensor.values, (std::vector<double>{0.1, -2.0}));
}

}  // namespace
}  // namespace cpscope
