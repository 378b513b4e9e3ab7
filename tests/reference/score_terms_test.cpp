// Bias, ALiBi and dropout: numbers typed by hand, and every split against the oracle.

#include "sim/scenario/score_terms.h"

#include "reference/dense_oracle.h"
#include "reference/pair_terms.h"
#include "reference/plan_walker.h"
#include "sim/plan/check/plan_check.h"
#include "sim/plan/planner/planner.h"
#include "sim/run/grade/case.h"
#include "sim/run/philox.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/scenario_names.h"
#include "tests/reference/tiny_batch.h"
#include "tests/support/graded_run.h"

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace cpscope::reference {
namespace {

TEST(ScoreTerms, PhiloxGivesTheWordsOfItsAuthors) {
  const std::array<uint32_t, 4> zeros{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), zeros);
}

TEST(ScoreTerms, SlopesAreThePublishedOnes) {
  const std::vector<double> eight = alibi_slopes(8), twelve = alibi_slopes(12);
  for (int head = 0; head < 8; ++head) {
    EXPECT_DOUBLE_EQ(eight[static_cast<size_t>(head)], std::pow(0.5, head + 1)) << head;
    EXPECT_DOUBLE_EQ(twelve[static_cast<size_t>(head)], std::pow(0.5, head + 1)) << head;
  }
  const double rest[] = {0.70711, 0.35355, 0.17678, 0.08839};
  for (int head = 0; head < 4; ++head)
    EXPECT_NEAR(twelve[static_cast<size_t>(8 + head)], rest[head], 5e-6) << head;
  for (const int32_t heads : {1, 2, 3, 5, 8, 12, 16, 40, 71, 128}) {
    const std::vector<double> slopes = alibi_slopes(heads);
    for (int32_t head = 0; head < heads; ++head)
      EXPECT_DOUBLE_EQ(slopes[static_cast<size_t>(head)], slope_of_head(heads, head))
          << head << " of " << heads;
  }
}

/// One query of one head that sees keys with equal q.k.
TinyBatch make_even_batch(Attention attention, int64_t queries, int64_t keys) {
  Scenario scenario = make_scenario({queries}, attention.heads, 2);
  attention.kv_heads = attention.heads;
  attention.head_dim_qk = attention.head_dim_v = 2;
  attention.mask_type = MaskType::no_mask;
  scenario.attention = attention;
  scenario.batch.kv_lengths = {keys};
  TinyBatch tiny = make_tiny_batch(scenario, 0.0, 0, 0);
  std::fill(tiny.inputs.q.values.begin(), tiny.inputs.q.values.end(), 0.0);
  return tiny;
}

TEST(ScoreTerms, AlibiFallsWithTheDistanceFromTheLastKeyOfTheQuery) {
  Attention attention;
  attention.heads = 2;  // slopes 1/16 and 1/256
  attention.alibi = true;
  const TinyBatch tiny = make_even_batch(attention, 1, 3);  // query 0 stands at key 2
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  for (int head = 0; head < 2; ++head) {
    const double slope = head == 0 ? 1.0 / 16 : 1.0 / 256;
    EXPECT_NEAR(answer.lse.values[static_cast<size_t>(head)],
                std::log(std::exp(-2 * slope) + std::exp(-slope) + 1.0), 1e-14);
    EXPECT_EQ(answer.max_logit[static_cast<size_t>(head)], 0.0);
  }
}

TEST(ScoreTerms, ABiasIsAddedAfterTheScaleAndItsGradientHasNone) {
  Attention attention;
  attention.heads = 1;
  attention.bias = BiasShape::one_h;
  attention.softmax_scale = 0.25;
  TinyBatch tiny = make_even_batch(attention, 1, 2);
  tiny.inputs.bias = {"bias", {1, 1, 1, 2}, Dtype::fp64, {std::log(3.0), 0.0}};
  tiny.inputs.v.values = {1, 0, 0, 1};
  tiny.inputs.d_out.values = {1, 0};
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  EXPECT_NEAR(answer.out.values[0], 0.75, 1e-15);
  EXPECT_NEAR(answer.out.values[1], 0.25, 1e-15);
  // dS = P * (dP - rowsum(d_out * out)) with P = (3/4, 1/4), dP = (1, 0).
  EXPECT_NEAR(answer.dbias.values[0], 0.75 * 0.25, 1e-15);
  EXPECT_NEAR(answer.dbias.values[1], -0.25 * 0.75, 1e-15);
}

TEST(ScoreTerms, DropoutKeepsTheShareOfTheDrawsAndTheRowSumOfAllWeights) {
  Attention attention;
  attention.heads = 2;
  attention.dropout = 0.25;
  constexpr int64_t kKeys = 997;
  TinyBatch tiny = make_even_batch(attention, 3, kKeys);
  tiny.scenario.numerics.seed = 1234;
  std::fill(tiny.inputs.v.values.begin(), tiny.inputs.v.values.end(), 1.0);
  const Answer answer = exact_answer(tiny.scenario, tiny.inputs);
  int64_t all = 0;
  for (uint32_t query = 0; query < 3; ++query) {
    for (uint32_t head = 0; head < 2; ++head) {
      int64_t kept = 0;
      for (uint32_t key = 0; key < kKeys; ++key)
        kept += philox({key / 4, query, head, 0}, {1234, 0})[key % 4] < 0xC0000000u ? 1 : 0;
      const size_t row = query * 2 + head;
      EXPECT_NEAR(answer.out.values[row * 2] * 0.75 * kKeys, static_cast<double>(kept), 1e-9);
      EXPECT_NEAR(answer.lse.values[row], std::log(static_cast<double>(kKeys)), 1e-12);
      all += kept;
    }
  }
  EXPECT_NEAR(static_cast<double>(all) / (6 * kKeys), 0.75, 0.03);
}

/// Everything at once, in fp64.
Scenario make_full_scenario(CommType type, LayoutKind layout, BiasShape bias) {
  Scenario scenario = make_scenario({13, 1, 22}, 4, 4);
  scenario.attention.kv_heads = 2;
  scenario.attention.alibi = true;
  scenario.attention.bias = bias;
  scenario.attention.dropout = 0.3;
  scenario.attention.softcap = 1.5;
  scenario.batch.slots = scenario.batch.kv_slots = scenario.batch.lengths;
  scenario.parallel.cp_size = 4;
  scenario.parallel.comm_type = type;
  scenario.parallel.layout = layout;
  scenario.parallel.dispatch_chunk = 4;
  return scenario;
}

RunOutput walk(const Scenario& scenario, RunInputs& inputs) {
  Result<CheckedPlan> plan = plan_scenario(scenario);
  EXPECT_TRUE(plan.ok()) << to_text(plan.error());
  inputs = make_run_inputs(plan.value().plan(), true);
  RunOptions options;
  options.poison = true;
  return make_plan_walker()->run(plan.value(), inputs, options).value();
}

TEST(ScoreTerms, EverySplitAgreesWithTheOracle) {
  for (const CommType type : kCommTypes) {
    for (const BiasShape bias : kBiasShapes) {
      const Scenario scenario = make_full_scenario(type, LayoutKind::dual_chunk, bias);
      RunInputs inputs;
      const Answer seen = walk(scenario, inputs).answer, exact = exact_answer(scenario, inputs);
      for (const auto& tensor :
           {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv, &Answer::dbias})
        EXPECT_LT(relative_l2((seen.*tensor).values, (exact.*tensor).values), 1e-12)
            << to_name(type) << ", bias " << to_name(bias) << ": " << (exact.*tensor).name;
      EXPECT_EQ(exact.dbias.values.empty(), bias == BiasShape::none);
    }
  }
}

TEST(ScoreTerms, EveryLayoutDropsTheSameWeights) {
  std::vector<double> first;
  for (const LayoutKind layout :
       {LayoutKind::contiguous, LayoutKind::dual_chunk, LayoutKind::dual_chunk_packed,
        LayoutKind::striped, LayoutKind::lpt}) {
    const Scenario scenario = make_full_scenario(CommType::p2p, layout, BiasShape::b_h);
    RunInputs inputs;
    const Answer seen = walk(scenario, inputs).answer;
    if (first.empty()) first = seen.dbias.values;
    EXPECT_LT(relative_l2(seen.dbias.values, first), 1e-12) << to_name(layout);
  }
}

TEST(ScoreTerms, DrawsOfComputeItemsAgreeWithTheOracleAndNotWithThoseOfAnotherSplit) {
  const auto make = [](CommType type, int32_t ranks, DropoutMode mode) {
    Scenario scenario = make_full_scenario(type, LayoutKind::dual_chunk, BiasShape::none);
    scenario.attention.dropout_mode = mode;
    scenario.parallel.cp_size = ranks;
    return scenario;
  };
  RunInputs inputs;
  for (const DropoutMode mode : {DropoutMode::split_invariant, DropoutMode::framework}) {
    const Answer whole = walk(make(CommType::p2p, 1, mode), inputs).answer;
    const Tensor out_alone = tests::without_padding(whole.out, inputs.slots, Side::q),
                 lse_alone = tests::without_padding(whole.lse, inputs.slots, Side::q);
    for (const CommType type : kCommTypes) {
      const Scenario scenario = make(type, 4, mode);
      const Answer seen = walk(scenario, inputs).answer, exact = exact_answer(scenario, inputs);
      for (const auto tensor : {&Answer::out, &Answer::lse, &Answer::dq, &Answer::dk, &Answer::dv})
        EXPECT_LT(relative_l2((seen.*tensor).values, (exact.*tensor).values), 1e-12)
            << to_name(type) << ' ' << to_name(mode) << ": " << (exact.*tensor).name;
      // The row sum is of all weights, so lse is the same under any draw.
      const Tensor out = tests::without_padding(seen.out, inputs.slots, Side::q),
                   lse = tests::without_padding(seen.lse, inputs.slots, Side::q);
      EXPECT_LT(relative_l2(lse.values, lse_alone.values), 1e-12) << to_name(type);
      const double apart = relative_l2(out.values, out_alone.values);
      if (mode == DropoutMode::framework)
        EXPECT_GT(apart, 0.2) << to_name(type) << " drops what one rank drops";
      else
        EXPECT_LT(apart, 1e-12) << to_name(type);
    }
  }
}

TEST(ScoreTerms, ATableOfKeptWeightsThatNoRunHoldsIsRefused) {
  Attention attention;
  attention.heads = 8;
  attention.dropout = 0.1;
  Batch batch;
  batch.lengths = batch.kv_lengths = {4097};
  EXPECT_FALSE(terms_too_large(attention, batch)) << "draws that need no table";
  attention.dropout_mode = DropoutMode::framework;
  const auto reason = terms_too_large(attention, batch);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("a table of kept weights"), std::string::npos) << *reason;
}

TEST(ScoreTerms, ABiasThatNoRunHoldsIsRefused) {
  Attention attention;
  attention.heads = 8;
  Batch batch;
  batch.lengths = batch.kv_lengths = {4096};
  EXPECT_FALSE(terms_too_large(attention, batch)) << "without a bias";
  attention.bias = BiasShape::one_one;
  EXPECT_FALSE(terms_too_large(attention, batch)) << "just fits";
  batch.lengths = batch.kv_lengths = {4097};
  const auto reason = terms_too_large(attention, batch);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("134217728"), std::string::npos) << *reason;
  batch.lengths = batch.kv_lengths = {2'000'000'000};
  EXPECT_TRUE(terms_too_large(attention, batch)) << "no overflow";
}

}  // namespace
}  // namespace cpscope::reference
