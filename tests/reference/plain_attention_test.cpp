#include "reference/dense_oracle.h"
#include "tests/reference/tiny_batch.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

/// Enough rows and keys for rounding errors to be near their averages.
Scenario make_plain_scenario(Dtype dtype) {
  Scenario scenario = make_scenario({160, 96}, 2, 32);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// Relative error of each tensor of the plain run.
struct PlainError {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
};

PlainError measure(const Scenario& scenario, int32_t num_hops) {
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Verdict verdict = judge(tiny.scenario, tiny.inputs, {num_hops, num_hops}, {}).value();
  return {relative_l2(verdict.plain.out.values, verdict.exact.out.values),
          relative_l2(verdict.plain.lse.values, verdict.exact.lse.values),
          relative_l2(verdict.plain.dq.values, verdict.exact.dq.values),
          relative_l2(verdict.plain.dk.values, verdict.exact.dk.values),
          relative_l2(verdict.plain.dv.values, verdict.exact.dv.values)};
}

void expect_between(const PlainError& error, double low, double high) {
  for (const double value : {error.out, error.dq, error.dk, error.dv}) {
    EXPECT_GT(value, low);
    EXPECT_LT(value, high);
  }
}

TEST(PlainAttention, ErrsByAFewRoundingsOfBf16) {
  for (const int32_t num_hops : {1, 4}) {
    const PlainError error = measure(make_plain_scenario(Dtype::bf16), num_hops);
    expect_between(error, 1e-4, 2e-2);
    EXPECT_LT(error.lse, 1e-6) << "lse is not rounded to dtype";
  }
}

TEST(PlainAttention, ErrsByAFewRoundingsOfFp16) {
  expect_between(measure(make_plain_scenario(Dtype::fp16), 4), 1e-5, 2e-3);
}

TEST(PlainAttention, ErrsByAFewRoundingsOfFp32) {
  expect_between(measure(make_plain_scenario(Dtype::fp32), 4), 1e-9, 1e-5);
}

TEST(PlainAttention, IsAnotherExactRunInFp64) {
  Scenario scenario = make_plain_scenario(Dtype::fp64);
  scenario.attention.rope_theta = 10'000.0;
  scenario.attention.softcap = 2.0;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.numerics.accumulate = Accumulate::dtype;
  const PlainError error = measure(scenario, 5);
  expect_between(error, 0.0, 1e-12);
  EXPECT_LT(error.lse, 1e-12);
}

TEST(PlainAttention, IsWorseWhenPartialsAreMergedInTheDtype) {
  for (const QkvFormat format : {QkvFormat::thd, QkvFormat::bshd}) {
    Scenario scenario = make_plain_scenario(Dtype::bf16);
    scenario.batch.qkv_format = format;
    scenario.numerics.dkv_wire = WireFormat::fp32;
    const PlainError wide = measure(scenario, 8);
    scenario.numerics.accumulate = Accumulate::dtype;
    const PlainError narrow = measure(scenario, 8);
    EXPECT_GT(narrow.out, 1.1 * wide.out);
    EXPECT_GT(narrow.dq, 1.1 * wide.dq);
    EXPECT_GT(narrow.dk, 1.1 * wide.dk);
    EXPECT_GT(narrow.dv, 1.1 * wide.dv);
  }
}

TEST(PlainAttention, RoundsKeyGradientsAtEveryHopOfANarrowWire) {
  Scenario scenario = make_plain_scenario(Dtype::bf16);
  scenario.numerics.dkv_wire = WireFormat::fp32;
  const PlainError wide = measure(scenario, 8);
  scenario.numerics.dkv_wire = WireFormat::dtype;
  const PlainError narrow = measure(scenario, 8);
  EXPECT_GT(narrow.dk, 1.1 * wide.dk);
  EXPECT_GT(narrow.dv, 1.1 * wide.dv);
  EXPECT_EQ(narrow.dq, wide.dq);
  EXPECT_EQ(narrow.out, wide.out);
}

TEST(PlainAttention, MakesAllHopsInsideAWindow) {
  Scenario scenario = make_plain_scenario(Dtype::bf16);
  scenario.attention.window_left = 15;
  scenario.attention.window_right = 0;
  scenario.numerics.accumulate = Accumulate::dtype;
  const PlainError one = measure(scenario, 1);
  const PlainError sixteen = measure(scenario, 16);
  EXPECT_GT(sixteen.out, 1.8 * one.out);
  EXPECT_GT(sixteen.dq, 1.5 * one.dq);
  EXPECT_GT(sixteen.dk, 1.5 * one.dk);
  EXPECT_GT(sixteen.dv, 1.8 * one.dv);
}

TEST(PlainAttention, SendsNothingInOneHop) {
  Scenario scenario = make_plain_scenario(Dtype::bf16);
  // RoPE rotates dk after the ring: a rounding before it would be visible.
  scenario.attention.rope_theta = 10'000.0;
  const PlainError narrow = measure(scenario, 1);
  scenario.numerics.dkv_wire = WireFormat::fp32;
  const PlainError wide = measure(scenario, 1);
  EXPECT_EQ(narrow.dk, wide.dk);
  EXPECT_EQ(narrow.dv, wide.dv);
}

TEST(PlainAttention, HoldsValuesOfTheDtype) {
  Scenario scenario = make_plain_scenario(Dtype::bf16);
  scenario.attention.rope_theta = 10'000.0;
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Answer plain = plain_answer(tiny.scenario, tiny.inputs, {3, 3});
  for (const Tensor* tensor : {&plain.out, &plain.dq, &plain.dk, &plain.dv}) {
    for (const double value : tensor->values) {
      ASSERT_EQ(value, round_to(Dtype::bf16, value)) << tensor->name;
    }
  }
}

TEST(PlainAttention, LetsTheSinkInOnceHoweverManyHops) {
  Scenario scenario = make_plain_scenario(Dtype::fp32);
  for (const SoftmaxType type : {SoftmaxType::off_by_one, SoftmaxType::learnable}) {
    scenario.attention.softmax_type = type;
    for (const Accumulate accumulate : {Accumulate::fp32, Accumulate::dtype}) {
      scenario.numerics.accumulate = accumulate;
      const PlainError error = measure(scenario, 8);
      EXPECT_LT(error.out, 1e-5);
      EXPECT_LT(error.lse, 1e-5);
    }
  }
}

TEST(PlainAttention, TakesMoreHopsThanTokens) {
  Scenario scenario = make_scenario({3, 0, 5}, 1, 4);
  scenario.numerics.dtype = Dtype::fp32;
  for (const Accumulate accumulate : {Accumulate::fp32, Accumulate::dtype}) {
    scenario.numerics.accumulate = accumulate;
    const PlainError error = measure(scenario, 64);
    EXPECT_LT(error.out, 1e-6);
    EXPECT_LT(error.dk, 1e-5);
  }
}

/// With q = 0 the three keys have the same weight; each hop holds one of them, so its partial is
/// that value.
double merge_three_values(QkvFormat format, std::vector<double> values) {
  Scenario scenario = make_scenario({1}, 1, 1);
  scenario.batch.kv_lengths = {3};
  scenario.batch.qkv_format = format;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.accumulate = Accumulate::dtype;
  scenario.numerics.backward = false;
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  tiny.inputs.q.values = {0.0};
  tiny.inputs.v.values = std::move(values);
  return plain_answer(tiny.scenario, tiny.inputs, {3, 3}).out.values[0];
}

TEST(PlainAttention, MergesInTheDtypeWithOneRoundingAHopInBshdAndTwoInThd) {
  // A third of 768, 388 and 0 is 256, 129.33 and 0. bf16 has steps of 2 from 256 to 512, and of 1
  // from 128 to 256.
  // bshd: T(256 + 129.33) = T(385.33) = 386.
  // thd: T(129.33) = 129, and T(256 + 129) is a tie between 384 and 386: the even one is 384.
  EXPECT_EQ(merge_three_values(QkvFormat::bshd, {768.0, 388.0, 0.0}), 386.0);
  EXPECT_EQ(merge_three_values(QkvFormat::thd, {768.0, 388.0, 0.0}), 384.0);
}

}  // namespace
}  // namespace cpscope::reference
