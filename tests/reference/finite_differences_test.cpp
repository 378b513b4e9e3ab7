#include "reference/dense_oracle.h"
#include "tests/reference/tiny_batch.h"

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

/// A feature, or several, whose gradients are compared with differences of the forward pass.
struct GradientCase {
  std::string name;
  std::function<void(Scenario&)> change;
};

std::ostream& operator<<(std::ostream& stream, const GradientCase& feature) {
  return stream << feature.name;
}

class FiniteDifferences : public testing::TestWithParam<GradientCase> {};

/// The scalar whose gradients the oracle gives: sum(out * d_out) over valid rows.
double loss_of(const TinyBatch& tiny) {
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  double loss = 0.0;
  for (size_t index = 0; index < answer.out.values.size(); ++index) {
    const double d_out = tiny.inputs.d_out.values[index];
    if (!std::isnan(d_out)) loss += answer.out.values[index] * d_out;
  }
  return loss;
}

/// Central differences of the loss in every entry of one input. NaN entries are padding: they are
/// skipped and their gradient is expected to be 0.
void compare(TinyBatch& tiny, std::vector<double>& values, const std::vector<double>& gradient,
             const char* what) {
  constexpr double kStep = 1e-4;
  constexpr double kBudget = 2e-7;  // truncation ~ step^2, cancellation ~ 1e-15 / step
  ASSERT_EQ(values.size(), gradient.size()) << what;
  for (size_t index = 0; index < values.size(); ++index) {
    if (std::isnan(values[index])) {
      EXPECT_EQ(gradient[index], 0.0) << what << "[" << index << "] is padding";
      continue;
    }
    const double middle = values[index];
    values[index] = middle + kStep;
    const double above = loss_of(tiny);
    values[index] = middle - kStep;
    const double below = loss_of(tiny);
    values[index] = middle;
    EXPECT_NEAR(gradient[index], (above - below) / (2 * kStep), kBudget)
        << what << "[" << index << "]";
  }
}

TEST_P(FiniteDifferences, AgreeWithTheGradients) {
  Scenario scenario = make_scenario({4, 3}, 2, 4);
  GetParam().change(scenario);
  TinyBatch tiny = make_tiny_batch(scenario);
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  tiny.scenario.numerics.backward = false;
  compare(tiny, tiny.inputs.q.values, answer.dq.values, "q");
  compare(tiny, tiny.inputs.k.values, answer.dk.values, "k");
  compare(tiny, tiny.inputs.v.values, answer.dv.values, "v");
  compare(tiny, tiny.inputs.sink, answer.d_sink, "sink");
  compare(tiny, tiny.inputs.bias.values, answer.dbias.values, "bias");
}

void use_slices(Scenario& scenario) {
  scenario.attention.mask_type = MaskType::slices;
  scenario.attention.slices = {{0, 3, 0, 4, SliceType::causal},
                               {3, 6, 3, 7, SliceType::bi_causal},
                               {6, 7, 4, 6, SliceType::inv_causal}};
}

void use_window(Scenario& scenario, int64_t left, int64_t right) {
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.attention.window_left = left;
  scenario.attention.window_right = right;
}

void use_cross_attention(Scenario& scenario) {
  scenario.batch.lengths = {4, 0, 3, 2};
  scenario.batch.kv_lengths = {2, 3, 5, 0};
}

void use_everything(Scenario& scenario) {
  use_cross_attention(scenario);
  scenario.attention.heads = 4;
  scenario.attention.head_dim_v = 3;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.window_left = 2;
  scenario.attention.softcap = 1.5;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 10.0;
  scenario.attention.softmax_scale = 0.7;
}

std::vector<GradientCase> gradient_cases() {
  return {
      {"Causal", [](Scenario&) {}},
      {"NoMask", [](Scenario& s) { s.attention.mask_type = MaskType::no_mask; }},
      {"SoftmaxScale", [](Scenario& s) { s.attention.softmax_scale = 0.9; }},
      {"Softcap", [](Scenario& s) { s.attention.softcap = 1.0; }},
      {"OffByOne", [](Scenario& s) { s.attention.softmax_type = SoftmaxType::off_by_one; }},
      {"LearnableSink", [](Scenario& s) { s.attention.softmax_type = SoftmaxType::learnable; }},
      {"LearnableSinkWithSoftcap",
       [](Scenario& s) {
         s.attention.softmax_type = SoftmaxType::learnable;
         s.attention.softcap = 0.8;
       }},
      {"GroupedHeads",
       [](Scenario& s) {
         s.attention.heads = 4;
         s.attention.kv_heads = 2;
       }},
      {"OneKvHead", [](Scenario& s) { s.attention.kv_heads = 1; }},
      {"NarrowValues", [](Scenario& s) { s.attention.head_dim_v = 2; }},
      {"WideValues", [](Scenario& s) { s.attention.head_dim_v = 5; }},
      {"Rope", [](Scenario& s) { s.attention.rope_theta = 10.0; }},
      {"RopeWithGroupedHeads",
       [](Scenario& s) {
         s.attention.rope_theta = 100.0;
         s.attention.kv_heads = 1;
       }},
      {"LeftWindow", [](Scenario& s) { use_window(s, 1, 0); }},
      {"BothWindows", [](Scenario& s) { use_window(s, 1, 1); }},
      {"RightWindow", [](Scenario& s) { use_window(s, -1, 1); }},
      {"Chunk", [](Scenario& s) { s.attention.chunk_size = 2; }},
      {"BottomRight",
       [](Scenario& s) {
         use_cross_attention(s);
         s.attention.mask_type = MaskType::padding_causal_bottom_right;
       }},
      {"CrossAttention",
       [](Scenario& s) {
         use_cross_attention(s);
         s.attention.mask_type = MaskType::padding;
       }},
      {"EmptyRowsWithASink",
       [](Scenario& s) {
         use_cross_attention(s);
         use_window(s, 0, 0);
         s.attention.softmax_type = SoftmaxType::learnable;
       }},
      {"Slices", use_slices},
      {"SlicesWithRopeAndWindow",
       [](Scenario& s) {
         use_slices(s);
         s.attention.rope_theta = 10.0;
         s.attention.window_left = 1;
       }},
      {"Alibi", [](Scenario& s) { s.attention.alibi = true; }},
      {"BiasOfHeads", [](Scenario& s) { s.attention.bias = BiasShape::one_h; }},
      {"BiasOfSequences", [](Scenario& s) { s.attention.bias = BiasShape::b_one; }},
      {"BiasForAll", [](Scenario& s) { s.attention.bias = BiasShape::one_one; }},
      {"BiasOfBothWithSoftcapAndASink",
       [](Scenario& s) {
         s.attention.bias = BiasShape::b_h;
         s.attention.softcap = 1.0;
         s.attention.softmax_type = SoftmaxType::learnable;
       }},
      {"Dropout", [](Scenario& s) { s.attention.dropout = 0.4; }},
      {"DropoutWithBiasAndGroupedHeads",
       [](Scenario& s) {
         s.attention.dropout = 0.4;
         s.attention.bias = BiasShape::one_h;
         s.attention.kv_heads = 1;
         s.attention.softmax_type = SoftmaxType::learnable;
       }},
      {"Everything", use_everything},
      {"EverythingWithTerms",
       [](Scenario& s) {
         use_everything(s);
         s.attention.alibi = true;
         s.attention.bias = BiasShape::b_one;
         s.attention.dropout = 0.2;
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(Of, FiniteDifferences, testing::ValuesIn(gradient_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cpscope::reference
