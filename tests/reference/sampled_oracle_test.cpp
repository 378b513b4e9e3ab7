#include "reference/sampled_oracle.h"

#include "reference/dense_oracle.h"
#include "tests/reference/tiny_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

const Tensor& tensor_of(const RunInputs& inputs, InputTensor tensor) {
  switch (tensor) {
    case InputTensor::q:
      return inputs.q;
    case InputTensor::k:
      return inputs.k;
    case InputTensor::v:
      return inputs.v;
    default:
      return inputs.d_out;
  }
}

/// Reads rows from inputs that are held, as a stand-in for rows that are made.
SampledInputs read_from(const RunInputs& inputs) {
  return {
      inputs.slots,
      [&inputs](InputTensor which, int64_t token, int32_t head, std::span<double> row) {
        const Tensor& tensor = tensor_of(inputs, which);
        const auto first = static_cast<size_t>((token * tensor.shape[1] + head) * tensor.shape[2]);
        std::copy_n(tensor.values.begin() + static_cast<int64_t>(first), row.size(), row.begin());
      },
      inputs.sink};
}

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

void expect_equal_rows(const Scenario& scenario, const RowSample& sample) {
  const TinyBatch tiny = make_tiny_batch(scenario);
  const Answer whole = exact_answer(tiny.scenario, tiny.inputs);
  const Result<Answer> sampled = sampled_rows(tiny.scenario, read_from(tiny.inputs), sample);
  ASSERT_TRUE(sampled.ok());
  const Answer& rows = sampled.value();
  EXPECT_LT(relative_l2(rows.out.values, pick(whole.out, sample.query_tokens)), 1e-13);
  EXPECT_LT(relative_l2(rows.lse.values, pick(whole.lse, sample.query_tokens)), 1e-13);
  if (!scenario.numerics.backward) {
    EXPECT_TRUE(rows.dq.values.empty());
    return;
  }
  EXPECT_LT(relative_l2(rows.dq.values, pick(whole.dq, sample.query_tokens)), 1e-12);
  EXPECT_LT(relative_l2(rows.dk.values, pick(whole.dk, sample.key_tokens)), 1e-12);
  EXPECT_LT(relative_l2(rows.dv.values, pick(whole.dv, sample.key_tokens)), 1e-12);
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

TEST(SampledOracle, GivesTheRowsOfTheWholeOracle) {
  // Rows out of order, twice the same, padding (300) and the tail (1008); keys of three blocks.
  expect_equal_rows(make_long_scenario(),
                    {{999, 0, 5, 300, 5, 299, 304, 1008}, {599, 350, 1300, 600, 1307}, 4096});
}

TEST(SampledOracle, KnowsEveryFeature) {
  Scenario scenario = make_long_scenario();
  scenario.attention.window_left = 260;
  scenario.attention.softcap = 1.5;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 1000.0;
  scenario.attention.softmax_scale = 0.8;
  expect_equal_rows(scenario, {{700, 31, 299}, {640, 10, 1308}, 4096});
}

TEST(SampledOracle, LeavesEmptyRowsEmpty) {
  Scenario scenario = make_scenario({8}, 1, 2);
  scenario.batch.kv_lengths = {3};
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.softmax_type = SoftmaxType::off_by_one;
  expect_equal_rows(scenario, {{0, 4, 5, 7}, {0, 2}, 8});
}

TEST(SampledOracle, ReadsSlices) {
  Scenario scenario = make_scenario({40, 40}, 1, 2);
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 30, 0, 35, SliceType::causal},
                               {50, 80, 45, 80, SliceType::bi_causal}};
  expect_equal_rows(scenario, {{0, 29, 30, 60, 81}, {5, 60, 81}, 80});
}

TEST(SampledOracle, NeedsNoGradientsWithoutBackward) {
  Scenario scenario = make_long_scenario();
  scenario.numerics.backward = false;
  expect_equal_rows(scenario, {{0, 150, 800}, {5}, 4096});
}

TEST(SampledOracle, RefusesKeysThatTooManyQueriesSee) {
  const TinyBatch tiny = make_tiny_batch(make_long_scenario());
  const Result<Answer> refused =
      sampled_rows(tiny.scenario, read_from(tiny.inputs), {{}, {0}, 100});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::refused);
  EXPECT_NE(to_text(refused.error()).find("100"), std::string::npos);
}

TEST(SampledOracle, RefusesTokensOutsideTheBatch) {
  const TinyBatch tiny = make_tiny_batch(make_long_scenario());
  EXPECT_FALSE(sampled_rows(tiny.scenario, read_from(tiny.inputs), {{1'000'000}, {}, 10}).ok());
  EXPECT_FALSE(sampled_rows(tiny.scenario, read_from(tiny.inputs), {{}, {-1}, 10}).ok());
}

}  // namespace
}  // namespace cpscope::reference
