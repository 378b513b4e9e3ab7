// How partial results are merged, compared with the rules written out by hand.

#include "reference/online_softmax.h"
#include "reference/rotary_table.h"
#include "sim/run/dtype.h"
#include "sim/run/run_inputs.h"
#include "tests/support/graded_run.h"
#include "tests/support/sweep.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

using reference::log_sum_exp;
using reference::weight_of;

/// Two keys per rank, so that a partial is a mean that the dtype may not represent.
constexpr int64_t kKeysPerRank = 2;
using Values = std::array<double, 3 * kKeysPerRank>;

/// One head of head_dim 1 on three ranks; q = 0, so that all keys have the same weight.
Scenario three_ranks(QkvFormat format) {
  Scenario scenario = walker_case({3 * kKeysPerRank}, 3);
  scenario.attention.heads = scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 1;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.batch.qkv_format = format;
  scenario.parallel.layout = LayoutKind::contiguous;
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.accumulate = Accumulate::dtype;
  scenario.numerics.backward = false;
  return scenario;
}

/// The output of each rank's first query.
std::array<double, 3> merge_on_three_ranks(const Scenario& scenario, const Values& values) {
  const auto plan = plan_unless_refused(scenario);
  RunInputs inputs = make_run_inputs(plan->plan(), false);
  inputs.q.values.assign(values.size(), 0.0);
  inputs.v.values.assign(values.begin(), values.end());
  const Answer answer = walk(*plan, inputs);
  return {answer.out.values[0], answer.out.values[kKeysPerRank],
          answer.out.values[2 * kKeysPerRank]};
}

float to_bf16(float value) { return from_bf16_bits(to_bf16_bits(value)); }

/// TransformerEngine's two phases for partials of two equal weights: log-sums first, then the
/// partials in step order, each weighted with the final log-sum.
double merge_by_hand(QkvFormat format, const std::array<float, 3>& partials_in_step_order) {
  const float partial_lse = std::log(2.0f);
  float lse = partial_lse;
  for (int step = 1; step < 3; ++step) lse = lse + std::log1p(std::exp(partial_lse - lse));
  float sum = 0.0f;
  for (const float partial : partials_in_step_order) {
    float term = to_bf16(partial) * std::exp(partial_lse - lse);
    if (format == QkvFormat::thd) term = to_bf16(term);
    sum = to_bf16(sum + term);
  }
  return static_cast<double>(sum);
}

/// A reduce-scatter: every rank scales its partial by the lse that arrive in rank order, and what
/// they send is rounded and added in the dtype.
double add_scaled_by_hand(const std::array<float, 3>& partials) {
  const float partial_lse = std::log(2.0f);
  float sum = 0.0f;
  for (const float partial : partials) {
    float lse = partial_lse, scaled = partial;
    for (int other = 0; other < 2; ++other) {
      const float whole = log_sum_exp(lse, partial_lse);
      scaled *= weight_of(lse, whole);
      lse = whole;
    }
    sum = to_bf16(sum + to_bf16(scaled));
  }
  return static_cast<double>(sum);
}

TEST(MergeRules, AddScaledPartialsInTheDtype) {
  Scenario scenario = three_ranks(QkvFormat::thd);
  scenario.numerics.accumulate = Accumulate::fp32;
  scenario.parallel.comm_type = CommType::gather_q;
  scenario.parallel.combine = Combine::reduce_scatter;
  for (const Values& values : {Values{1.0, 1.0078125, 0.3125, 2.5, -3.0, 0.0078125},
                               Values{7.0, 0.0625, 0.001953125, -1.5, 1.25, 3.015625}}) {
    const auto mean = [&](size_t rank) {
      return (static_cast<float>(values[2 * rank]) + static_cast<float>(values[2 * rank + 1])) / 2;
    };
    const double expected = add_scaled_by_hand({mean(0), mean(1), mean(2)});
    for (const double seen : merge_on_three_ranks(scenario, values)) EXPECT_EQ(seen, expected);
  }
}

TEST(MergeRules, RoundSixteenBitPartialsAsTransformerEngineDoes) {
  int64_t rules_differ = 0, orders_differ = 0;
  for (uint64_t trial = 0; trial < sweep(80, 200); ++trial) {
    Values values{};
    for (size_t key = 0; key < values.size(); ++key)
      values[key] = round_to(
          Dtype::bf16, std::sin(1.7 * static_cast<double>(trial) + static_cast<double>(key * key)) *
                           (1.0 + 100.0 * static_cast<double>(key)));
    std::array<double, 2> of_first_rank{};
    for (const QkvFormat format : {QkvFormat::bshd, QkvFormat::thd}) {
      const std::array<double, 3> seen = merge_on_three_ranks(three_ranks(format), values);
      for (int rank = 0; rank < 3; ++rank) {
        // In ring step i rank r computes with the KV of rank r - i.
        std::array<float, 3> partials{};
        for (int i = 0; i < 3; ++i) {
          const int source = (rank - i + 3) % 3;
          partials[i] = 0.5f * (static_cast<float>(values[2 * source]) +
                                static_cast<float>(values[2 * source + 1]));
        }
        ASSERT_EQ(seen[rank], merge_by_hand(format, partials))
            << to_name(format) << ", rank " << rank << ", trial " << trial;
      }
      orders_differ += seen[0] != seen[1] ? 1 : 0;
      of_first_rank[format == QkvFormat::thd ? 1 : 0] = seen[0];
    }
    rules_differ += of_first_rank[0] != of_first_rank[1] ? 1 : 0;
  }
  EXPECT_GT(rules_differ, 20) << "the two rules are told apart";
  EXPECT_GT(orders_differ, 20) << "the order of the merges is told apart";
}

TEST(MergeRules, RoundOnceInWideAccumulation) {
  Scenario scenario = three_ranks(QkvFormat::thd);
  scenario.numerics.accumulate = Accumulate::fp32;
  // A sixth of 1536, 776 and zeros is 385.33; bf16 has steps of 2 there.
  for (const double value : merge_on_three_ranks(scenario, {1536.0, 0.0, 0.0, 776.0, 0.0, 0.0}))
    EXPECT_EQ(value, 386.0);
}

double out_error(int32_t cp_size, QkvFormat format, Accumulate accumulate) {
  Scenario scenario = walker_case({512}, cp_size);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.batch.qkv_format = format;
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.accumulate = accumulate;
  scenario.numerics.backward = false;
  const GradedRun run = run_possible(scenario);
  EXPECT_TRUE(run.grade.passed) << describe(run);
  return relative_error(run.answer.out, run.verdict.exact.out);
}

TEST(MergeRules, ErrMoreWithEveryHopWhenMergedInTheDtypeOnly) {
  for (const QkvFormat format : {QkvFormat::bshd, QkvFormat::thd}) {
    const double two = out_error(2, format, Accumulate::dtype);
    const double eight = out_error(8, format, Accumulate::dtype);
    const double many = out_error(32, format, Accumulate::dtype);
    EXPECT_GT(eight, 1.2 * two) << to_name(format);
    EXPECT_GT(many, 1.2 * eight) << to_name(format);
    EXPECT_LT(out_error(32, format, Accumulate::fp32), 1.1 * out_error(2, format, Accumulate::fp32))
        << to_name(format);
  }
  EXPECT_GT(out_error(32, QkvFormat::thd, Accumulate::dtype),
            out_error(32, QkvFormat::bshd, Accumulate::dtype))
      << "thd rounds twice a hop";
}

TEST(MergeRules, ErrMoreInGradientsSummedInTheDtype) {
  Scenario scenario = walker_case({256}, 16);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.numerics.dtype = Dtype::bf16;
  scenario.numerics.dkv_wire = WireFormat::fp32;
  const GradedRun wide = run_possible(scenario);
  scenario.numerics.accumulate = Accumulate::dtype;
  const GradedRun narrow = run_possible(scenario);
  for (const auto tensor : {&Answer::dq, &Answer::dk, &Answer::dv}) {
    EXPECT_GT(relative_error(narrow.answer.*tensor, narrow.verdict.exact.*tensor),
              1.3 * relative_error(wide.answer.*tensor, wide.verdict.exact.*tensor))
        << (wide.answer.*tensor).name;
  }
}

/// Two ranks of two queries and two keys each, all visible; q = 0, so that P is 1/4 everywhere and
/// a rank's share of any dv is 1/4 of the sum of its two rows of d_out.
TEST(MergeRules, RoundWhatTravelsAndNotWhatStaysAtHome) {
  int64_t home_shows = 0, wire_shows = 0;
  for (const CommType comm : {CommType::all_gather, CommType::group_cast}) {
    for (const WireFormat wire : {WireFormat::dtype, WireFormat::fp32}) {
      Scenario scenario = walker_case({4}, 2);
      scenario.attention.heads = scenario.attention.kv_heads = 1;
      scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 1;
      scenario.attention.mask_type = MaskType::no_mask;
      scenario.parallel.layout = LayoutKind::contiguous;
      scenario.parallel.comm_type = comm;
      scenario.numerics.dtype = Dtype::bf16;
      scenario.numerics.dkv_wire = wire;
      const auto plan = plan_unless_refused(scenario);
      for (uint64_t trial = 0; trial < sweep(50, 100); ++trial) {
        RunInputs inputs = make_run_inputs(plan->plan(), false);
        inputs.q.values.assign(4, 0.0);
        for (size_t i = 0; i < 4; ++i)
          inputs.d_out.values[i] = round_to(
              Dtype::bf16,
              10.0 * std::sin(static_cast<double>(trial) * 2.3 + static_cast<double>(i * i)));
        const Answer answer = walk(*plan, inputs);
        std::array<float, 2> share{};
        for (size_t rank = 0; rank < 2; ++rank)
          share[rank] = 0.25f * static_cast<float>(inputs.d_out.values[2 * rank]) +
                        0.25f * static_cast<float>(inputs.d_out.values[2 * rank + 1]);
        for (size_t key = 0; key < 4; ++key) {
          const float own = share[key / 2], other = share[1 - key / 2];
          const float arrived = wire == WireFormat::dtype ? to_bf16(other) : other;
          ASSERT_EQ(answer.dv.values[key], static_cast<double>(to_bf16(own + arrived)))
              << to_name(comm) << ", key " << key << ", trial " << trial;
          home_shows += to_bf16(own + arrived) != to_bf16(to_bf16(own) + arrived) ? 1 : 0;
          wire_shows += to_bf16(own + other) != to_bf16(own + to_bf16(other)) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(home_shows, 20);
  EXPECT_GT(wire_shows, 20);
}

TEST(MergeRules, RoundRotatedQueriesAndKeysToTheDtype) {
  Scenario scenario = walker_case({8}, 2);
  scenario.attention.heads = scenario.attention.kv_heads = 1;
  scenario.attention.head_dim_qk = 2;
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.rope_theta = 100.0;
  scenario.numerics.dtype = Dtype::bf16;
  const GradedRun run = run_possible(scenario, {false, 0});
  const auto turn = [](const Tensor& tensor, int64_t position, bool rounds) {
    const double c = std::cos(static_cast<double>(position)),
                 s = std::sin(static_cast<double>(position));
    const double a = tensor.values[2 * position], b = tensor.values[2 * position + 1];
    std::array<double, 2> turned{a * c - b * s, a * s + b * c};
    for (double& value : turned) value = rounds ? round_to(Dtype::bf16, value) : value;
    return turned;
  };
  std::array<double, 2> largest{-1e30, -1e30};  // without and with rounding
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 8; ++j) {
      for (const bool rounds : {false, true}) {
        const auto q = turn(run.inputs.q, i, rounds), k = turn(run.inputs.k, j, rounds);
        largest[rounds ? 1 : 0] =
            std::max(largest[rounds ? 1 : 0], (q[0] * k[0] + q[1] * k[1]) / std::sqrt(2.0));
      }
    }
  }
  ASSERT_GT(std::abs(largest[0] - largest[1]), 1e-4) << "the rounding shows";
  EXPECT_NEAR(run.answer.max_logit[0], largest[1], 1e-6);
}

TEST(MergeRules, LeaveValuesOfTheDtypeInEveryAnswer) {
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
      Scenario scenario = walker_case({37, 20}, 2);
      scenario.attention.rope_theta = 100.0;
      scenario.attention.softmax_type = SoftmaxType::learnable;
      scenario.parallel.comm_type = comm;
      scenario.numerics.dtype = dtype;
      const GradedRun run = run_possible(scenario);
      for (const auto tensor : {&Answer::out, &Answer::dq, &Answer::dk, &Answer::dv}) {
        for (const double value : (run.answer.*tensor).values)
          ASSERT_EQ(value, round_to(dtype, value)) << (run.answer.*tensor).name;
      }
    }
  }
}

TEST(OnlineSoftmax, LetsAnEmptyPartWeighNothingAndAddNothing) {
  const double nothing = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(weight_of(nothing, 3.0), 0.0);
  EXPECT_EQ(weight_of(nothing, nothing), 0.0) << "not a NaN";
  EXPECT_EQ(weight_of(3.0, 3.0), 1.0);
  EXPECT_EQ(log_sum_exp(nothing, 3.0), 3.0);
  EXPECT_EQ(log_sum_exp(3.0, nothing), 3.0);
  EXPECT_EQ(log_sum_exp(nothing, nothing), nothing);
}

TEST(RotaryTable, TurnsEvenASinglePairOfLanesAndNothingWithoutTheta) {
  const reference::RotaryTable table = reference::make_rotary_table(10000.0, 2, {3, 5});
  EXPECT_TRUE(table.is_on());
  std::array<double, 2> row{1.0, 0.0};
  reference::rotate_row(table, 1, +1, row.data());
  EXPECT_DOUBLE_EQ(row[0], std::cos(5.0)) << "the first pair turns by its position";
  EXPECT_DOUBLE_EQ(row[1], std::sin(5.0));
  EXPECT_FALSE(reference::make_rotary_table(0.0, 8, {0, 1, 2, 3}).is_on());
}

TEST(OnlineSoftmax, AddsWeightsThatNoExponentialCouldHold) {
  EXPECT_DOUBLE_EQ(log_sum_exp(2.0, 3.0), std::log(std::exp(2.0) + std::exp(3.0)));
  EXPECT_EQ(log_sum_exp(2.0, 3.0), log_sum_exp(3.0, 2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(2000.0, 2000.0), 2000.0 + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(-2000.0, -2001.0), -2000.0 + std::log1p(std::exp(-1.0)));
  EXPECT_EQ(log_sum_exp(-2000.0, 2000.0), 2000.0);
}

}  // namespace
}  // namespace cpscope::tests
