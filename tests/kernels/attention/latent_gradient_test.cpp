// The gradients of latent attention of sm_90a, on the emulator or a Hopper GPU, against the dense
// reference: V is the first elements of K, and dk is the gradient of both.
#include "tests/kernels/attention/gradient_runner.h"
#include "tests/kernels/attention/hopper_cases.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using kernels::Generation;

/// One KV head that all query heads read.
AttentionCase latent_of(AttentionCase item, int32_t num_heads) {
  kernels::AttentionShape& shape = item.shape;
  shape.is_latent = true;
  shape.num_heads = num_heads;
  shape.group = shape.first_head + num_heads;
  shape.first_kv_head = 0;
  shape.num_kv_heads = 1;
  return item;
}

kernels::GradientProblem latent_problem_of(const AttentionCase& item) {
  return make_gradient_problem(item.shape, item.slices, static_cast<uint32_t>(item.seed));
}

class HopperLatentGradients : public Hopper {
 protected:
  static void check(const AttentionCase& item, int32_t most_parts = 1) {
    ASSERT_EQ(why_not_backward(Generation::sm90, item.shape), "") << describe(item);
    const kernels::GradientProblem problem = latent_problem_of(item);
    const kernels::ExactGradients exact = solve(problem);
    const kernels::KernelGradients got =
        run_gradients(kernels::hopper_gradient_kernels(false, most_parts), problem, exact);
    EXPECT_EQ(got.stray_write, "") << describe(item);
    EXPECT_EQ(find_excess("dq", exact.dq, got.dq, item.shape.num_heads, item.shape.head_dim_qk), "")
        << describe(item);
    EXPECT_EQ(find_excess("dk", exact.dk, got.dk, 1, item.shape.head_dim_qk), "") << describe(item);
  }
};

TEST_F(HopperLatentGradients, HoldRandomBandsAndHeads) {
  for (uint64_t seed = 1; seed <= kCases && !HasFailure(); ++seed) {
    draw_schedule(seed);
    AttentionCase item = random_case(
        seed, {.dims = {{576, 512}, {40, 30}, {576, 512}, {100, 64}, {520, 264}, {576, 3}},
               .share_softcap = 0.0});
    item = latent_of(item, item.shape.num_heads);
    item.slices =
        kernels::random_bands(item.shape.q_rows, item.shape.kv_rows, static_cast<uint32_t>(seed));
    check(item);
  }
}

TEST_F(HopperLatentGradients, HoldACausalPromptWithAnyScale) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
    AttentionCase item = latent_of(causal_case(dtype, 150, 576, 512), 2);
    for (const float scale : {1.0f / 24.0f, -0.25f, 0.0f}) {
      item.shape.scale = scale;
      if (dtype == Dtype::bf16 || scale > 0.0f) check(item);
    }
  }
}

TEST_F(HopperLatentGradients, AddUpTheHeadsInParts) {
  const AttentionCase item = latent_of(causal_case(Dtype::bf16, 90, 576, 512), 6);
  for (const int32_t parts : {2, 3, 6}) check(item, parts);
}

TEST_F(HopperLatentGradients, AreZeroWithoutKeysOrReaders) {
  AttentionCase item = latent_of(full_case(Dtype::bf16, 150, 576, 512), 2);
  item.slices = {{10, 20, 100, 140, -200, 200}};
  check(item);
  item.slices.clear();
  check(item);
  item.shape.kv_rows = 0;
  check(item);
}

TEST_F(HopperLatentGradients, KeepARowsNanFromOtherRows) {
  constexpr int32_t kRow = 50;
  const AttentionCase item = latent_of(causal_case(Dtype::bf16, 150, 576, 512), 1);
  kernels::GradientProblem problem = latent_problem_of(item);
  const kernels::ExactGradients exact = solve(problem);
  problem.log2_lse[kRow] = problem.delta[kRow] = std::numeric_limits<double>::quiet_NaN();
  const kernels::KernelGradients got =
      run_gradients(kernels::hopper_gradient_kernels(), problem, exact);
  for (int32_t row = 0; row < item.shape.q_rows; ++row)
    EXPECT_EQ(std::isnan(got.dq[static_cast<size_t>(row) * 576]), row == kRow) << "row " << row;
}

TEST_F(HopperLatentGradients, GiveTheSameBitsInAnyOrderOfThreads) {
  const AttentionCase item = latent_of(causal_case(Dtype::bf16, 200, 576, 512), 2);
  const kernels::GradientProblem problem = latent_problem_of(item);
  const kernels::ExactGradients exact = solve(problem);
  const kernels::GradientKernels kernels = kernels::hopper_gradient_kernels();
  const kernels::KernelGradients first = run_gradients(kernels, problem, exact);
  for (uint64_t seed = 2; seed < 4; ++seed) {
    draw_schedule(seed);
    const kernels::KernelGradients again = run_gradients(kernels, problem, exact);
    EXPECT_EQ(again.dq, first.dq);
    EXPECT_EQ(again.dk, first.dk);
  }
}

TEST_F(HopperLatentGradients, SayWhatTheyDoNotSupport) {
  const auto why_not = [](const AttentionCase& item) {
    return why_not_backward(Generation::sm90, item.shape);
  };
  AttentionCase item = latent_of(causal_case(Dtype::bf16, 150, 576, 512), 1);
  EXPECT_EQ(why_not(item), "");
  item.shape.head_dim_v = 520;
  EXPECT_NE(why_not(item).find("of V up to 512"), std::string::npos);
  item.shape.head_dim_v = 512;
  item.shape.softcap = 1.5f;
  EXPECT_NE(why_not(item).find("no softcap"), std::string::npos);
  item.shape.softcap = 0.0f;
  item.shape.dtype = Dtype::fp32;
  EXPECT_NE(why_not(item).find("bf16 and fp16"), std::string::npos);
}

}  // namespace
}  // namespace cpscope::tests
