// Forward, dq, and dk with dv of one compute item, inputs in fp32.
//
// A CTA takes one work item: 64 stationary rows of one head. The other side is streamed in tiles of
// 64 rows; a product is staged through shared memory 32 or 64 head_dim elements at a time, so that
// one kernel serves all head_dims, and each thread sums 4 x 4 cells of a tile in registers:
//   forward S = Q K^T, online softmax, O = (O rescaled) + P V
//   dq S = Q K^T, dP = dO V^T, dS = P (dP - delta), dQ += dS K
//   dk, dv the same transposed: dV += P^T dO, dK += dS^T Q
// Every stationary row is written by one CTA, in a fixed order.
//
// Grid: one CTA per work item, longest first. Block: 256 threads. Shared memory: 35 KB. Registers:
// at most 128 a thread up to head_dim 128, 255 above.
// Accuracy: plain fp32; exp and tanh are the accurate library functions.
// Source: Milakov & Gimelshein 2018 (arXiv:1805.02867), alg. 3; FlashAttention-2
// (arXiv:2307.08691).
#include "kernels/attention/attention_fp32.h"
#include "kernels/attention/fp32_kernels.h"

namespace cpscope::kernels {
namespace device {
namespace {

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    forward_fp32(const __grid_constant__ ForwardLaunch launch) {
  run_forward_tile<kLanes, float>(launch, NoTerms{});
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    query_gradient_fp32(const __grid_constant__ BackwardLaunch launch) {
  run_query_gradient_tile<kLanes, float>(launch, NoTerms{});
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    key_gradient_fp32(const __grid_constant__ BackwardLaunch launch) {
  run_key_gradient_tile<kLanes, float>(launch, NoTerms{});
}

}  // namespace
}  // namespace device

TileShape fp32_tile(const AttentionShape& /*shape*/) {
  return {device::kFp32Rows, device::kFp32Rows};
}

void launch_fp32_forward(const ForwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(
      launch.shape, launch.query_tiles.num_work,
      {device::forward_fp32<64>, device::forward_fp32<128>, device::forward_fp32<256>}, launch,
      stream);
}

void launch_fp32_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(launch.shape, launch.query_tiles.num_work,
                           {device::query_gradient_fp32<64>, device::query_gradient_fp32<128>,
                            device::query_gradient_fp32<256>},
                           launch, stream);
}

void launch_fp32_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(launch.shape, launch.key_tiles.num_work,
                           {device::key_gradient_fp32<64>, device::key_gradient_fp32<128>,
                            device::key_gradient_fp32<256>},
                           launch, stream);
}

}  // namespace cpscope::kernels
