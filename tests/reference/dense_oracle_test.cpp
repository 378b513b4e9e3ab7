#include "reference/dense_oracle.h"

#include "tests/reference/tiny_batch.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTight = 1e-14;

/// One sequence without padding, one head of head_dim 1, scale 1, no mask: small enough for mental
/// arithmetic.
TinyBatch make_golden(std::vector<double> q, std::vector<double> k, std::vector<double> v,
                      std::vector<double> d_out) {
  Scenario scenario = make_scenario({static_cast<int64_t>(q.size())}, 1, 1);
  scenario.batch.kv_lengths = {static_cast<int64_t>(k.size())};
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.softmax_scale = 1.0;
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  tiny.inputs.q.values = std::move(q);
  tiny.inputs.k.values = std::move(k);
  tiny.inputs.v.values = std::move(v);
  tiny.inputs.d_out.values = std::move(d_out);
  return tiny;
}

void expect_near_values(const std::vector<double>& seen, const std::vector<double>& expected,
                        const char* what) {
  ASSERT_EQ(seen.size(), expected.size()) << what;
  for (size_t index = 0; index < seen.size(); ++index) {
    EXPECT_NEAR(seen[index], expected[index], kTight) << what << "[" << index << "]";
  }
}

TEST(DenseOracle, WorksOutTwoCausalTokens) {
  // Row 0 sees key 0 only: logit 0, weight 1, out 4. Row 1: logits 0, ln 3; weights 1/4, 3/4;
  // out 1 + 6 = 7; lse ln(1 + 3).
  // Backward, d_out = 2, 1. Row 0: dP = 8, D = 8, dS = 0. Row 1: dP = 4, 8; D = 7;
  // dS = 1/4 * -3, 3/4 * 1. dq1 = 3/4 ln 3; dk = dS * q; dv0 = 2 + 1/4, dv1 = 3/4.
  const double ln3 = std::log(3.0);
  TinyBatch tiny = make_golden({5, 1}, {0, ln3}, {4, 8}, {2, 1});
  tiny.scenario.attention.mask_type = MaskType::causal;
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  expect_near_values(answer.out.values, {4, 7}, "out");
  expect_near_values(answer.lse.values, {0, std::log(4.0)}, "lse");
  expect_near_values(answer.max_logit, {ln3}, "max_logit");
  expect_near_values(answer.dq.values, {0, 0.75 * ln3}, "dq");
  expect_near_values(answer.dk.values, {-0.75, 0.75}, "dk");
  expect_near_values(answer.dv.values, {2.25, 0.75}, "dv");
  EXPECT_TRUE(answer.d_sink.empty());
}

TEST(DenseOracle, AddsASinkOfZeroForOffByOne) {
  // One key with logit ln 3: the sum is 3 + 1, the weight 3/4, out 6. D = 6, dP = 8, dS = 3/4 * 2.
  TinyBatch tiny = make_golden({1}, {std::log(3.0)}, {8}, {1});
  tiny.scenario.attention.softmax_type = SoftmaxType::off_by_one;
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  expect_near_values(answer.out.values, {6}, "out");
  expect_near_values(answer.lse.values, {std::log(4.0)}, "lse");
  expect_near_values(answer.max_logit, {std::log(3.0)}, "max_logit: the sink is no key");
  expect_near_values(answer.dk.values, {1.5}, "dk");
  expect_near_values(answer.dv.values, {0.75}, "dv");
  EXPECT_TRUE(answer.d_sink.empty());
}

TEST(DenseOracle, GivesTheLearnableSinkItsGradient) {
  // Logit ln 2, sink ln 2: weight 1/2, out 4, D = 4; dS = 1/2 * (8 - 4) = 2, and the sink gets
  // -1/2 * 4 = -2: together they cancel, as the softmax's gradients must.
  TinyBatch tiny = make_golden({1}, {std::log(2.0)}, {8}, {1});
  tiny.scenario.attention.softmax_type = SoftmaxType::learnable;
  tiny.inputs.sink = {std::log(2.0)};
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  expect_near_values(answer.out.values, {4}, "out");
  expect_near_values(answer.lse.values, {std::log(4.0)}, "lse");
  expect_near_values(answer.dk.values, {2}, "dk");
  expect_near_values(answer.d_sink, {-2}, "d_sink");
}

TEST(DenseOracle, CapsLogitsAfterScaling) {
  // Scale 1/2 turns 2 ln 3 into ln 3, and 2 tanh(ln 3 / 2) = 2 * (3 - 1) / (3 + 1) = 1. The cap's
  // gradient is 1 - (1/2)^2 = 3/4. Logits 0, 1: weights 1 / (1 + e), e / (1 + e).
  const double e = std::exp(1.0);
  TinyBatch tiny = make_golden({1}, {0, 2 * std::log(3.0)}, {0, 8}, {1});
  tiny.scenario.attention.softmax_scale = 0.5;
  tiny.scenario.attention.softcap = 2.0;
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  const double d_logit = e / (1 + e) * (8 - 8 * e / (1 + e));
  expect_near_values(answer.max_logit, {1}, "max_logit");
  expect_near_values(answer.lse.values, {std::log(1 + e)}, "lse");
  expect_near_values(answer.out.values, {8 * e / (1 + e)}, "out");
  expect_near_values(answer.dk.values, {-d_logit * 0.5, d_logit * 0.75 * 0.5}, "dk");
}

TEST(DenseOracle, LetsEachQueryHeadReadItsKvHead) {
  Scenario scenario = make_scenario({1}, 4, 1);
  scenario.attention.kv_heads = 2;
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  tiny.inputs.v.values = {10, 20};
  tiny.inputs.d_out.values = {1, 2, 3, 4};
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  expect_near_values(answer.out.values, {10, 10, 20, 20}, "out");
  expect_near_values(answer.dv.values, {1 + 2, 3 + 4}, "dv");
}

TEST(DenseOracle, ScalesByTheRootOfTheQueryKeyDimByDefault) {
  Scenario scenario = make_scenario({1}, 1, 4);
  scenario.attention.head_dim_v = 1;
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  tiny.inputs.q.values = {1, 2, 3, 4};
  tiny.inputs.k.values = {1, 1, 1, 1};
  expect_near_values(exact_answer(tiny.scenario, tiny.inputs).lse.values, {10.0 / 2.0}, "lse");
}

TEST(DenseOracle, TurnsHalvesOfTheRowByPosition) {
  // Head_dim 4, theta 100: elements 0 and 2 rotate by p, elements 1 and 3 by p / 10. Token 1 sees
  // tokens 0 and 1; its own logit does not change when both sides are rotated.
  Scenario scenario = make_scenario({2}, 1, 4);
  scenario.attention.rope_theta = 100.0;
  scenario.attention.softmax_scale = 1.0;
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  tiny.inputs.q.values = {0, 0, 0, 0, 0, 1, 0, 0};
  tiny.inputs.k.values = {0, 1, 0, 0, 0, 1, 0, 0};
  expect_near_values(exact_answer(tiny.scenario, tiny.inputs).lse.values,
                     {0, std::log(std::exp(std::cos(0.1)) + std::exp(1.0))}, "slow pair");
  // A single element shows the direction: e0 at position 1 has sin(1) of e2 at position 0.
  tiny.inputs.q.values = {0, 0, 0, 0, 1, 0, 0, 0};
  tiny.inputs.k.values = {0, 0, 1, 0, 0, 0, 0, 0};
  expect_near_values(exact_answer(tiny.scenario, tiny.inputs).lse.values,
                     {std::log(1.0), std::log(std::exp(std::sin(1.0)) + 1.0)}, "fast pair");
}

TEST(DenseOracle, LeavesRowsThatSeeNothingEmptyAlsoWithASink) {
  // Four queries, two keys, bottom-right causal: queries 0 and 1 see nothing.
  for (const SoftmaxType type :
       {SoftmaxType::vanilla, SoftmaxType::off_by_one, SoftmaxType::learnable}) {
    Scenario scenario = make_scenario({4}, 2, 3);
    scenario.batch.kv_lengths = {2};
    scenario.attention.mask_type = MaskType::causal_bottom_right;
    scenario.attention.softmax_type = type;
    TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
    const Verdict verdict = judge(tiny.scenario, tiny.inputs, {2, 2}, {}).value();
    for (const Answer* answer : {&verdict.exact, &verdict.plain}) {
      for (size_t index = 0; index < 2 * 2 * 3; ++index) {
        EXPECT_EQ(answer->out.values[index], 0.0);
        EXPECT_EQ(answer->dq.values[index], 0.0);
      }
      for (size_t index = 0; index < 2 * 2; ++index) {
        EXPECT_EQ(answer->lse.values[index], -kInfinity);
      }
      EXPECT_GT(answer->lse.values[4], -kInfinity);
    }
    // Empty rows add nothing to the sink: without them the gradient is the same.
    if (type != SoftmaxType::learnable) continue;
    TinyBatch shorter = tiny;
    shorter.scenario.batch.lengths = {2};
    shorter.inputs.slots.sequences[0].q_begin = 2;
    shorter.inputs.slots.sequences[0].q_valid = 2;
    shorter.inputs.slots.sequences[0].q_slot = 2;
    EXPECT_EQ(exact_answer(shorter.scenario, shorter.inputs).d_sink, verdict.exact.d_sink);
  }
}

TEST(DenseOracle, AnswersABatchThatSeesNothing) {
  Scenario scenario = make_scenario({3, 0}, 1, 2);
  scenario.batch.kv_lengths = {0, 3};
  TinyBatch tiny = make_tiny_batch(scenario);
  const Verdict verdict = judge(tiny.scenario, tiny.inputs, {4, 4}, {}).value();
  for (const Answer* answer : {&verdict.exact, &verdict.plain}) {
    EXPECT_EQ(answer->max_logit, std::vector<double>{-kInfinity});
    for (const double value : answer->lse.values) EXPECT_EQ(value, -kInfinity);
    for (const Tensor* tensor : {&answer->out, &answer->dq, &answer->dk, &answer->dv}) {
      for (const double value : tensor->values) EXPECT_EQ(value, 0.0) << tensor->name;
    }
  }
}

TEST(DenseOracle, LeavesGradientsEmptyWithoutBackward) {
  Scenario scenario = make_scenario({3}, 1, 2);
  scenario.numerics.backward = false;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Verdict verdict = judge(tiny.scenario, tiny.inputs, {2, 2}, {}).value();
  for (const Answer* answer : {&verdict.exact, &verdict.plain}) {
    EXPECT_TRUE(answer->dq.values.empty());
    EXPECT_TRUE(answer->dk.values.empty());
    EXPECT_TRUE(answer->dv.values.empty());
    EXPECT_TRUE(answer->d_sink.empty());
    EXPECT_FALSE(answer->out.values.empty());
  }
}

/// Everything at once: two sequences and an empty one, cross attention, all features on.
Scenario make_rich_scenario(Dtype dtype) {
  Scenario scenario = make_scenario({37, 0, 150}, 4, 8);
  scenario.batch.kv_lengths = {41, 5, 170};
  scenario.attention.kv_heads = 2;
  scenario.attention.head_dim_v = 6;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.window_left = 60;
  scenario.attention.softcap = 3.0;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 10'000.0;
  scenario.numerics.dtype = dtype;
  return scenario;
}

void expect_same(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.out.values, b.out.values);
  EXPECT_EQ(a.lse.values, b.lse.values);
  EXPECT_EQ(a.dq.values, b.dq.values);
  EXPECT_EQ(a.dk.values, b.dk.values);
  EXPECT_EQ(a.dv.values, b.dv.values);
  EXPECT_EQ(a.max_logit, b.max_logit);
  EXPECT_EQ(a.d_sink, b.d_sink);
}

TEST(DenseOracle, NeverReadsPadding) {
  const Scenario scenario = make_rich_scenario(Dtype::bf16);
  const TinyBatch poisoned = make_tiny_batch(scenario);
  const TinyBatch calm = make_tiny_batch(scenario, 0.25);
  ASSERT_TRUE(std::isnan(poisoned.inputs.q.values.back()));
  const Verdict a = judge(poisoned.scenario, poisoned.inputs, {3, 3}, {}).value();
  const Verdict b = judge(calm.scenario, calm.inputs, {3, 3}, {}).value();
  expect_same(a.exact, b.exact);
  expect_same(a.plain, b.plain);
}

TEST(DenseOracle, GivesTheSameBitsOnOneThreadAndOnMany) {
  const TinyBatch tiny = make_tiny_batch(make_rich_scenario(Dtype::fp16));
  const char* before = std::getenv("CPSCOPE_THREADS");
  const std::string saved = before == nullptr ? "" : before;
  setenv("CPSCOPE_THREADS", "1", 1);
  const Verdict one = judge(tiny.scenario, tiny.inputs, {4, 4}, {}).value();
  setenv("CPSCOPE_THREADS", "3", 1);
  const Verdict many = judge(tiny.scenario, tiny.inputs, {4, 4}, {}).value();
  if (before == nullptr) {
    unsetenv("CPSCOPE_THREADS");
  } else {
    setenv("CPSCOPE_THREADS", saved.c_str(), 1);
  }
  expect_same(one.exact, many.exact);
  expect_same(one.plain, many.plain);
}

TEST(DenseOracle, ReportsProgressUpToTheTotal) {
  const TinyBatch tiny = make_tiny_batch(make_rich_scenario(Dtype::bf16));
  int64_t last = 0;
  int64_t announced = 0;
  const Progress progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(done, last + 1);
    last = done;
    announced = total;
  };
  EXPECT_TRUE(judge(tiny.scenario, tiny.inputs, {2, 2}, {progress}).ok());
  EXPECT_GT(last, 0);
  EXPECT_EQ(last, announced);
}

/// One head of one sequence by loops over the pairs, in long double.
struct LoopAnswer {
  std::vector<double> out, lse, dq, dk, dv;
};

LoopAnswer loop_over_pairs(const Scenario& scenario, const RunInputs& inputs) {
  const int64_t n = scenario.batch.lengths[0];
  const int64_t d = scenario.attention.head_dim_qk;
  const long double scale = 1.0L / std::sqrt(static_cast<long double>(d));
  const auto at = [d](const Tensor& tensor, int64_t token, int64_t lane) {
    return static_cast<long double>(tensor.values[static_cast<size_t>(token * d + lane)]);
  };
  const auto dot = [&](const Tensor& a, int64_t i, const Tensor& b, int64_t j) {
    long double sum = 0;
    for (int64_t lane = 0; lane < d; ++lane) sum += at(a, i, lane) * at(b, j, lane);
    return sum;
  };
  const std::vector<double> zeros(static_cast<size_t>(n * d), 0.0);
  LoopAnswer answer{zeros, {}, zeros, zeros, zeros};
  for (int64_t i = 0; i < n; ++i) {
    long double total = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (is_visible(scenario, 0, i, j)) total += std::exp(scale * dot(inputs.q, i, inputs.k, j));
    }
    answer.lse.push_back(static_cast<double>(std::log(total)));
    long double out_dot = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (!is_visible(scenario, 0, i, j)) continue;
      const long double weight = std::exp(scale * dot(inputs.q, i, inputs.k, j)) / total;
      out_dot += weight * dot(inputs.d_out, i, inputs.v, j);
    }
    for (int64_t j = 0; j < n; ++j) {
      if (!is_visible(scenario, 0, i, j)) continue;
      const long double weight = std::exp(scale * dot(inputs.q, i, inputs.k, j)) / total;
      const long double d_logit = scale * weight * (dot(inputs.d_out, i, inputs.v, j) - out_dot);
      for (int64_t lane = 0; lane < d; ++lane) {
        const auto row = static_cast<size_t>(i * d + lane);
        const auto key = static_cast<size_t>(j * d + lane);
        answer.out[row] += static_cast<double>(weight * at(inputs.v, j, lane));
        answer.dq[row] += static_cast<double>(d_logit * at(inputs.k, j, lane));
        answer.dk[key] += static_cast<double>(d_logit * at(inputs.q, i, lane));
        answer.dv[key] += static_cast<double>(weight * at(inputs.d_out, i, lane));
      }
    }
  }
  return answer;
}

TEST(DenseOracle, AgreesWithLoopsOverThePairsAcrossRowBlocks) {
  // 300 rows are three blocks; slices leave holes in the rows and move the hull of the keys.
  Scenario scenario = make_scenario({300}, 1, 5);
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 300, 0, 300, SliceType::bi_causal},
                               {0, 120, 40, 170, SliceType::causal},
                               {120, 300, 150, 290, SliceType::inv_causal},
                               {200, 300, 10, 60, SliceType::full}};
  const TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  const Verdict verdict = judge(tiny.scenario, tiny.inputs, {7, 7}, {}).value();
  const LoopAnswer loops = loop_over_pairs(tiny.scenario, tiny.inputs);
  for (const Answer* answer : {&verdict.exact, &verdict.plain}) {
    EXPECT_LT(relative_l2(answer->out.values, loops.out), 1e-14);
    EXPECT_LT(relative_l2(answer->lse.values, loops.lse), 1e-14);
    EXPECT_LT(relative_l2(answer->dq.values, loops.dq), 1e-13);
    EXPECT_LT(relative_l2(answer->dk.values, loops.dk), 1e-13);
    EXPECT_LT(relative_l2(answer->dv.values, loops.dv), 1e-14);
  }
}

}  // namespace
}  // namespace cpscope::reference
