// Forward, dq and dk of one compute item of latent attention (MLA's absorbed form, latent_dim).
//
// The kernels of attention_fp32.cu for head_dims up to 576, with inputs of any dtype, which are
// widened as they are staged. V is read where K is. A thread has one sum for the gradient of both:
//   dk      dK += dS^T Q scale + P^T dO, the latter for the first elements of a row
// so that 576 elements of 64 rows stay in registers, where two sums would not.
//
// Grid, block and shared memory: as attention_fp32.cu, one CTA an SM. Registers: at most 255 a
// thread. Accuracy: plain fp32.
// Source: DeepSeek-V2 (arXiv:2405.04434), 2.1 and appendix C; FlashAttention-2 (arXiv:2307.08691).
#include "kernels/attention/attention_latent.h"
#include "kernels/attention/fp32_kernels.h"

namespace cpscope::kernels {
namespace device {
namespace {

template <class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    forward_latent(const __grid_constant__ ForwardLaunch launch) {
  run_forward_tile<kMaxLatentDim, T>(launch, NoTerms{});
}

template <class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    query_gradient_latent(const __grid_constant__ BackwardLaunch launch) {
  run_query_gradient_tile<kMaxLatentDim, T>(launch, NoTerms{});
}

template <class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    key_gradient_latent(const __grid_constant__ BackwardLaunch launch) {
  run_key_gradient_tile<kMaxLatentDim, T, true>(launch, NoTerms{});
}

template <class Launch>
void launch_tiles(void (*kernel)(Launch), int32_t num_work, const Launch& launch, Stream stream) {
  if (num_work > 0) launch_kernel(kernel, num_work, kFp32Threads, kFp32SharedBytes, stream, launch);
}

}  // namespace
}  // namespace device

void launch_latent_forward(const ForwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    device::launch_tiles(device::forward_latent<decltype(element)>, launch.query_tiles.num_work,
                         launch, stream);
  });
}

void launch_latent_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    device::launch_tiles(device::query_gradient_latent<decltype(element)>,
                         launch.query_tiles.num_work, launch, stream);
  });
}

void launch_latent_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    device::launch_tiles(device::key_gradient_latent<decltype(element)>, launch.key_tiles.num_work,
                         launch, stream);
  });
}

}  // namespace cpscope::kernels
