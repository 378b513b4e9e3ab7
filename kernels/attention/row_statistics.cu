#include "kernels/attention/row_offsets.h"
#include "kernels/attention/row_statistics.h"
#include "kernels/attention/softcap.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_groups.h"

#include <cmath>
#include <cstdint>

// Row statistics for the gradient kernels: lse in base 2 and delta = rowsum(d_out * out), computed
// here or by the rank that has the rows' out, and both as offsets for kernels that read them in
// this form. It also clears the turns of the next kernel, which saves a launch.
//
// Grid: 4 warps in a CTA, each with 32 rows of a head. 8 thread lanes take a row, 16 bytes each at
// a time, and every lane keeps one row's results, so that all accesses are to adjacent addresses.
// No shared memory. Memory-bound: out and d_out are read once. The partial sums of a row's lanes
// are added in a fixed order: two runs give the same bits.
// Source: FlashAttention-2, Dao 2023 (arXiv:2307.08691), alg. 2, line 4.

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kThreads = 128;
constexpr int kRowsOfWarp = 32, kRowsOfCta = kThreads / 32 * kRowsOfWarp;
constexpr int kLanesOfRow = 8, kRowsAtOnce = 32 / kLanesOfRow;

struct StatisticsParams {
  BackwardLaunch launch;
  // From log2_lse and delta to the numbers that are added to products.
  float lse_factor, delta_factor;
};

/// Stores the parts of a number. Each part is the rounded remainder of those before it; of infinity
/// the first part is all.
__device__ __forceinline__ void store_offset(float value, Bf16* to) {
  float parts[kAtOnce] = {};
  static_assert(kOffsetLanes == kAtOnce);
#pragma unroll
  for (int i = 0; i < kOffsetParts; ++i) {
    parts[i] = to_float(from_float<Bf16>(value));
    value = fabsf(parts[i]) == INFINITY ? 0.0f : value - parts[i];
  }
  store_values(to, Dtype::bf16, 0, parts);
}

/// A thread lane's part of a row's sum.
__device__ __forceinline__ float multiply(const BackwardLaunch& launch, int32_t row, int32_t head,
                                          int32_t lane_of_row) {
  const int64_t out = row * launch.out.row_stride + head * launch.out.head_stride;
  const int64_t d_out = row * launch.d_out.row_stride + head * launch.d_out.head_stride;
  float sum = 0.0f;
  for (int32_t first = lane_of_row * kAtOnce; first < launch.shape.head_dim_v;
       first += kLanesOfRow * kAtOnce) {
    float a[kAtOnce], b[kAtOnce];
    load_values(launch.out.data, launch.out_element, out + first, a);
    load_values(launch.d_out.data, launch.shape.dtype, d_out + first, b);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < launch.shape.head_dim_v) sum += a[i] * b[i];
    }
  }
  return sum * launch.d_out_descale;
}

/// A thread lane's part of a row's delta.
__device__ __forceinline__ float own_part(const BackwardLaunch& launch, int32_t row, int32_t head,
                                          int32_t lane_of_row) {
  if (launch.sent_delta == nullptr) return multiply(launch, row, head, lane_of_row);
  return lane_of_row == 0 ? launch.sent_delta[row * launch.lse_row_stride + head] : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    row_statistics(const __grid_constant__ StatisticsParams params) {
  const BackwardLaunch& launch = params.launch;
  const int64_t cta = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  for (int64_t i = cta * kThreads + threadIdx.x; i < launch.num_turns_taken;
       i += int64_t{kThreads} * gridDim.x * gridDim.y)
    launch.turns_taken[i] = 0;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t lane_of_row = lane % kLanesOfRow;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t first_row =
      static_cast<int32_t>(blockIdx.x * kRowsOfCta + threadIdx.x / 32 * kRowsOfWarp) +
      lane / kLanesOfRow;
  const auto row_of = [&](int pass) { return first_row + pass * kRowsAtOnce; };
  float own_lse = -INFINITY, own_delta = 0.0f;
#pragma unroll
  for (int pass = 0; pass < kRowsOfWarp / kRowsAtOnce; ++pass) {
    const int32_t row = row_of(pass);
    const float lse =
        row < launch.shape.q_rows ? launch.lse[row * launch.lse_row_stride + head] : -INFINITY;
    // A row without a visible key may hold anything, so it is not read.
    float sum = lse == -INFINITY ? 0.0f : own_part(launch, row, head, lane_of_row);
#pragma unroll
    for (int mask = kLanesOfRow / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane_of_row == pass) {
      own_lse = lse;
      own_delta = sum;
    }
  }
  const int32_t row = row_of(lane_of_row);
  if (row >= launch.shape.q_rows) return;
  const float log2_lse = own_lse == -INFINITY ? INFINITY : own_lse * kLog2E;
  const int64_t place = int64_t{head} * launch.shape.q_rows + row;
  launch.log2_lse[place] = log2_lse;
  launch.delta[place] = own_delta;
  if (launch.offsets == nullptr) return;
  const int64_t of_lse = int64_t{2} * head * launch.shape.q_rows + row,
                of_delta = of_lse + launch.shape.q_rows;
  store_offset(log2_lse * params.lse_factor, launch.offsets + of_lse * kOffsetLanes);
  store_offset(own_delta * params.delta_factor, launch.offsets + of_delta * kOffsetLanes);
}

}  // namespace

void launch_portable_row_statistics(const BackwardLaunch& launch, Stream stream) {
  const Grid grid((launch.shape.q_rows + kRowsOfCta - 1) / kRowsOfCta, launch.shape.num_heads);
  if (grid.x == 0 || grid.y == 0) return;
  const OffsetFactors factors = offset_factors(launch.shape, launch.fp8);
  launch_kernel(row_statistics, grid, kThreads, 0, stream,
                StatisticsParams{launch, -1.0f / factors.logit_log2, -1.0f / factors.d_p});
}

}  // namespace cpscope::kernels
