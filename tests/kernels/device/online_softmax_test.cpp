// The running softmaxes of the Hopper forward, in one warp on the emulator.
#include "kernels/device/launch.h"
#include "kernels/emulator/settings.h"
#include "kernels/hopper/hopper_forward_kernel.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace cpscope::kernels {
namespace {

using Budget = device::ForwardBudget<Fp16, 64, 64, 3, 128, 2, 2, 2, true, false, 32, 160>;

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

// ---- weights that become E4M3 codes -------------------------------------------------------------

using Codes = device::ForwardBudget<E4m3, 128, 128, 3, 96, 3, 3, 1, false, false, 32, 160>;

constexpr int kRows = 16;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// What the softmax makes of a warp's 16 rows and `num_tiles` tiles of 96 keys.
struct CodeSums {
  double lse[kRows];
  double exact_lse[kRows];
  double largest_logit[kRows];
  double exact_largest[kRows];
  double lost[kRows];        // |sum of weights as P V sees them / sum of the softmax - 1|
  double top_weight[kRows];  // of the row's largest logit, relative to the last reference
  double most_weight = 0.0;
  std::vector<int> moved;  // tiles in which references may have moved
  std::vector<int> again;  // tiles whose logits were needed again
};

/// logit: of (row, key), already scaled.
CodeSums sum_codes(int num_tiles, const std::function<double(int row, int key)>& logit,
                   bool is_masked = false) {
  constexpr float kScale = 0.125f;
  CodeSums result;
  device::ForwardParams p{};
  p.logit_log2 = kScale * device::kLog2E;
  const auto raw = [&](int row, int key) { return static_cast<float>(logit(row, key) / kScale); };
  for (int row = 0; row < kRows; ++row) {
    double sum = 0.0, most = kMinusInfinity;
    for (int key = 0; key < 96 * num_tiles; ++key)
      most = std::max(most, double{raw(row, key)} * double{kScale});
    for (int key = 0; key < 96 * num_tiles; ++key)
      sum +=
          std::exp(double{raw(row, key)} * double{kScale} - (most == kMinusInfinity ? 0.0 : most));
    result.exact_largest[row] = most;
    result.exact_lse[row] = most == kMinusInfinity ? most : most + std::log(sum);
  }
  emulator::run_grid({1, 1, 1}, 32, 0, [&] {
    device::CodeRows<Codes> state;
    Codes::Walk walk{device::ScheduledItem{}};
    walk.is_masked = is_masked ? 1 : 0;
    const int lane = static_cast<int>(threadIdx.x);
    double added[2] = {0.0, 0.0};  // of this thread's weights, as P V adds them up
    for (int tile = 0; tile < num_tiles; ++tile) {
      float weights[Codes::kWalked / 2], shrink[2] = {1.0f, 1.0f}, part[2];
      const float before[2] = {state.subtracted[0], state.subtracted[1]};
      const auto fetch = [&] {
        for (int i = 0; i < Codes::kWalked / 2; ++i)
          weights[i] = raw(lane / 4 + i / 2 % 2 * 8, 96 * tile + i / 4 * 8 + lane % 4 * 2 + i % 2);
      };
      // As ForwardConsumer does.
      fetch();
      bool is_lost = tile == 0;
      if (tile > 0) {
        state.begin_rows(p, weights, walk);
        state.weigh(p, weights, part);
        is_lost = device::any_in_warp(state.is_lost());
        if (is_lost && lane == 0) result.again.push_back(tile);
      }
      if (is_lost) {
        fetch();
        state.take(p, weights);
        for (const int r : {0, 1}) shrink[r] = std::exp2(before[r] - state.subtracted[r]);
      } else if (device::any_in_warp(state.is_outgrown())) {
        state.scale_down(weights, part, shrink);
        if (lane == 0) result.moved.push_back(tile);
      } else {
        for (const int r : {0, 1}) state.sum[r] += part[r];
      }
      for (int r = 0; r < 2; ++r) {
        added[r] *= double{shrink[r]};
        for (int i = 2 * r; i < Codes::kWalked / 2; i += 4) {
          for (const float weight : {weights[i], weights[i + 1]}) {
            added[r] += double{weight};
            result.most_weight = std::max(result.most_weight, double{weight});
          }
        }
      }
    }
    for (int r = 0; r < 2; ++r) {
      float sum = state.sum[r], seen = static_cast<float>(added[r]);
      float largest = state.largest_logit(p, r);
      for (const int step : {1, 2}) {
        sum += device::shuffle_xor(sum, step);
        seen += device::shuffle_xor(seen, step);
        largest = std::max(largest, device::shuffle_xor(largest, step));
      }
      const int row = lane / 4 + 8 * r;
      const double reference = double{state.subtracted[r]} * std::log(2.0);
      result.lse[row] = sum == 0.0f ? kMinusInfinity : reference + std::log(double{sum});
      result.lost[row] = sum == 0.0f ? 0.0 : std::abs(double{seen} / double{sum} - 1.0);
      result.largest_logit[row] = double{largest} * double{kScale};
      result.top_weight[row] = std::exp(result.exact_largest[row] - reference);
    }
  });
  return result;
}

/// Whether weights, their sums and what is told of them belong together.
void expect_exact(const CodeSums& sums) {
  EXPECT_LE(sums.most_weight, 464.0);  // what E4M3 rounds to 448
  for (int row = 0; row < kRows; ++row) {
    if (sums.exact_lse[row] == kMinusInfinity) {
      EXPECT_EQ(sums.lse[row], kMinusInfinity) << row;
      continue;
    }
    EXPECT_NEAR(sums.lse[row], sums.exact_lse[row], 1e-4) << row;
    EXPECT_NEAR(sums.largest_logit[row], sums.exact_largest[row], 1e-4) << row;
    EXPECT_LT(sums.lost[row], 1e-5) << row;
    EXPECT_GE(sums.top_weight[row], 448.0 / 4.0 * 0.999) << row;
    EXPECT_LE(sums.top_weight[row], 464.0 * 1.001) << row;
  }
}

TEST(CodeSoftmax, RescalesInFewTilesOfRandomLogits) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> logits(size_t{kRows} * 96 * 60);
  for (double& each : logits) each = normal(random);
  const CodeSums sums =
      sum_codes(60, [&](int row, int key) { return logits[size_t(row) * 96 * 60 + size_t(key)]; });
  expect_exact(sums);
  // References at the largest logit would move in about 16 + 16 ln(60 / 16) = 37 of 60 tiles.
  EXPECT_LE(sums.moved.size(), 10U);
  EXPECT_LE(sums.moved.back(), 40);
}

TEST(CodeSoftmax, KeepsTheWholeRangeOfWeightsWhereOneKeyOutweighsAllOthers) {
  const CodeSums sums = sum_codes(
      8, [](int row, int key) { return key == 5 ? 12.0 : 0.01 * ((row + 7 * key) % 100); });
  expect_exact(sums);
  for (const double weight : sums.top_weight) EXPECT_NEAR(weight, 448.0, 0.1);
}

TEST(CodeSoftmax, NeverRescalesARowOfEvenKeys) {
  const CodeSums sums = sum_codes(12, [](int row, int) { return 0.5 * row - 4.0; });
  expect_exact(sums);
  EXPECT_TRUE(sums.moved.empty());
}

TEST(CodeSoftmax, ScalesWeightsDownWhereEachTileHasALargerLogit) {
  const CodeSums sums = sum_codes(9, [](int row, int key) {
    return 3.0 * (key / 96) + 0.02 * ((row * 31 + key) % 96);  // more than the slack a tile
  });
  expect_exact(sums);
  EXPECT_TRUE(sums.again.empty());
  EXPECT_EQ(sums.moved.size(), 8U);
}

TEST(CodeSoftmax, MakesWeightsAgainIfSomeAreTooLargeToScaleOthersDown) {
  // 200 powers of e are beyond fp32; 60 are not, but small weights are lost beside such a one.
  for (const double growth : {60.0, 200.0}) {
    const CodeSums sums = sum_codes(6, [&](int row, int key) {
      return (key >= 96 * 3 && row == 5 ? growth : 0.0) + 0.01 * ((row + key) % 50);
    });
    expect_exact(sums);
    EXPECT_EQ(sums.again, std::vector<int>{3}) << growth;
  }
}

TEST(CodeSoftmax, TakesRowsWhoseFirstKeyComesLater) {
  for (const bool is_masked : {true, false}) {
    const CodeSums sums = sum_codes(
        7,
        [](int row, int key) {
          if (row == 15 || key / 96 < row / 4) return kMinusInfinity;  // row 15 sees no key at all
          return -30.0 - row + 0.01 * (key % 90);
        },
        is_masked);
    expect_exact(sums);
    // The masks of masked tiles say where rows begin.
    EXPECT_EQ(sums.again, is_masked ? std::vector<int>{} : (std::vector<int>{1, 2, 3}));
  }
}

}  // namespace
}  // namespace cpscope::kernels
