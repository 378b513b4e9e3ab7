// How partial results become one, against the rules written out by hand.

#include "sim/run/dtype.h"
#include "sim/run/run_inputs.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// One head of one lane; three ranks with one query and one key each; q = 0, so that every partial
/// is its key's value and all weigh the same.
Scenario three_ranks(QkvFormat format) {
  Scenario scenario = walker_case({3}, 3);
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

std::vector<double> merge_on_three_ranks(QkvFormat format, const std::array<double, 3>& values) {
  const auto plan = plan_unless_refused(three_ranks(format));
  RunInputs inputs = make_run_inputs(plan->plan().scenario, plan->plan().layout.slots, false);
  inputs.q.values.assign(3, 0.0);
  inputs.v.values.assign(values.begin(), values.end());
  return walk(*plan, inputs).out.values;
}

float to_bf16(float value) { return from_bf16_bits(to_bf16_bits(value)); }

/// TransformerEngine's two phases, for partials of lse 0 each: log-sums first, then the values in
/// step order, each weighted with the final one.
double merge_by_hand(QkvFormat format, const std::array<float, 3>& in_step_order) {
  float lse = 0.0f;
  for (int step = 1; step < 3; ++step) lse = lse + std::log1p(std::exp(0.0f - lse));
  float sum = 0.0f;
  for (const float value : in_step_order) {
    float term = value * std::exp(0.0f - lse);
    if (format == QkvFormat::thd) term = to_bf16(term);
    sum = to_bf16(sum + term);
  }
  return static_cast<double>(sum);
}

TEST(MergeRules, RoundSixteenBitPartialsAsTransformerEngineDoes) {
  int64_t rules_differ = 0, orders_differ = 0;
  for (int step = 0; step < 200; ++step) {
    std::array<double, 3> values{};
    for (int key = 0; key < 3; ++key)
      values[key] = round_to(Dtype::bf16, std::sin(1.7 * step + key * key) * (1 + 300 * key));
    std::array<double, 2> of_first_rank{};
    for (const QkvFormat format : {QkvFormat::bshd, QkvFormat::thd}) {
      const std::vector<double> seen = merge_on_three_ranks(format, values);
      for (int rank = 0; rank < 3; ++rank) {
        // Ring step i on rank r works on the KV of rank r - i.
        std::array<float, 3> in_step_order{};
        for (int i = 0; i < 3; ++i)
          in_step_order[i] = static_cast<float>(values[(rank - i + 3) % 3]);
        ASSERT_EQ(seen[rank], merge_by_hand(format, in_step_order))
            << to_name(format) << ", rank " << rank << ", values " << values[0] << " " << values[1]
            << " " << values[2];
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
  const auto plan = plan_unless_refused(scenario);
  RunInputs inputs = make_run_inputs(scenario, plan->plan().layout.slots, false);
  inputs.q.values.assign(3, 0.0);
  // A third of 768, 388 and 0 is 385.33; bf16 has steps of 2 there.
  inputs.v.values = {768.0, 388.0, 0.0};
  for (const double value : walk(*plan, inputs).out.values) EXPECT_EQ(value, 386.0);
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

}  // namespace
}  // namespace cpscope::tests
