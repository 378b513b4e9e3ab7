#pragma once

#include "kernels/hopper/hopper_softmax.h"

namespace cpscope::kernels {

/// What every forward of Hopper and Blackwell takes from a launch: its lists, its outputs and its
/// heads. The maps of the inputs and the scales are left to the caller.
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

}  // namespace cpscope::kernels
