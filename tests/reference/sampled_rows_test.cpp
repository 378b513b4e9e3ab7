// The oracle gives the same values for a few rows as for all.

#include "reference/dense_oracle.h"
#include "tests/reference/tiny_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

/// The rows `tokens` of a [tokens, ...] tensor.
std::vector<double> pick(const Tensor& tensor, const std::vector<int64_t>& tokens) {
  const int64_t width = tensor.size() / tensor.shape[0];
  std::vector<double> rows;
  for (const int64_t token : tokens) {
    const auto begin = tensor.values.begin() + token * width;
    rows.insert(rows.end(), begin, begin + width);
  }
  return rows;
}

std::vector<double> pick(const std::vector<double>& numbers, int64_t heads,
                         const std::vector<int64_t>& tokens) {
  return pick(Tensor{"terms", {std::ssize(numbers) / heads, heads}, Dtype::fp64, numbers}, tokens);
}

/// Gradients of keys are computed from the given answer: here the exact one.
void expect_equal_rows(const Scenario& scenario, const JudgedRows& rows) {
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Result<Verdict> whole = judge(tiny.scenario, tiny.inputs, {}, {});
  ASSERT_TRUE(whole.ok());
  const Answer& exact = whole.value().exact;
  const Result<Verdict> judged = judge_rows(tiny.scenario, tiny.inputs, exact, rows, {}, {});
  ASSERT_TRUE(judged.ok());
  const Answer& sampled = judged.value().exact;
  EXPECT_LT(relative_l2(sampled.out.values, pick(exact.out, rows.query_tokens)), 1e-13);
  EXPECT_LT(relative_l2(sampled.lse.values, pick(exact.lse, rows.query_tokens)), 1e-13);
  const TermLengths &terms = whole.value().terms, &sampled_terms = judged.value().terms;
  const int64_t heads = scenario.attention.heads, kv_heads = scenario.attention.kv_heads;
  EXPECT_LT(relative_l2(sampled_terms.out, pick(terms.out, heads, rows.query_tokens)), 1e-13);
  if (!scenario.numerics.backward) {
    EXPECT_TRUE(sampled.dq.values.empty());
    EXPECT_TRUE(sampled.dk.values.empty());
    return;
  }
  EXPECT_LT(relative_l2(sampled.dq.values, pick(exact.dq, rows.query_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled.dk.values, pick(exact.dk, rows.key_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled.dv.values, pick(exact.dv, rows.key_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled_terms.dq, pick(terms.dq, heads, rows.query_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled_terms.dk, pick(terms.dk, kv_heads, rows.key_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled_terms.dv, pick(terms.dv, kv_heads, rows.key_tokens)), 1e-12);
  EXPECT_LT(relative_l2(sampled.d_sink, exact.d_sink), 1e-12);
}

/// Slots (with two padding ids each): queries 0..302, 303.., keys 0..602, 603...
Scenario make_long_scenario() {
  Scenario scenario = make_scenario({300, 0, 700}, 4, 6);
  scenario.batch.kv_lengths = {600, 4, 700};
  scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_v = 3;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  return scenario;
}

TEST(SampledRows, AreThoseOfTheWholeOracle) {
  // Padding (300) and the tail (1008) among them; keys that hundreds of queries see.
  expect_equal_rows(make_long_scenario(),
                    {{0, 5, 299, 300, 304, 999, 1008}, {0, 350, 599, 600, 1300, 1307}});
}

TEST(SampledRows, KnowEveryFeature) {
  Scenario scenario = make_long_scenario();
  scenario.attention.window_left = 260;
  scenario.attention.softcap = 1.5;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 1000.0;
  scenario.attention.softmax_scale = 0.8;
  expect_equal_rows(scenario, {{31, 299, 700}, {10, 640, 1308}});
}

TEST(SampledRows, LeaveEmptyRowsEmpty) {
  Scenario scenario = make_scenario({8}, 1, 2);
  scenario.batch.kv_lengths = {3};
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.softmax_type = SoftmaxType::off_by_one;
  expect_equal_rows(scenario, {{0, 4, 5, 7}, {0, 2}});
}

TEST(SampledRows, ReadSlices) {
  Scenario scenario = make_scenario({40, 40}, 1, 2);
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 30, 0, 35, SliceType::causal},
                               {50, 80, 45, 80, SliceType::bi_causal}};
  expect_equal_rows(scenario, {{0, 29, 30, 60, 81}, {5, 60, 81}});
}

TEST(SampledRows, HaveNoGradientsWithoutBackward) {
  Scenario scenario = make_long_scenario();
  scenario.numerics.backward = false;
  expect_equal_rows(scenario, {{0, 150, 800}, {}});
}

TEST(SampledRows, HaveNoGradientsOfKeysWithoutOutAndLse) {
  const TinyBatch tiny = make_tiny_batch(make_long_scenario());
  Answer seen = exact_answer(tiny.scenario, tiny.inputs);
  seen.lse = {};
  const Result<Verdict> judged = judge_rows(tiny.scenario, tiny.inputs, seen, {{4}, {5}}, {}, {});
  ASSERT_TRUE(judged.ok());
  EXPECT_FALSE(judged.value().exact.dq.values.empty());
  EXPECT_TRUE(judged.value().exact.dk.values.empty());
}

TEST(SampledRows, FollowTheLseThatTheyAreGiven) {
  const TinyBatch tiny = make_tiny_batch(make_long_scenario());
  Answer seen = exact_answer(tiny.scenario, tiny.inputs);
  const Result<Verdict> right = judge_rows(tiny.scenario, tiny.inputs, seen, {{}, {5}}, {}, {});
  for (double& lse : seen.lse.values) lse += std::log(2.0);
  const Result<Verdict> halved = judge_rows(tiny.scenario, tiny.inputs, seen, {{}, {5}}, {}, {});
  // Weights are half as large, and so is dv.
  for (size_t i = 0; i < right.value().exact.dv.values.size(); ++i)
    EXPECT_NEAR(halved.value().exact.dv.values[i], right.value().exact.dv.values[i] / 2, 1e-12);
  // A NaN lse adds nothing, and makes nothing NaN.
  std::fill(seen.lse.values.begin(), seen.lse.values.end(), std::nan(""));
  const Result<Verdict> silent = judge_rows(tiny.scenario, tiny.inputs, seen, {{}, {5}}, {}, {});
  for (const double value : silent.value().exact.dv.values) EXPECT_EQ(value, 0.0);
}

TEST(SampledRows, ErrInThePlainRunAsTheWholePlainRunDoes) {
  Scenario scenario = make_long_scenario();
  scenario.attention.rope_theta = 1000.0;
  scenario.numerics.dtype = Dtype::bf16;
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Hops hops{4, 4};
  const Result<Verdict> whole = judge(tiny.scenario, tiny.inputs, hops, {});
  JudgedRows rows;
  for (int64_t token = 0; token < 300; token += 3) rows.query_tokens.push_back(token);
  for (int64_t token = 0; token < 600; token += 3) rows.key_tokens.push_back(token);
  const Result<Verdict> judged =
      judge_rows(tiny.scenario, tiny.inputs, whole.value().plain, rows, hops, {});
  const auto error = [](const Verdict& verdict, Tensor Answer::*tensor) {
    return relative_l2((verdict.plain.*tensor).values, (verdict.exact.*tensor).values);
  };
  for (const auto tensor : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
    const double here = error(judged.value(), tensor), there = error(whole.value(), tensor);
    EXPECT_GT(here, 0.5 * there) << (whole.value().exact.*tensor).name;
    EXPECT_LT(here, 2.0 * there) << (whole.value().exact.*tensor).name;
  }
}

}  // namespace
}  // namespace cpscope::reference
