// Ranks that own heads of all queries, run by the walker against the dense oracle.
#include "sim/scenario/scenario_names.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

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
