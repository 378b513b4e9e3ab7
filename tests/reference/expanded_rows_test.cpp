// Latent rows that are expanded where they are used (latent_nope_dim): the attention is that of the
// keys and values of every head, written out, and the gradient of a row is that of all of them.
#include "reference/dense_oracle.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "tests/reference/tiny_batch.h"
#include "tests/support/graded_run.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

constexpr int32_t kHeads = 3, kLatent = 9, kMade = 5, kRotated = 4, kDimV = 7;

Scenario expanding_scenario(Dtype dtype = Dtype::fp64) {
  Scenario scenario = make_scenario({19, 0, 30}, kHeads, kMade + kRotated);
  scenario.batch.kv_lengths = {23, 4, 30};
  Attention& attention = scenario.attention;
  attention.mask_type = MaskType::causal_bottom_right;
  attention.kv_heads = 1;
  attention.latent_dim = kLatent;
  attention.latent_nope_dim = kMade;
  attention.head_dim_v = kDimV;
  attention.softmax_type = SoftmaxType::learnable;
  scenario.numerics.dtype = dtype;
  return scenario;
}

/// The same attention with k and v of every head in tensors of their own, element by element.
TinyBatch write_out(const TinyBatch& latent) {
  TinyBatch all = latent;
  all.scenario.attention.latent_dim = all.scenario.attention.latent_nope_dim = 0;
  all.scenario.attention.kv_heads = kHeads;
  const RunInputs& given = latent.inputs;
  const int64_t tokens = given.k.shape[0];
  all.inputs.w_k = all.inputs.w_v = {};
  all.inputs.k = make_filled_tensor("k", {tokens, kHeads, kMade + kRotated}, given.k.dtype, 0.0);
  all.inputs.v = make_filled_tensor("v", {tokens, kHeads, kDimV}, given.k.dtype, 0.0);
  const auto product = [&](const Tensor& weights, int64_t head, int64_t element, int64_t token) {
    double sum = 0;
    for (int64_t lane = 0; lane < kLatent; ++lane)
      sum += weights.values[(head * weights.shape[1] + element) * kLatent + lane] *
             given.k.values[token * (kLatent + kRotated) + lane];
    return sum;
  };
  for (int64_t row = 0; row < tokens * kHeads; ++row) {
    const int64_t token = row / kHeads, head = row % kHeads;
    for (int64_t i = 0; i < kMade + kRotated; ++i)
      all.inputs.k.values[row * (kMade + kRotated) + i] =
          i < kMade ? product(given.w_k, head, i, token)
                    : given.k.values[token * (kLatent + kRotated) + kLatent + i - kMade];
    for (int64_t i = 0; i < kDimV; ++i)
      all.inputs.v.values[row * kDimV + i] = product(given.w_v, head, i, token);
  }
  return all;
}

/// The gradient of the latent rows by the chain rule.
std::vector<double> contract(const RunInputs& given, const Answer& of_heads) {
  const int64_t tokens = given.k.shape[0], width = kLatent + kRotated;
  std::vector<double> rows(static_cast<size_t>(tokens * width), 0.0);
  for (int64_t row = 0; row < tokens * kHeads; ++row) {
    const int64_t token = row / kHeads, head = row % kHeads;
    const double* dk = of_heads.dk.values.data() + row * (kMade + kRotated);
    const double* dv = of_heads.dv.values.data() + row * kDimV;
    for (int64_t lane = 0; lane < kLatent; ++lane) {
      for (int64_t i = 0; i < kMade; ++i)
        rows[token * width + lane] += given.w_k.values[(head * kMade + i) * kLatent + lane] * dk[i];
      for (int64_t i = 0; i < kDimV; ++i)
        rows[token * width + lane] += given.w_v.values[(head * kDimV + i) * kLatent + lane] * dv[i];
    }
    for (int64_t i = 0; i < kRotated; ++i) rows[token * width + kLatent + i] += dk[kMade + i];
  }
  return rows;
}

TEST(ExpandedRows, AreTheAttentionOfEveryHeadsOwnKeysAndValues) {
  const TinyBatch latent = make_tiny_batch(expanding_scenario());
  const TinyBatch all = write_out(latent);
  const Answer one = exact_answer(latent.scenario, latent.inputs),
               two = exact_answer(all.scenario, all.inputs);
  EXPECT_LT(relative_l2(one.out.values, two.out.values), 1e-14);
  EXPECT_LT(relative_l2(one.dq.values, two.dq.values), 1e-13);
  EXPECT_EQ(one.dk.shape, (std::vector<int64_t>{latent.inputs.k.shape[0], 1, kLatent + kRotated}));
  EXPECT_LT(relative_l2(one.dk.values, contract(latent.inputs, two)), 1e-13);
  EXPECT_TRUE(one.dv.values.empty());
}

TEST(ExpandedRows, HaveTheGradientOfFiniteDifferencesUnderRope) {
  Scenario scenario = expanding_scenario();
  scenario.attention.rope_theta = 50.0;
  TinyBatch batch = make_tiny_batch(scenario, 0.0);
  const Answer answer = exact_answer(batch.scenario, batch.inputs);
  const auto loss = [&] {
    const Answer now = exact_answer(batch.scenario, batch.inputs);
    double sum = 0;
    for (size_t i = 0; i < now.out.values.size(); ++i)
      sum += now.out.values[i] * batch.inputs.d_out.values[i];
    return sum;
  };
  const SlotSide slot = batch.inputs.slots.sequences[2].side(Side::kv);
  for (const int64_t token : {slot.valid_begin(), slot.valid_begin() + 11}) {
    for (const int64_t lane : {0, 4, 8, 9, 12}) {
      const auto at = static_cast<size_t>(token * (kLatent + kRotated) + lane);
      double& value = batch.inputs.k.values[at];
      const double before = value, step = 1e-5;
      value = before + step;
      const double above = loss();
      value = before - step;
      const double below = loss();
      value = before;
      EXPECT_NEAR((above - below) / (2 * step), answer.dk.values[at], 1e-7)
          << "token " << token << ", element " << lane;
    }
  }
}

TEST(ExpandedRows, RotateTheElementsBehindTheOnesThatWeightsMake) {
  Scenario scenario = expanding_scenario();
  scenario.attention.rope_theta = 50.0;
  // With zeros in the rotated elements of q the rotation changes nothing.
  TinyBatch batch = make_tiny_batch(scenario);
  Tensor& q = batch.inputs.q;
  for (int64_t row = 0; row < q.shape[0] * kHeads; ++row)
    std::fill_n(q.values.begin() + row * (kMade + kRotated) + kMade, kRotated, 0.0);
  TinyBatch unrotated = batch;
  unrotated.scenario.attention.rope_theta = 0.0;
  EXPECT_LT(relative_l2(exact_answer(batch.scenario, batch.inputs).out.values,
                        exact_answer(unrotated.scenario, unrotated.inputs).out.values),
            1e-14);
}

TEST(ExpandedRows, AreJudgedAlikeWholeAndInASample) {
  const TinyBatch batch = make_tiny_batch(expanding_scenario(Dtype::bf16));
  const Oracle oracle = dense_oracle();
  const Result<Verdict> whole = oracle.judge(batch.scenario, batch.inputs, {}, {});
  ASSERT_TRUE(whole.ok());
  const JudgedRows rows{{0, 3, 20}, {1, 2, 28}};
  const Result<Verdict> some =
      oracle.judge_rows(batch.scenario, batch.inputs, whole.value().exact, rows, {}, {});
  ASSERT_TRUE(some.ok());
  const int64_t width = kLatent + kRotated;
  for (size_t i = 0; i < rows.key_tokens.size(); ++i) {
    const auto at = static_cast<size_t>(rows.key_tokens[i]);
    for (int64_t lane = 0; lane < width; ++lane)
      EXPECT_NEAR(some.value().exact.dk.values[i * width + lane],
                  whole.value().exact.dk.values[at * width + lane], 1e-12);
    EXPECT_NEAR(some.value().terms.dk[i], whole.value().terms.dk[at], 1e-9);
  }
}

Scenario schedule(const char* type, Dtype dtype) {
  const std::string text = fmt::format(
      "schema = 1\n[attention]\nheads = 4\nkv_heads = 1\nhead_dim_qk = 10\nhead_dim_v = 8\n"
      "latent_dim = 20\nlatent_nope_dim = 6\nrope_theta = 100.0\n"
      "[batch]\nlengths = [61, 30, 1]\n[parallel]\ncp_size = 4\ncp_comm_type = \"{}\"\n{}"
      "[numerics]\ndtype = \"{}\"\n",
      type, std::string_view(type) == "a2a+p2p" ? "a2a_size = 2\n" : "", to_name(dtype));
  return parse_scenario(text, "expanded.toml").value().scenario;
}

TEST(ExpandedRows, KeepTheBudgetInEveryScheduleAndDtype) {
  for (const char* type : {"p2p", "all_gather", "a2a", "a2a+p2p", "group_cast", "pass_q", "mesh"}) {
    for (const Dtype dtype : {Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
      const tests::GradedRun run = tests::run_possible(schedule(type, dtype));
      EXPECT_TRUE(run.grade.passed) << type << "\n" << tests::describe(run);
      if (dtype != Dtype::fp64) continue;
      EXPECT_LT(tests::relative_error(run.answer.out, run.verdict.exact.out), 1e-14) << type;
      EXPECT_LT(tests::relative_error(run.answer.dk, run.verdict.exact.dk), 1e-13) << type;
    }
  }
}

}  // namespace
}  // namespace cpscope::reference
