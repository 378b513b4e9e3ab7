// Forward, dq with dbias, and dk with dv of one compute item with bias, ALiBi and dropout.
//
// The kernels of attention_fp32.cu with other cells: 16-bit inputs are widened as they are staged;
// a logit gets its terms after scale and cap; dropped weights are drawn again wherever they are
// needed, from a counter made of sequence, head, query and key, so that no mask is stored and every
// split draws the same ones; where the items of a plan have drawn (dropout_mode "framework"), what
// they have kept is read instead. The row sum is that of all weights.
//
// Grid, block and shared memory: as attention_fp32.cu. Registers: at most 255 a thread.
// Accuracy: plain fp32.
// Source: ALiBi, arXiv:2108.12409; Philox 4x32-10, Salmon et al. 2011 (SC11).
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

template <int kLanes, class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    forward_terms(const __grid_constant__ WithTerms<ForwardLaunch> given) {
  run_forward_tile<kLanes, T>(given.launch, RowTerms{given.terms});
}

template <int kLanes, class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    query_gradient_terms(const __grid_constant__ WithTerms<BackwardLaunch> given) {
  run_query_gradient_tile<kLanes, T>(given.launch, RowTerms{given.terms});
}

template <int kLanes, class T>
__global__ void __launch_bounds__(kFp32Threads, 1)
    key_gradient_terms(const __grid_constant__ WithTerms<BackwardLaunch> given) {
  run_key_gradient_tile<kLanes, T, kIsForLatent<kLanes>>(given.launch, RowTerms{given.terms});
}

}  // namespace
}  // namespace device

void launch_terms_forward(const ForwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    using T = decltype(element);
    device::launch_for_lanes(
        launch.shape, launch.query_tiles.num_work,
        {device::forward_terms<64, T>, device::forward_terms<128, T>, device::forward_terms<256, T>,
         device::forward_terms<kMaxLatentDim, T>},
        device::WithTerms<ForwardLaunch>{launch, *launch.terms}, stream);
  });
}

void launch_terms_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    using T = decltype(element);
    device::launch_for_lanes(
        launch.shape, launch.query_tiles.num_work,
        {device::query_gradient_terms<64, T>, device::query_gradient_terms<128, T>,
         device::query_gradient_terms<256, T>, device::query_gradient_terms<kMaxLatentDim, T>},
        device::WithTerms<BackwardLaunch>{launch, *launch.terms}, stream);
  });
}

void launch_terms_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_as(launch.shape.dtype, [&](auto element) {
    using T = decltype(element);
    device::launch_for_lanes(
        launch.shape, launch.key_tiles.num_work,
        {device::key_gradient_terms<64, T>, device::key_gradient_terms<128, T>,
         device::key_gradient_terms<256, T>, device::key_gradient_terms<kMaxLatentDim, T>},
        device::WithTerms<BackwardLaunch>{launch, *launch.terms}, stream);
  });
}

}  // namespace cpscope::kernels
