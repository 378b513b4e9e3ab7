#include "sim/plan/kept_inputs.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

TEST(PlanWalker, GivesTheSameBitsInEveryRunAndForEveryThreadCount) {
  RandomSpace space;
  space.any_dtype = true;
  for (uint64_t seed = 500; seed < 540; ++seed) {
    const Scenario scenario = random_scenario(seed, space);
    const auto plan = plan_unless_refused(scenario);
    if (!plan) continue;
    const RunInputs inputs = make_run_inputs(plan->plan(), true);
    const Answer one = walk(*plan, inputs, {true, 1});
    for (const int threads : {1, 2, 5}) {
      EXPECT_TRUE(is_bitwise_equal(walk(*plan, inputs, {true, threads}), one))
          << threads << " threads, seed " << seed << "\n"
          << print_scenario(scenario);
    }
  }
}

TEST(PlanWalker, SumsUpOnceWhatItSendsToSeveralRanks) {
  const Result<LoadedScenario> loaded = parse_scenario(
      "schema = 1\n[attention]\nheads = 12\nkv_heads = 1\nhead_dim = 4\n[batch]\nlengths = [20]\n"
      "[parallel]\ncp_size = 4\ncp_comm_type = \"gather_q\"\nlayout = \"striped\"\n"
      "combine = \"reduce_scatter\"\n[numerics]\ndtype = \"fp16\"\naccumulate = \"dtype\"\n",
      "sums.toml");
  ASSERT_TRUE(loaded.ok()) << to_text(loaded.error());
  const auto plan = plan_unless_refused(loaded.value().scenario);
  ASSERT_TRUE(plan.has_value());
  const RunInputs inputs = make_run_inputs(plan->plan(), true);
  const Answer one = walk(*plan, inputs, {true, 1});
  // Threads that sum up one result at the same time rarely meet.
  for (int round = 0; round < 100; ++round)
    ASSERT_TRUE(is_bitwise_equal(walk(*plan, inputs, {true, 4}), one)) << "round " << round;
}

TEST(PlanWalker, GivesTheSameBitsInEveryRepeat) {
  int with_kept_inputs = 0;
  for (uint64_t seed = 600; seed < 640; ++seed) {
    const Scenario scenario = random_scenario(seed, {});
    const auto plan = plan_unless_refused(scenario);
    if (!plan) continue;
    with_kept_inputs += find_kept_inputs(plan->plan()).empty() ? 0 : 1;
    const RunInputs inputs = make_run_inputs(plan->plan(), true);
    EXPECT_TRUE(is_bitwise_equal(walk(*plan, inputs, {.repeats = 3}), walk(*plan, inputs)))
        << "seed " << seed << "\n"
        << print_scenario(scenario);
  }
  EXPECT_GT(with_kept_inputs, 3) << "rings that leave keys where the backward begins";
}

TEST(PlanWalker, GivesTheSameNumbersWhateverFreshMemoryHolds) {
  RandomSpace space;
  space.any_dtype = true;
  for (uint64_t seed = 600; seed < 640; ++seed) {
    const Scenario scenario = random_scenario(seed, space);
    const auto plan = plan_unless_refused(scenario);
    if (!plan) continue;
    const RunInputs poisoned = make_run_inputs(plan->plan(), true);
    const RunInputs clean = make_run_inputs(plan->plan(), false);
    EXPECT_TRUE(is_bitwise_equal(walk(*plan, poisoned, {true, 0}), walk(*plan, clean, {false, 0})))
        << "seed " << seed << "\n"
        << print_scenario(scenario);
  }
}

/// Two ranks of 16 tokens each, and then the same two with two more that hold only padding.
TEST(PlanWalker, GivesTheSameNumbersWhenIdleRanksAreAdded) {
  for (const CommType comm : kCommTypes) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
      Scenario scenario = walker_case({32}, 2);
      // With fewer KV heads than ranks, a2a would make more shares of them on more ranks.
      scenario.attention.kv_heads = 4;
      scenario.parallel.layout = LayoutKind::contiguous;
      scenario.parallel.comm_type = comm;
      scenario.numerics.dtype = dtype;
      const GradedRun busy = run_possible(scenario);
      scenario.parallel.cp_size = 4;
      scenario.batch.slots = scenario.batch.kv_slots = {64};
      const GradedRun idle = run_possible(scenario);
      const Difference difference = compare(without_padding(idle.answer, idle.inputs.slots),
                                            without_padding(busy.answer, busy.inputs.slots));
      EXPECT_EQ(difference.relative, 0.0) << to_name(comm) << " " << describe(difference);
    }
  }
}

Scenario everything_case() {
  Scenario scenario = walker_case({61, 0, 30, 97}, 4);
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 1000.0;
  scenario.attention.window_left = 40;
  scenario.attention.softcap = 3.0;
  return scenario;
}

TEST(PlanWalker, GivesTheSameNumbersForEveryCommunicationTypeAndLayout) {
  for (const bool is_cross : {false, true}) {
    Scenario scenario = everything_case();
    if (is_cross) {
      scenario.batch.kv_lengths = scenario.batch.kv_slots = {40, 9, 30, 120};
      scenario.batch.self_attention = false;
    }
    std::optional<Answer> first;
    for (const CommType comm : kCommTypes) {
      for (const LayoutKind layout : kLayouts) {
        scenario.parallel.comm_type = comm;
        scenario.parallel.layout = layout;
        const GradedRun run = run_possible(scenario);
        const Answer answer = without_padding(run.answer, run.inputs.slots);
        if (!first) first = answer;
        const Difference difference = compare(answer, *first);
        EXPECT_LE(difference.relative, 1e-12) << describe(difference) << print_scenario(scenario);
      }
    }
  }
}

TEST(PlanWalker, IsGivenTheSameInputsTokenByTokenForEveryWayToSplitThem) {
  Scenario scenario = everything_case();
  const GradedRun first = run_possible(scenario);
  const Tensor q = without_padding(first.inputs.q, first.inputs.slots, Side::q);
  const Tensor k = without_padding(first.inputs.k, first.inputs.slots, Side::kv);
  for (const CommType comm : kCommTypes) {
    for (const LayoutKind layout : kLayouts) {
      scenario.parallel.comm_type = comm;
      scenario.parallel.layout = layout;
      const auto plan = plan_unless_refused(scenario);
      ASSERT_TRUE(plan.has_value());
      const BatchSlots& slots = plan->plan().layout.slots;
      const RunInputs inputs = make_run_inputs(scenario, slots, true);
      EXPECT_EQ(without_padding(inputs.q, slots, Side::q).values, q.values);
      EXPECT_EQ(without_padding(inputs.k, slots, Side::kv).values, k.values);
      EXPECT_EQ(inputs.sink, first.inputs.sink);
    }
  }
}

TEST(PlanWalker, TurnsQueriesAndKeysByTheirPositionInTheSequence) {
  Scenario scenario = walker_case({24, 17}, 3);
  const GradedRun off = run_possible(scenario);
  scenario.attention.rope_theta = 100.0;
  const GradedRun on = run_possible(scenario);
  EXPECT_GT(relative_error(on.answer.out, off.answer.out), 0.01);
  // One sequence after another: an earlier sequence must not change the rotation.
  Scenario alone = scenario;
  alone.batch.lengths = alone.batch.kv_lengths = alone.batch.slots = alone.batch.kv_slots = {24};
  const GradedRun first = run_possible(alone);
  const int64_t values = 24 * 4 * 8;
  for (int64_t i = 0; i < values; ++i)
    ASSERT_NEAR(on.answer.out.values[i], first.answer.out.values[i], 1e-13) << "value " << i;
}

TEST(PlanWalker, RoundsGradientsOfKeysOnTheWireOnlyWhenAsked) {
  Scenario scenario = walker_case({256}, 16);
  scenario.attention.mask_type = MaskType::no_mask;
  scenario.numerics.dtype = Dtype::bf16;
  for (const CommType comm : {CommType::p2p, CommType::all_gather, CommType::group_cast}) {
    scenario.parallel.comm_type = comm;
    scenario.numerics.dkv_wire = WireFormat::fp32;
    const GradedRun wide = run_possible(scenario);
    scenario.numerics.dkv_wire = WireFormat::dtype;
    const GradedRun narrow = run_possible(scenario);
    EXPECT_TRUE(wide.grade.passed) << describe(wide);
    EXPECT_TRUE(narrow.grade.passed) << describe(narrow);
    for (const auto tensor : {&Answer::dk, &Answer::dv}) {
      EXPECT_GT(relative_error(narrow.answer.*tensor, narrow.verdict.exact.*tensor),
                1.1 * relative_error(wide.answer.*tensor, wide.verdict.exact.*tensor))
          << to_name(comm) << " " << (wide.answer.*tensor).name;
    }
    EXPECT_EQ(narrow.answer.out.values, wide.answer.out.values);
    EXPECT_EQ(narrow.answer.dq.values, wide.answer.dq.values);
  }
}

TEST(PlanWalker, BringsGradientsHomeInEitherNumberOfHops) {
  for (const LayoutKind layout : kLayouts) {
    Scenario scenario = walker_case({50, 23}, 5);
    scenario.parallel.layout = layout;
    scenario.numerics.dkv_hops = DkvHops::home;
    const GradedRun home = run_possible(scenario);
    scenario.numerics.dkv_hops = DkvHops::ring;
    const GradedRun ring = run_possible(scenario);
    const Difference difference = compare(ring.answer, home.answer);
    EXPECT_LE(difference.relative, 1e-13) << describe(difference) << print_scenario(scenario);
  }
}

TEST(PlanWalker, LetsTheSinkInOnceForAnyNumberOfRanks) {
  for (const SoftmaxType type : {SoftmaxType::off_by_one, SoftmaxType::learnable}) {
    for (const CommType comm : kCommTypes) {
      std::optional<std::vector<double>> d_sink;
      for (const int32_t cp_size : {1, 2, 4}) {
        if (comm == CommType::a2a_p2p && cp_size == 1) continue;
        Scenario scenario = walker_case({40}, cp_size);
        scenario.parallel.comm_type = comm;
        const GradedRun without = run_possible(scenario);
        scenario.attention.softmax_type = type;
        const GradedRun with = run_possible(scenario);
        for (int64_t row = 0; row < 40 * 4; ++row) {
          const double sink = type == SoftmaxType::learnable ? with.inputs.sink[row % 4] : 0.0;
          const double before = without.answer.lse.values[row];
          const double after = std::log(std::exp(before) + std::exp(sink));
          ASSERT_NEAR(with.answer.lse.values[row], after, 1e-13) << print_scenario(scenario);
          for (int64_t lane = 0; lane < 8; ++lane) {
            ASSERT_NEAR(with.answer.out.values[row * 8 + lane],
                        without.answer.out.values[row * 8 + lane] * std::exp(before - after), 1e-13)
                << "row " << row << "\n"
                << print_scenario(scenario);
          }
        }
        if (type != SoftmaxType::learnable) continue;
        if (!d_sink) d_sink = with.answer.d_sink;
        for (size_t head = 0; head < 4; ++head) {
          EXPECT_NEAR(with.answer.d_sink[head], (*d_sink)[head], 1e-12) << to_name(comm);
          EXPECT_NEAR(with.answer.d_sink[head], with.verdict.exact.d_sink[head], 1e-12);
        }
      }
    }
  }
}

TEST(PlanWalker, FindsTheLargestLogitOfEveryHead) {
  Scenario scenario = walker_case({33}, 3);
  scenario.attention.softcap = 2.0;
  const GradedRun run = run_possible(scenario);
  for (int64_t head = 0; head < 4; ++head) {
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < 33; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t lane = 0; lane < 8; ++lane)
          dot += run.inputs.q.values[(i * 4 + head) * 8 + lane] *
                 run.inputs.k.values[(j * 2 + head / 2) * 8 + lane];
        largest = std::max(largest, 2.0 * std::tanh(dot / std::sqrt(8.0) / 2.0));
      }
    }
    EXPECT_NEAR(run.answer.max_logit[head], largest, 1e-13) << "head " << head;
  }
}

struct HeadCounts {
  int32_t heads, kv_heads, cp_size;
};

TEST(PlanWalker, SharesKeysAmongTheHeadsOfAGroup) {
  for (const HeadCounts& counts :
       {HeadCounts{1, 1, 1}, HeadCounts{4, 1, 4}, HeadCounts{4, 2, 4}, HeadCounts{6, 3, 6},
        HeadCounts{8, 2, 8}, HeadCounts{8, 4, 2}, HeadCounts{12, 3, 4}}) {
    for (const CommType comm : kCommTypes) {
      Scenario scenario = walker_case({29, 14}, counts.cp_size);
      scenario.attention.heads = counts.heads;
      scenario.attention.kv_heads = counts.kv_heads;
      scenario.parallel.comm_type = comm;
      scenario.parallel.a2a_size = counts.cp_size % 2 == 0 ? 2 : 1;
      const GradedRun run = run_possible(scenario);
      const Difference difference = compare(run.answer, run.verdict.exact);
      EXPECT_LE(difference.relative, 1e-11) << describe(difference) << print_scenario(scenario);
    }
  }
}

/// `from` with every head repeated `copies` times.
Tensor repeat_heads(const Tensor& from, int64_t copies) {
  Tensor repeated{
      from.name, {from.shape[0], from.shape[1] * copies, from.shape[2]}, from.dtype, {}};
  for (int64_t row = 0; row < from.shape[0] * from.shape[1]; ++row) {
    for (int64_t copy = 0; copy < copies; ++copy)
      repeated.values.insert(repeated.values.end(), from.values.begin() + row * from.shape[2],
                             from.values.begin() + (row + 1) * from.shape[2]);
  }
  return repeated;
}

TEST(PlanWalker, TreatsAGroupAsIfItsKeysWereCopiedForEveryHead) {
  for (const CommType comm : kCommTypes) {
    Scenario scenario = walker_case({29, 14}, 4);
    scenario.parallel.comm_type = comm;
    const GradedRun grouped = run_possible(scenario);
    scenario.attention.kv_heads = 4;
    const auto plan = plan_unless_refused(scenario);
    ASSERT_TRUE(plan.has_value());
    RunInputs inputs = grouped.inputs;
    inputs.k = repeat_heads(inputs.k, 2);
    inputs.v = repeat_heads(inputs.v, 2);
    const Answer copied = walk(*plan, inputs);
    EXPECT_LE(relative_error(copied.out, grouped.answer.out), 1e-14);
    EXPECT_LE(relative_error(copied.dq, grouped.answer.dq), 1e-14);
    // A shared key sums the gradients of both its heads.
    Tensor sum = grouped.answer.dk;
    for (int64_t i = 0; i < sum.size(); ++i) {
      const int64_t row = i / 8, token = row / 2, head = row % 2, lane = i % 8;
      const int64_t first = (token * 4 + head * 2) * 8 + lane;
      sum.values[i] = copied.dk.values[first] + copied.dk.values[first + 8];
    }
    EXPECT_LE(relative_error(sum, grouped.answer.dk), 1e-14) << to_name(comm);
  }
}

}  // namespace
}  // namespace cpscope::tests
