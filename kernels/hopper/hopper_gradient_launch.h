#pragma once

#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_fused_dq.h"
#include "kernels/hopper/hopper_fused_rows.h"
#include "kernels/hopper/hopper_fused_stages.h"

#include <algorithm>

/// The fused backward of sm_90a (described in hopper_gradients.cu and hopper_fp8_gradients.cu): its
/// kernel, and its launch.
namespace cpscope::kernels::device {

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    gradients_on_hopper(const __grid_constant__ FusedParams fused) {
  const FusedShared<B> at;
  at.init();
  const BackwardParams& p = fused.base;
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (warp == 1) {
      const int num_tiles = fetch_tiles<B>(fused, at);
      if constexpr (B::kHasCodes) end_turning<B>(at, num_tiles);
    }
    if (warp == 2) {
      TileScheduler scheduler(at.scheduler);
      // With many short items, a loop that can wait took 1 % longer than one that cannot.
      p.tiles.arrivals.flags != nullptr ? scheduler.schedule<true>(p.tiles, p.counter)
                                        : scheduler.schedule<false>(p.tiles, p.counter);
    }
    if (warp % 3 == 0 && threadIdx.x % 32 == 0) send_dq<B>(fused, at, warp / 3);
  } else if (warpgroup > B::kConsumers) {
    yield_registers<B::kProducerRegisters>();
    if constexpr (B::kHasCodes) turn_tiles<B>(at);
  } else {
    claim_registers<B::kConsumerRegisters>();
    typename B::Consumer consumer(fused, at, warpgroup - 1);
    consumer.run(consumer);
  }
}

template <class B>
void launch_walk(const BackwardLaunch& launch, int32_t head_dim, Stream stream) {
  const DeviceTiles& tiles = launch.key_tiles;
  FusedParams fused{};
  BackwardParams& p = fused.base = make_backward_params(launch);
  if constexpr (B::kHasCodes) {
    make_code_maps(launch, B::kWalked, B::kOwned, p);
  } else {
    make_backward_maps(launch, B::kWalked, B::kOwned, p);
  }
  p.tiles = tiles;
  p.counter = launch.counters;
  set_key_results(launch, p);
  if constexpr (B::kIsFp8) set_fp8_factors(launch, p);
  if constexpr (B::kHasOffsets) {
    const OffsetFactors factors = offset_factors(launch.shape, launch.fp8);
    p.logit_log2 = factors.logit_log2;
    p.fp8.slopes = factors.d_p * p.fp8.d_logits / p.fp8.weights;
    fused.offsets = launch.offsets;
  }
  if (p.group_parts == 1) {
    fused.is_narrow = launch.dkv_element == Dtype::fp32 ? 0 : 1;
    fused.wire = launch.wire;
  }
  make_row_map(fused.dq, launch.dq, Dtype::fp32, launch.shape.num_heads, head_dim, {B::kWalked});
  fused.turns_taken = launch.turns_taken;
  fused.narrow_dq = launch.narrow_dq;
  fused.merges_dq = launch.merges_dq ? 1 : 0;
  const int32_t ctas =
      std::min(tiles.num_work, resident_ctas(gradients_on_hopper<B>, B::kThreads, B::kSharedBytes));
  Grid grid(ctas);
  grid.together = tiles.draws_late && !launch.has_own_device;
  launch_kernel(gradients_on_hopper<B>, grid, B::kThreads, B::kSharedBytes, stream, fused);
}

template <class B>
void launch_budget(const BackwardLaunch& launch, Stream stream) {
  const DeviceTiles& tiles = launch.key_tiles;
  const int32_t head_dim = padded_lanes(launch.shape.head_dim_qk);
  if (tiles.num_unopened > 0 && !launch.merges_dq) {
    launch_kernel(clear_rows, Grid(tiles.num_unopened, launch.shape.num_heads), kClearingThreads, 0,
                  stream, ClearParams{launch.dq, tiles.unopened, head_dim});
  }
  if (tiles.num_work > 0) launch_walk<B>(launch, head_dim, stream);
  if (launch.narrow_dq.data != nullptr && tiles.num_unclosed > 0) {
    launch_kernel(round_rows<typename B::T>, Grid(tiles.num_unclosed, launch.shape.num_heads),
                  kClearingThreads, 0, stream,
                  RoundParams{launch.dq, launch.narrow_dq, tiles.unclosed, head_dim});
  }
}

}  // namespace cpscope::kernels::device
