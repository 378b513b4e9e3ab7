// The fp32 forward, on the emulator or a GPU, against the dense reference. Its gradients are tested
// in gradient_test.cpp.
#include "kernels/dispatch/attention_dispatch.h"
#include "tests/kernels/attention/attention_cases.h"
#include "tests/kernels/attention/attention_device.h"
#include "tests/kernels/attention/attention_reference.h"

#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/settings.h"
#endif

namespace cpscope::tests {
namespace {

using kernels::Generation;

class Fp32Forward : public ::testing::Test {
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
};

TEST_F(Fp32Forward, IsThatOfTheDefinition) {
  const CaseSpace space{.dtypes = {Dtype::fp32},
                        .dims = {{8, 8}, {40, 64}, {128, 96}, {192, 128}, {256, 200}},
                        .most_rows = 200};
  for (uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) check(random_case(seed, space));
}

TEST_F(Fp32Forward, WalksWholeTilesWithoutAMask) {
  check(full_case(Dtype::fp32, 192, 64, 64));
  check(causal_case(Dtype::fp32, 300, 128, 128));
}

TEST_F(Fp32Forward, KeepsItsErrorWhereOneKeyDominates) {
  check(causal_case(Dtype::fp32, 130, 64, 64), 10.0);
}

TEST_F(Fp32Forward, WritesRowsWithoutRuns) {
  AttentionCase item = full_case(Dtype::fp32, 200, 64, 64);
  item.slices = {{150, 160, 20, 30, -200, 200}};
  check(item);
  item.slices.clear();
  check(item);
}

TEST_F(Fp32Forward, KeepsTheNanOfWhatItSees) {
  AttentionCase item = causal_case(Dtype::fp32, 80, 64, 64);
  AttentionInputs inputs = draw_inputs(item);
  inputs.k.at(50, 0)[7] = std::numeric_limits<double>::quiet_NaN();
  const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
  for (int32_t q = 0; q < item.shape.q_rows; ++q) {
    EXPECT_EQ(std::isnan(answer.out.at(q, 0)[0]), q >= 50) << "row " << q;
    EXPECT_EQ(std::isnan(answer.lse[static_cast<size_t>(q)]), q >= 50) << "row " << q;
  }
  EXPECT_TRUE(std::isnan(answer.max_logit[0]));
}

#ifdef CPSCOPE_EMULATED

TEST_F(Fp32Forward, FailsItsTestsWithAPlantedFault) {
  using kernels::emulator::Fault;
  using kernels::emulator::settings;
  const AttentionCase item = causal_case(Dtype::fp32, 150, 40, 64);
  const AttentionInputs inputs = draw_inputs(item);
  for (const Fault fault : {Fault::skip_barrier, Fault::skip_copy_wait, Fault::skip_zero_fill,
                            Fault::copy_invalid_rows}) {
    bool is_seen = false;
    for (uint64_t seed = 1; seed <= 5 && !is_seen; ++seed) {
      settings() = {.seed = seed, .fault = fault};
      try {
        const ForwardAnswer answer = run_forward(Generation::portable, item, inputs);
        is_seen = !judge_forward(item, inputs, answer).empty();
      } catch (const kernels::DeviceError&) {
        is_seen = true;
      }
    }
    settings() = {};
    EXPECT_TRUE(is_seen) << "fault " << static_cast<int>(fault);
  }
}

#endif

}  // namespace
}  // namespace cpscope::tests
