// Adds up rows of several sources.
// Mapping: a warp a row, eight elements of the row a thread, so that all accesses are coalesced;
// rows of four shares are in flight at a time. Grid-stride over rows. Memory-bound: every share is
// read once, every sum written once.
// Accuracy: fp32 sums in the order of the shares, rounded once, to nearest, ties to even.
#include "kernels/device/launch.h"
#include "kernels/device/row_groups.h"
#include "kernels/rows/row_sum.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

using device::kAtOnce, device::load_values, device::store_values;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 4096;
static_assert(RowSum::kLanesAtOnce == kAtOnce);
constexpr int kAhead = 4;  // shares that are read before they are added

/// Adds one thread's part of a row.
__device__ __forceinline__ void add_shares(const RowSum& p, int64_t row, int32_t head, int32_t lane,
                                           float (&sums)[kAtOnce]) {
  bool has_sum = false;
  for (int32_t first = 0; first < p.num_shares; first += kAhead) {
    float values[kAhead][kAtOnce];
    bool is_there[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      is_there[i] = false;
      if (first + i >= p.num_shares) continue;
      const RowBlock& share = p.shares[first + i];
      const int32_t source = share.rows[row];
      is_there[i] = source >= 0;
      if (is_there[i])
        load_values(share.data, share.element,
                    source * share.row_stride + head * share.head_stride + lane, values[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!is_there[i]) continue;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) sums[j] = has_sum ? sums[j] + values[i][j] : values[i][j];
      has_sum = true;
    }
  }
}

__global__ void __launch_bounds__(kThreads) sum_rows(const __grid_constant__ RowSum p) {
  const int32_t groups = p.lanes / kAtOnce;  // in one head
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < p.num_rows;
       row += step) {
    for (int32_t i = threadIdx.x % 32; i < p.heads * groups; i += 32) {
      const int32_t head = i / groups, lane = i % groups * kAtOnce;
      float sums[kAtOnce] = {};
      add_shares(p, row, head, lane, sums);
      store_values(p.into.data, p.into.element,
                   row * p.into.row_stride + head * p.into.head_stride + lane, sums);
    }
  }
}

}  // namespace

void launch_row_sum(const RowSum& sum, Stream stream) {
  if (sum.num_rows == 0 || sum.heads == 0) return;
  const auto blocks = std::min<int64_t>((sum.num_rows + kWarps - 1) / kWarps, kMostBlocks);
  launch_kernel(sum_rows, static_cast<int32_t>(blocks), kThreads, 0, stream, sum);
}

}  // namespace cpscope::kernels
