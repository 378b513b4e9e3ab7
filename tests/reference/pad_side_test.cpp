// Padding before the valid tokens of a slot: the same numbers token by token as behind them.
#include "reference/dense_oracle.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/random_scenario.h"
#include "sim/scenario/scenario_file.h"
#include "tests/reference/tiny_batch.h"
#include "tests/support/graded_run.h"
#include "tests/support/walker_cases.h"

#include <cmath>
#include <optional>

#include <gtest/gtest.h>

namespace cpscope::tests {
namespace {

/// Sequences with padding of their own, one of them empty, with all that depends on positions.
Scenario padded_case(bool is_cross) {
  Scenario scenario = walker_case({61, 0, 30, 97}, 4);
  scenario.batch.slots = scenario.batch.kv_slots = {64, 5, 30, 110};
  if (is_cross) {
    scenario.batch.kv_lengths = {40, 9, 30, 120};
    scenario.batch.kv_slots = {41, 16, 30, 121};
    scenario.batch.self_attention = false;
  }
  scenario.attention.mask_type = MaskType::padding_causal_bottom_right;
  scenario.attention.softmax_type = SoftmaxType::learnable;
  scenario.attention.rope_theta = 1000.0;
  scenario.attention.window_left = 40;
  return scenario;
}

TEST(PadSide, LeavesTheOraclesNumbersAsTheyAre) {
  for (const SoftmaxType type : {SoftmaxType::vanilla, SoftmaxType::learnable}) {
    Scenario scenario = reference::make_scenario({5, 0, 7}, 2, 4);
    scenario.batch.kv_lengths = {6, 3, 7};
    scenario.attention.mask_type = MaskType::causal_bottom_right;
    scenario.attention.softmax_type = type;
    scenario.attention.rope_theta = 100.0;
    const reference::TinyBatch right = reference::make_tiny_batch(scenario);
    scenario.batch.pad_side = PadSide::left;
    const reference::TinyBatch left = reference::make_tiny_batch(scenario);
    ASSERT_NE(right.inputs.slots.sequences, left.inputs.slots.sequences);
    const Verdict a = reference::judge(right.scenario, right.inputs, {1, 1}, {}).value(),
                  b = reference::judge(left.scenario, left.inputs, {1, 1}, {}).value();
    EXPECT_TRUE(is_bitwise_equal(without_padding(a.exact, right.inputs.slots),
                                 without_padding(b.exact, left.inputs.slots)));
    EXPECT_TRUE(is_bitwise_equal(without_padding(a.plain, right.inputs.slots),
                                 without_padding(b.plain, left.inputs.slots)));
  }
}

TEST(PadSide, GivesTheSameNumbersOnBothSidesForEveryCommunicationTypeAndLayout) {
  for (const bool is_cross : {false, true}) {
    Scenario scenario = padded_case(is_cross);
    const GradedRun right = run_possible(scenario);
    const Answer expected = without_padding(right.answer, right.inputs.slots);
    scenario.batch.pad_side = PadSide::left;
    for (const CommType comm : kCommTypes) {
      for (const LayoutKind layout : kLayouts) {
        scenario.parallel.comm_type = comm;
        scenario.parallel.layout = layout;
        const GradedRun left = run_possible(scenario);
        EXPECT_TRUE(left.grade.passed) << describe(left);
        for (const SequenceSlot& slot : left.inputs.slots.sequences)
          ASSERT_EQ(slot.q_front, slot.q_slot - slot.q_valid);
        const Difference difference =
            compare(without_padding(left.answer, left.inputs.slots), expected);
        EXPECT_LE(difference.relative, 1e-12) << describe(difference) << print_scenario(scenario);
        EXPECT_EQ(without_padding(left.inputs.q, left.inputs.slots, Side::q).values,
                  without_padding(right.inputs.q, right.inputs.slots, Side::q).values);
        EXPECT_EQ(without_padding(left.inputs.v, left.inputs.slots, Side::kv).values,
                  without_padding(right.inputs.v, right.inputs.slots, Side::kv).values);
      }
    }
  }
}

TEST(PadSide, FillsTheRowsBeforeTheTokensWithNaNAndLeavesThemEmptyInTheAnswer) {
  Scenario scenario = walker_case({3, 4}, 2);
  scenario.batch.slots = scenario.batch.kv_slots = {8, 4};
  scenario.batch.pad_side = PadSide::left;
  const GradedRun run = run_possible(scenario);
  const int64_t q_row = 4 * 8, kv_row = 2 * 8;
  for (int64_t id = 0; id < 12; ++id) {
    const bool is_padding = id < 5;
    EXPECT_EQ(std::isnan(run.inputs.q.values[static_cast<size_t>(id * q_row)]), is_padding) << id;
    EXPECT_EQ(std::isnan(run.inputs.k.values[static_cast<size_t>(id * kv_row)]), is_padding) << id;
    EXPECT_EQ(run.answer.out.values[static_cast<size_t>(id * q_row)] == 0.0, is_padding) << id;
    EXPECT_EQ(run.answer.dk.values[static_cast<size_t>(id * kv_row)] == 0.0, is_padding) << id;
    EXPECT_EQ(std::isfinite(run.answer.lse.values[static_cast<size_t>(id * 4)]), !is_padding) << id;
  }
  // Position 0 is the first valid token: it sees itself alone, so its out is its own v.
  for (int64_t lane = 0; lane < 8; ++lane)
    EXPECT_NEAR(run.answer.out.values[static_cast<size_t>(5 * q_row + lane)],
                run.inputs.v.values[static_cast<size_t>(5 * kv_row + lane)], 1e-14);
}

TEST(PadSide, OfRandomScenariosIsAsTheOracleSays) {
  RandomSpace space;
  space.is_wide = true;
  int64_t runs = 0, padded = 0;
  for (uint64_t seed = 9000; seed < 9250; ++seed) {
    Scenario scenario = random_scenario(seed, space);
    scenario.batch.pad_side = PadSide::left;
    const std::optional<GradedRun> run = run_graded(scenario);
    if (!run) continue;
    ++runs;
    EXPECT_TRUE(run->grade.passed) << "seed " << seed << "\n" << describe(*run);
    for (const SequenceSlot& slot : run->inputs.slots.sequences)
      padded += slot.q_front > 0 && slot.q_valid > 0 ? 1 : 0;
  }
  EXPECT_GT(runs, 150);
  EXPECT_GT(padded, 100);
}

}  // namespace
}  // namespace cpscope::tests
