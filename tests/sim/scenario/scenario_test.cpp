#include "sim/scenario/scenario.h"

#include "sim/scenario/scenario_names.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace cpscope {
namespace {

template <class Choices>
std::set<std::string> list_names(const Choices& choices) {
  std::set<std::string> names;
  for (const auto choice : choices) names.insert(std::string(to_name(choice)));
  return names;
}

TEST(ScenarioNames, AreThoseOfTheContract) {
  using Names = std::set<std::string>;
  EXPECT_EQ(list_names(kMaskTypes),
            (Names{"no_mask", "causal", "causal_bottom_right", "padding", "padding_causal",
                   "padding_causal_bottom_right", "slices"}));
  EXPECT_EQ(list_names(kSliceTypes), (Names{"full", "causal", "inv_causal", "bi_causal"}));
  EXPECT_EQ(list_names(kSoftmaxTypes), (Names{"vanilla", "off_by_one", "learnable"}));
  EXPECT_EQ(list_names(kQkvFormats), (Names{"bshd", "sbhd", "thd"}));
  EXPECT_EQ(list_names(kCommTypes),
            (Names{"p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "pass_q", "token_ring",
                   "helper_ring", "mesh", "gather_q", "double_ring", "a2a+double_ring"}));
  EXPECT_EQ(list_names(kLayoutKinds), (Names{"contiguous", "dual_chunk", "dual_chunk_packed",
                                             "striped", "lpt", "lpt_local", "indices"}));
  EXPECT_EQ(list_names(kDispatches), (Names{"tokens", "queries"}));
  EXPECT_EQ(list_names(kBackwardKvs), (Names{"refetch", "saved"}));
  EXPECT_EQ(list_names(kDtypes), (Names{"bf16", "fp16", "fp32", "fp64"}));
  EXPECT_EQ(list_names(kWireFormats), (Names{"dtype", "fp32"}));
  EXPECT_EQ(list_names(kDkvHops), (Names{"home", "ring"}));
  EXPECT_EQ(list_names(kRingBackwards), (Names{"kv", "q"}));
  EXPECT_EQ(list_names(kAccumulates), (Names{"fp32", "dtype"}));
}

TEST(ScenarioMask, IsDescribedWithItsWindowAndChunk) {
  Attention attention;
  attention.mask_type = MaskType::padding_causal;
  EXPECT_EQ(describe_mask(attention), "padding_causal");
  attention.window_left = 511;
  attention.window_right = 0;
  EXPECT_EQ(describe_mask(attention), "padding_causal, window [511, 0]");
  attention.chunk_size = 192;
  EXPECT_EQ(describe_mask(attention), "padding_causal, window [511, 0], chunk 192");
  attention.window_left = attention.window_right = -1;
  EXPECT_EQ(describe_mask(attention), "padding_causal, chunk 192");
  attention.mask_type = MaskType::no_mask;
  attention.chunk_size = 0;
  attention.window_right = 100;
  EXPECT_EQ(describe_mask(attention), "no_mask, window [-1, 100]") << "-1 is without bound";
}

TEST(ScenarioBytes, FollowTheDtypeAndTheWire) {
  EXPECT_EQ(element_bytes(Dtype::bf16), 2);
  EXPECT_EQ(element_bytes(Dtype::fp16), 2);
  EXPECT_EQ(element_bytes(Dtype::fp32), 4);
  EXPECT_EQ(element_bytes(Dtype::fp64), 8);
  Numerics numerics;
  EXPECT_EQ(dkv_wire_dtype(numerics), Dtype::bf16);
  numerics.dkv_wire = WireFormat::fp32;
  EXPECT_EQ(dkv_wire_dtype(numerics), Dtype::fp32);
  numerics.dtype = Dtype::fp64;
  EXPECT_EQ(dkv_wire_dtype(numerics), Dtype::fp64);
}

TEST(ScenarioScale, DefaultsToTheRootOfTheQueryHeadDim) {
  Attention attention;
  attention.head_dim_qk = 64;
  attention.head_dim_v = 16;
  EXPECT_EQ(attention.effective_scale(), 0.125);
  attention.softmax_scale = 0.3;
  EXPECT_EQ(attention.effective_scale(), 0.3);
}

}  // namespace
}  // namespace cpscope
