// Ranks that own heads of all queries, run by the walker against the dense oracle.
#include "reference/dense_oracle.h"
#include "sim/run/grade/sample.h"
#include "sim/scenario/scenario_names.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <limits>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

Scenario decoder(QOwner owner, Combine combine, int32_t ranks) {
  Scenario scenario = cross_case({3, 1, 2}, {61, 5, 130}, ranks);
  scenario.attention.heads = 10;
  scenario.attention.kv_heads = 5;
  scenario.attention.mask_type = MaskType::causal_bottom_right;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 10000.0;
  scenario.batch.slot_multiple = 4;
  scenario.parallel.comm_type = CommType::gather_q;
  scenario.parallel.layout = LayoutKind::striped;
  scenario.parallel.stripe = 16;
  scenario.parallel.q_owner = owner;
  scenario.parallel.combine = combine;
  scenario.numerics.backward = false;
  return scenario;
}

/// Uneven heads, KV heads of two ranks, a sink, RoPE, padding, and ranks without keys of a
/// sequence.
TEST(OwnedHeads, GiveTheOraclesNumbersHoweverResultsComeTogether) {
  for (const QOwner owner : {QOwner::heads, QOwner::heads_replicated}) {
    for (const Combine combine : kCombines) {
      for (const int32_t ranks : {1, 2, 4, 8}) {
        for (const Dtype dtype : {Dtype::fp64, Dtype::bf16}) {
          Scenario scenario = decoder(owner, combine, ranks);
          scenario.numerics.dtype = dtype;
          const GradedRun run = run_possible(scenario);
          EXPECT_TRUE(run.grade.passed) << describe(run);
          const double most = dtype == Dtype::fp64 ? 1e-12 : 0.01;
          EXPECT_LT(relative_error(run.answer.out, run.verdict.exact.out), most) << describe(run);
        }
      }
    }
  }
}

TEST(OwnedHeads, GiveTheSameNumbersAsOwnersOfRowsWhereResultsAreMergedAlike) {
  Scenario scenario = decoder(QOwner::heads, Combine::all_to_all, 4);
  scenario.numerics.dtype = Dtype::fp32;
  const GradedRun heads = run_possible(scenario);
  scenario.parallel.q_owner = QOwner::heads_replicated;
  EXPECT_TRUE(is_bitwise_equal(run_possible(scenario).answer, heads.answer));
}

/// Fails the test unless rank 1 of 4, which owns heads 2 to 4 of 10, is the only one that is wrong.
void expect_rank_1_is_wrong(Grade grade) {
  for (const char* name : {"out", "lse"}) {
    const TensorGrade* tensor = grade.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_FALSE(tensor->passed) << name;
    EXPECT_EQ(tensor->worst.rank, 1) << name;
    EXPECT_TRUE(tensor->worst.head >= 2 && tensor->worst.head < 5) << name;
    const std::vector<GroupGrade>& ranks = tensor->groups_by(GroupKind::rank);
    ASSERT_EQ(ranks.size(), 4u) << name;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].index, static_cast<int64_t>(rank)) << name;
      EXPECT_EQ(ranks[rank].passed, rank != 1) << name << ", rank " << rank;
    }
  }
}

TEST(OwnedHeads, AreGradedWithTheRankThatOwnsThem) {
  Toolbox toolbox;
  toolbox.oracle = reference::dense_oracle();
  for (const QOwner owner : {QOwner::heads, QOwner::heads_replicated}) {
    const GradedRun run = run_possible(decoder(owner, Combine::all_to_all, 4));
    const Plan& plan = run.plan.plan();
    EXPECT_EQ(plan.layout.q_heads[RankId{1}], (HeadRange{2, 5}));
    Answer answer = run.answer;
    for (Tensor* tensor : {&answer.out, &answer.lse}) {
      const int64_t lanes = tensor->size() / (tensor->shape[0] * tensor->shape[1]);
      for (int64_t i = 0; i < tensor->size(); ++i) {
        const int64_t head = i / lanes % tensor->shape[1];
        if (head >= 2 && head < 5) tensor->values[static_cast<size_t>(i)] *= 1.5;
      }
    }
    expect_rank_1_is_wrong(grade_answer(plan, run.inputs, answer, run.verdict));
    const auto sample = [&] {
      return grade_sample(toolbox, plan, run.inputs, answer, {.rows = 2}).value().grade;
    };
    expect_rank_1_is_wrong(sample());
    // A scan of all rows names the rank of head 5 too.
    answer = run.answer;
    answer.out.values[static_cast<size_t>(5 * answer.out.shape[2])] =
        std::numeric_limits<double>::quiet_NaN();
    Grade scanned = sample();
    EXPECT_EQ(scanned.find("out")->nan, 1);
    EXPECT_EQ(scanned.find("out")->worst.rank, 2);
  }
}

TEST(OwnedHeads, RunInFp8AndWithLatentRows) {
  for (const Combine combine : kCombines) {
    Scenario scenario = decoder(QOwner::heads, combine, 4);
    scenario.attention.softmax_type = SoftmaxType::vanilla;
    scenario.attention.head_dim_qk = scenario.attention.head_dim_v = 32;
    scenario.numerics.dtype = Dtype::bf16;
    scenario.numerics.fp8 = Fp8{};
    const GradedRun fp8 = run_possible(scenario);
    EXPECT_TRUE(fp8.grade.passed) << describe(fp8);
    scenario.numerics.fp8.reset();
    scenario.attention.kv_heads = 1;
    scenario.attention.latent_dim = scenario.attention.head_dim_v = 24;
    const GradedRun latent = run_possible(scenario);
    EXPECT_TRUE(latent.grade.passed) << describe(latent);
  }
}

}  // namespace
}  // namespace cpscope::tests
