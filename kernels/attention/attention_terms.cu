// Forward, dq with dbias, and dk with dv of one compute item with bias, ALiBi and dropout, or of
// latent attention (MLA's absorbed form, latent_dim), with these terms or without.
//
// The kernels of attention_fp32.cu with other cells: a logit gets its terms after scale and cap;
// dropped weights are drawn again wherever they are needed, from a counter made of sequence, head,
// query and key, so that no mask is stored and every split draws the same ones; where the items of
// a plan have drawn (dropout_mode "framework"), what they have kept is read instead. The row sum is
// that of all weights. Terms that are off cost one comparison.
//
// Latent attention reads V where K is, with head_dims up to 576. A thread has one sum for the
// gradient of both, so that 576 elements of 64 rows stay in registers, where two sums would not:
//   dk      dK += dS^T Q scale + P^T dO, the latter for the first elements of a row
//
// One instance serves every dtype: 16-bit inputs are widened as they are staged. Instances for 64
// and 128 elements are kept, because that of 256 takes registers for which fewer CTAs fit an SM.
//
// Grid, block and shared memory: as attention_fp32.cu. Registers: at most 255 a thread.
// Accuracy: plain fp32.
// Source: ALiBi, arXiv:2108.12409; Philox 4x32-10, Salmon et al. 2011 (SC11); DeepSeek-V2
// (arXiv:2405.04434), 2.1 and appendix C; FlashAttention-2 (arXiv:2307.08691).
#include "kernels/attention/attention_terms.h"
#include "kernels/attention/fp32_kernels.h"
#include "kernels/attention/row_terms.h"

namespace cpscope::kernels {
namespace device {
namespace {

/// A launch and its terms, as one parameter of a kernel.
template <class Launch>
struct WithTerms {
  Launch launch;
  ScoreTermRows terms;
};

template <class Launch>
WithTerms<Launch> with_terms(const Launch& launch) {
  return {launch, launch.shape.has_terms ? *launch.terms : ScoreTermRows{}};
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    forward_terms(const __grid_constant__ WithTerms<ForwardLaunch> given) {
  run_forward_tile<kLanes, AnyElement>(given.launch, RowTerms{given.terms});
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    query_gradient_terms(const __grid_constant__ WithTerms<BackwardLaunch> given) {
  run_query_gradient_tile<kLanes, AnyElement>(given.launch, RowTerms{given.terms});
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    key_gradient_terms(const __grid_constant__ WithTerms<BackwardLaunch> given) {
  run_key_gradient_tile<kLanes, AnyElement, kIsForLatent<kLanes>>(given.launch,
                                                                  RowTerms{given.terms});
}

}  // namespace
}  // namespace device

void launch_terms_forward(const ForwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(launch.shape, launch.query_tiles.num_work,
                           {device::forward_terms<64>, device::forward_terms<128>,
                            device::forward_terms<256>, device::forward_terms<kMaxLatentDim>},
                           device::with_terms(launch), stream);
}

void launch_terms_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(
      launch.shape, launch.query_tiles.num_work,
      {device::query_gradient_terms<64>, device::query_gradient_terms<128>,
       device::query_gradient_terms<256>, device::query_gradient_terms<kMaxLatentDim>},
      device::with_terms(launch), stream);
}

void launch_terms_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(
      launch.shape, launch.key_tiles.num_work,
      {device::key_gradient_terms<64>, device::key_gradient_terms<128>,
       device::key_gradient_terms<256>, device::key_gradient_terms<kMaxLatentDim>},
      device::with_terms(launch), stream);
}

}  // namespace cpscope::kernels
