#pragma once

#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_forward_kernel.h"

#include <algorithm>

namespace cpscope::kernels {

/// What every Hopper forward takes from a launch: its lists, its outputs and its heads. The maps of
/// the inputs and the scales are left to the caller.
inline device::ForwardParams forward_params(const ForwardLaunch& launch) {
  const AttentionShape& shape = launch.shape;
  device::ForwardParams p{};
  p.tiles = launch.query_tiles;
  p.q_rows = shape.q_rows;
  p.counter = launch.counter;
  p.out = launch.out.data;
  p.is_narrow = launch.out_element == Dtype::fp32 ? 0 : 1;
  p.merges = launch.merges ? 1 : 0;
  p.rounds = launch.rounds ? 1 : 0;
  p.out_row_stride = launch.out.row_stride;
  p.out_head_stride = launch.out.head_stride;
  p.out_head_dim = padded_lanes(shape.head_dim_v);
  p.lse = launch.lse;
  p.lse_row_stride = launch.lse_row_stride;
  p.max_logit = launch.max_logit;
  p.first_head = shape.first_head;
  p.first_kv_head = shape.first_kv_head;
  p.group = shape.group;
  return p;
}

/// As many CTAs as fit the device at once, or as there are items. `B`: a ForwardBudget.
template <class B>
void launch_attend(const device::ForwardParams& params, Stream stream) {
  constexpr auto kKernel = device::attend_on_hopper<B>;
  Grid grid(std::min(params.tiles.num_work, resident_ctas(kKernel, B::kThreads, B::kSharedBytes)));
  grid.per_sm = B::kCtasPerSm;
  launch_kernel(kKernel, grid, B::kThreads, B::kSharedBytes, stream, params);
}

}  // namespace cpscope::kernels
