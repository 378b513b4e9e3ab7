// Latent attention: v is the first elements of k, and one gradient returns for both.
#include "reference/dense_oracle.h"
#include "reference/rotate_row.h"
#include "tests/reference/tiny_batch.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

constexpr int32_t kLatent = 6, kHeadDim = 10;

Scenario latent_scenario(Dtype dtype = Dtype::fp64) {
  Scenario scenario = make_scenario({19, 0, 30}, 3, kHeadDim);
  scenario.batch.kv_lengths = {23, 4, 30};
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.kv_heads = 1;
  scenario.attention.latent_dim = scenario.attention.head_dim_v = kLatent;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// The same attention with v as a tensor of its own.
TinyBatch expand(const TinyBatch& latent) {
  TinyBatch expanded = latent;
  expanded.scenario.attention.latent_dim = 0;
  const Tensor& k = latent.inputs.k;
  expanded.inputs.v = {"v", {k.shape[0], 1, kLatent}, k.dtype, {}};
  for (int64_t row = 0; row < k.shape[0]; ++row)
    expanded.inputs.v.values.insert(expanded.inputs.v.values.end(),
                                    k.values.begin() + row * kHeadDim,
                                    k.values.begin() + row * kHeadDim + kLatent);
  return expanded;
}

/// dK with dV added to its first elements.
std::vector<double> add_gradients(const Answer& answer) {
  std::vector<double> sum = answer.dk.values;
  for (size_t i = 0; i < answer.dv.values.size(); ++i)
    sum[i / kLatent * kHeadDim + i % kLatent] += answer.dv.values[i];
  return sum;
}

/// Rotates the elements behind the latent ones of every valid row.
void turn(const BatchSlots& slots, Side side, int64_t heads, double theta, double direction,
          Tensor& tensor) {
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    // Bottom-right: the last query stands at the last key.
    const int64_t first = side == Side::q ? sequence.kv_valid - sequence.q_valid : 0;
    for (int64_t i = 0; i < slot.valid; ++i) {
      for (int64_t head = 0; head < heads; ++head)
        rotate_row(
            theta, first + i, kHeadDim - kLatent, direction,
            tensor.values.data() + ((slot.valid_begin() + i) * heads + head) * kHeadDim + kLatent);
    }
  }
}

TEST(LatentAttention, IsThatOfACopyOfTheFirstElementsAndAddsTheGradients) {
  const TinyBatch latent = make_tiny_batch(latent_scenario());
  const TinyBatch expanded = expand(latent);
  const Answer one = exact_answer(latent.scenario, latent.inputs),
               two = exact_answer(expanded.scenario, expanded.inputs);
  EXPECT_EQ(one.out.values, two.out.values);
  EXPECT_EQ(one.lse.values, two.lse.values);
  EXPECT_LT(relative_l2(one.dq.values, two.dq.values), 1e-14);
  EXPECT_LT(relative_l2(one.dk.values, add_gradients(two)), 1e-14);
  EXPECT_TRUE(one.dv.values.empty());
  EXPECT_EQ(one.d_sink, two.d_sink);
}

TEST(LatentAttention, RotatesOnlyTheElementsBehindV) {
  constexpr double kTheta = 50.0;
  TinyBatch latent = make_tiny_batch(latent_scenario());
  TinyBatch expanded = expand(latent);
  latent.scenario.attention.rope_theta = kTheta;
  const BatchSlots& slots = latent.inputs.slots;
  turn(slots, Side::q, 3, kTheta, +1, expanded.inputs.q);
  turn(slots, Side::kv, 1, kTheta, +1, expanded.inputs.k);
  const Answer one = exact_answer(latent.scenario, latent.inputs);
  Answer two = exact_answer(expanded.scenario, expanded.inputs);
  turn(slots, Side::q, 3, kTheta, -1, two.dq);
  turn(slots, Side::kv, 1, kTheta, -1, two.dk);
  EXPECT_LT(relative_l2(one.out.values, two.out.values), 1e-13);
  EXPECT_LT(relative_l2(one.lse.values, two.lse.values), 1e-13);
  EXPECT_LT(relative_l2(one.dq.values, two.dq.values), 1e-13);
  EXPECT_LT(relative_l2(one.dk.values, add_gradients(two)), 1e-13);
}

TEST(LatentAttention, RoundsTheSharedGradientOnce) {
  const TinyBatch latent = make_tiny_batch(latent_scenario(Dtype::bf16));
  const TinyBatch expanded = expand(latent);
  const Answer exact = exact_answer(latent.scenario, latent.inputs);
  const Answer once = plain_answer(latent.scenario, latent.inputs, {}),
               twice = plain_answer(expanded.scenario, expanded.inputs, {});
  int64_t unrepresentable = 0, differs = 0;
  const std::vector<double> sum = add_gradients(twice);
  for (size_t i = 0; i < once.dk.values.size(); ++i) {
    unrepresentable += round_to(Dtype::bf16, once.dk.values[i]) != once.dk.values[i] ? 1 : 0;
    differs += once.dk.values[i] != sum[i] ? 1 : 0;
  }
  EXPECT_EQ(unrepresentable, 0);
  EXPECT_GT(differs, 0);
  EXPECT_LT(relative_l2(once.dk.values, exact.dk.values), relative_l2(sum, exact.dk.values));
}

TEST(LatentAttention, CountsTheTermsOfBothGradients) {
  const TinyBatch latent = make_tiny_batch(latent_scenario());
  const TinyBatch expanded = expand(latent);
  const Verdict one = judge(latent.scenario, latent.inputs, {}, {}).value(),
                two = judge(expanded.scenario, expanded.inputs, {}, {}).value();
  ASSERT_EQ(one.terms.dk.size(), two.terms.dk.size());
  for (size_t row = 0; row < one.terms.dk.size(); ++row)
    EXPECT_DOUBLE_EQ(one.terms.dk[row], std::hypot(two.terms.dk[row], two.terms.dv[row]))
        << "row " << row;
}

}  // namespace
}  // namespace cpscope::reference
