// The 16-bit forward that runs on any tensor core, on the emulator or a GPU, against the dense
// reference. No kernel may read rows that no query sees, write outside its rows, or lose a pair.
#include "kernels/attention/row_offsets.h"
#include "kernels/dispatch/attention_dispatch.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/attention_reference.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

using kernels::Generation;

#ifdef CPSCOPE_EMULATED
constexpr uint64_t kForwardCases = 12;  // for each pair of head_dims
#else
constexpr uint64_t kForwardCases = 200;
#endif

class PortableForward : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_device(); !missing.empty())
      GTEST_SKIP() << "requires gpu: " << missing;
  }

  static void check(const AttentionCase& item, double sharpness = 1.0) {
    const AttentionInputs inputs = draw_inputs(item, sharpness);
    const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
    EXPECT_EQ(judge_forward(item, inputs, answer), "") << describe(item);
  }

  static void check_random(uint64_t first_seed, CaseSpace space) {
    for (uint64_t seed = first_seed; seed < first_seed + kForwardCases && !HasFailure(); ++seed) {
#ifdef CPSCOPE_EMULATED
      kernels::emulator::settings().seed = seed;
#endif
      check(random_case(seed, space));
    }
  }
};

TEST_F(PortableForward, HoldsSmallHeads) {
  check_random(100, {.dims = {{8, 8}, {40, 40}, {64, 64}, {64, 8}, {1, 3}}});
}

TEST_F(PortableForward, HoldsHeadsUpTo128) {
  check_random(200, {.dims = {{80, 80}, {128, 128}, {64, 128}, {100, 36}}});
}

TEST_F(PortableForward, HoldsWideQueriesWithNarrowerValues) {
  check_random(300, {.dims = {{192, 128}, {192, 64}, {136, 128}}, .most_rows = 150});
}

TEST_F(PortableForward, HoldsHeadsUpTo256) {
  check_random(400, {.dims = {{256, 256}, {64, 256}, {200, 144}}, .most_rows = 120});
}

TEST_F(PortableForward, WalksWholeTilesWithoutAMask) {
  check(full_case(Dtype::bf16, 256, 128, 128));
  check(full_case(Dtype::fp16, 192, 64, 64));
  check(causal_case(Dtype::bf16, 300, 128, 128));
}

TEST_F(PortableForward, KeepsItsErrorWhereOneKeyDominates) {
  check(causal_case(Dtype::bf16, 130, 64, 64), 10.0);
  check(causal_case(Dtype::fp16, 130, 128, 128), 10.0);
}

TEST_F(PortableForward, KeepsItsErrorOverHundredsOfTiles) {
  check(scattered_case(Dtype::bf16, 400, 64), 3.0);
}

TEST_F(PortableForward, TakesScalesThatAreNotPositive) {
  for (const float scale : {-0.25f, 0.0f}) {
    AttentionCase item = causal_case(Dtype::bf16, 100, 40, 40);
    item.shape.scale = scale;
    check(item);
    item.shape.softcap = 2.0f;
    check(item);
  }
}

TEST_F(PortableForward, WritesRowsWithoutRuns) {
  AttentionCase item = full_case(Dtype::bf16, 200, 64, 64);
  item.slices = {{150, 160, 20, 30, -200, 200}};
  check(item);
  item.slices.clear();
  check(item);
}

TEST_F(PortableForward, KeepsTheNanOfWhatItSees) {
  AttentionCase item = causal_case(Dtype::bf16, 80, 64, 64);
  AttentionInputs inputs = draw_inputs(item);
  inputs.k.at(50, 0)[7] = std::numeric_limits<double>::quiet_NaN();
  const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
  for (int32_t q = 0; q < item.shape.q_rows; ++q) {
    EXPECT_EQ(std::isnan(answer.out.at(q, 0)[0]), q >= 50) << "row " << q;
    EXPECT_EQ(std::isnan(answer.lse[static_cast<size_t>(q)]), q >= 50) << "row " << q;
  }
  EXPECT_TRUE(std::isnan(answer.max_logit[0]));
}

TEST_F(PortableForward, GivesTheSameBitsInAnyOrderOfThreads) {
  const AttentionCase item = random_case(500, {.dims = {{128, 128}}, .most_rows = 250});
  const AttentionInputs inputs = draw_inputs(item);
  const ForwardAnswer first = run_forward(Generation::portable, item, inputs);
  for (uint64_t seed = 2; seed < 4; ++seed) {
#ifdef CPSCOPE_EMULATED
    kernels::emulator::settings().seed = seed;
#endif
    const ForwardAnswer again = run_forward(Generation::portable, item, inputs);
    EXPECT_EQ(again.out.values, first.out.values);
    EXPECT_EQ(again.lse, first.lse);
    EXPECT_EQ(again.max_logit, first.max_logit);
  }
}

TEST_F(PortableForward, OffsetsAreLseOverTheScaleAndDeltaInThreeParts) {
  AttentionCase item = random_case(601, {.dims = {{64, 128}}, .most_rows = 90});
  item.slices = {{0, item.shape.q_rows - 5, 0, item.shape.kv_rows, -1000, 1000}};
  for (const float scale : {0.125f, -3.0f, 0.0f}) {
    item.shape.scale = scale;
    const AttentionInputs inputs = draw_inputs(item);
    const RowStatistics statistics =
        run_row_statistics(item, inputs, evaluate_forward(item, inputs, Precision::exact));
    const size_t rows = static_cast<size_t>(item.shape.q_rows);
    for (size_t of_head = 0; of_head < statistics.log2_lse.size(); ++of_head) {
      const size_t place = of_head / rows * 2 * rows + of_head % rows;
      const double* of_lse = &statistics.offsets[place * kernels::kOffsetLanes];
      const double* of_delta = of_lse + rows * kernels::kOffsetLanes;
      for (int i = kernels::kOffsetParts; i < kernels::kOffsetLanes; ++i)
        EXPECT_EQ(std::make_pair(of_lse[i], of_delta[i]), std::make_pair(0.0, 0.0));
      EXPECT_EQ(of_delta[0] + of_delta[1] + of_delta[2], -statistics.delta[of_head]);
      // The number that a product adds, times the later factor.
      const double log2_lse =
          -(of_lse[0] + of_lse[1] + of_lse[2]) * kernels::offset_factors(item.shape).logit_log2;
      if (std::isinf(statistics.log2_lse[of_head])) {
        EXPECT_EQ(log2_lse, statistics.log2_lse[of_head]);
      } else {
        EXPECT_NEAR(log2_lse, statistics.log2_lse[of_head],
                    2e-7 * std::abs(statistics.log2_lse[of_head]));
      }
    }
  }
}

TEST_F(PortableForward, RowStatisticsFollowTheWholeRow) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    const AttentionCase item =
        random_case(600, {.dtypes = {dtype}, .dims = {{40, 72}}, .most_rows = 60});
    const AttentionInputs inputs = draw_inputs(item);
    const ForwardAnswer forward = evaluate_forward(item, inputs, Precision::exact);
    const std::vector<double> delta = evaluate_delta(inputs, forward);
    const RowStatistics statistics = run_row_statistics(item, inputs, forward);
    for (int32_t q = 0; q < item.shape.q_rows; ++q) {
      for (int32_t head = 0; head < item.shape.num_heads; ++head) {
        const size_t in = static_cast<size_t>(q * item.shape.num_heads + head);
        const size_t to = static_cast<size_t>(head * item.shape.q_rows + q);
        if (std::isinf(forward.lse[in])) {
          EXPECT_EQ(statistics.log2_lse[to], std::numeric_limits<double>::infinity());
          EXPECT_EQ(statistics.delta[to], 0.0);
        } else {
          EXPECT_NEAR(statistics.log2_lse[to], forward.lse[in] / std::log(2.0), 1e-5);
          EXPECT_NEAR(statistics.delta[to], delta[in], 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpscope::tests
