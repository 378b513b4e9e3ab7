#include "kernels/launch.h"
#include "kernels/row_statistics.h"
#include "kernels/softcap.h"

#include <cmath>
#include <cstdint>

// What the gradient kernels want to know of each row: lse in base 2, and delta = rowsum(d_out *
// out).
//
// Grid: one warp for each row of each head, 4 warps in a CTA. No shared memory. Bound by memory:
// out and d_out are read once. The lanes' sums meet in a fixed order: two runs give the same bits.
// Source: FlashAttention-2, Dao 2023 (arXiv:2307.08691), alg. 2, line 4.

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kThreads = 128;
constexpr int kRowsOfCta = kThreads / 32;

/// T: of d_out; Out: of out.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads)
    row_statistics(const __grid_constant__ BackwardLaunch launch) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t row =
      static_cast<int32_t>(blockIdx.x) * kRowsOfCta + static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t head = static_cast<int32_t>(blockIdx.y);
  if (row >= launch.shape.q_rows) return;
  const float lse = launch.lse[row * launch.lse_row_stride + head];
  const bool is_empty = lse == -INFINITY;
  const Out* out = static_cast<const Out*>(launch.out.data) + row * launch.out.row_stride +
                   head * launch.out.head_stride;
  const T* d_out = static_cast<const T*>(launch.d_out.data) + row * launch.d_out.row_stride +
                   head * launch.d_out.head_stride;
  float sum = 0.0f;
  // A row that sees nothing may hold anything: it is not read.
  if (!is_empty) {
    for (int32_t i = lane; i < launch.shape.head_dim_v; i += 32)
      sum += to_float(d_out[i]) * to_float(out[i]);
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane != 0) return;
  const int64_t place = int64_t{head} * launch.shape.q_rows + row;
  launch.log2_lse[place] = is_empty ? INFINITY : lse * kLog2E;
  launch.delta[place] = sum;
}

template <class T>
void launch_for(const BackwardLaunch& launch, Stream stream) {
  const Grid grid((launch.shape.q_rows + kRowsOfCta - 1) / kRowsOfCta, launch.shape.num_heads);
  if (grid.x == 0 || grid.y == 0) return;
  if (launch.out_element == Dtype::fp32) {
    launch_kernel(row_statistics<T, float>, grid, kThreads, 0, stream, launch);
  } else {
    launch_kernel(row_statistics<T, T>, grid, kThreads, 0, stream, launch);
  }
}

}  // namespace

void launch_portable_row_statistics(const BackwardLaunch& launch, Stream stream) {
  if (launch.shape.dtype == Dtype::bf16) return launch_for<Bf16>(launch, stream);
  if (launch.shape.dtype == Dtype::fp16) return launch_for<Fp16>(launch, stream);
  launch_for<float>(launch, stream);
}

}  // namespace cpscope::kernels
