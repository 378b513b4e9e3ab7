// Limits of the Hopper forward's running softmax, in one warp on the emulator.
#include "kernels/device/launch.h"
#include "kernels/emulator/settings.h"
#include "kernels/hopper/hopper_forward_kernel.h"

#include <cmath>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

using Budget = device::ForwardBudget<Fp16, 64, 64, 3, 128, 2, 2, 2, true, false, 32, 160, false>;

constexpr float kReference = 3.0f;

/// The weight of a logit at the limit of a row whose reference is kReference and whose sum of
/// weights is `sum`.
double weight_at_limit(double sum) {
  device::ForwardParams p{};
  p.logit_scale = 0.25f;
  double weight = 0.0;
  emulator::run_grid({1, 1, 1}, 32, 0, [&] {
    device::RowState<Budget> state;
    for (const int r : {0, 1}) {
      state.reference[r] = state.limit[r] = kReference;
      state.sum[r] = static_cast<float>(sum / 4.0);  // one thread lane's part
    }
    state.raise_limits(p);
    if (threadIdx.x == 0)
      weight = std::exp((static_cast<double>(state.limit[1]) - kReference) * p.logit_scale);
  });
  return weight;
}

TEST(OnlineSoftmax, LeavesSumsAloneUntilAWeightIsAnEighthOfThem) {
  EXPECT_NEAR(weight_at_limit(256.0), 32.0, 1e-4);
  EXPECT_NEAR(weight_at_limit(80'000.0), 10'000.0, 0.1);
}

TEST(OnlineSoftmax, LeavesNoLargerWeightWhereOneKeyOutweighsAllOthers) {
  EXPECT_EQ(weight_at_limit(1.0), 1.0);
  EXPECT_EQ(weight_at_limit(8.0), 1.0);
  EXPECT_EQ(weight_at_limit(0.0), 1.0);
}

TEST(OnlineSoftmax, KeepsWeightsWithinFp16HoweverManyKeysThereAre) {
  constexpr double kLargestFp16 = 65504.0;
  for (const double sum : {5e5, 1e6, 1e9, 1e30}) {
    EXPECT_LT(weight_at_limit(sum), kLargestFp16) << sum;
    EXPECT_GT(weight_at_limit(sum), 32'000.0) << sum;
  }
}

}  // namespace
}  // namespace cpscope::kernels
