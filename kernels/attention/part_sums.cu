// dk and dv (of latent attention dk alone) of KV heads whose query heads were split into parts: the
// sums of all parts.
// Mapping: a thread adds eight elements of a row, and the threads of a warp take adjacent elements,
// so that all accesses are coalesced; several parts are in flight at a time. Grid-stride over rows
// of KV heads, of dk and then of dv. Memory-bound: every part is read once and every sum written
// once, or twice if a row is read in fp32 and sent in the dtype.
// Accuracy: fp32 sums in the order of the parts, rounded once if the output is in the dtype.
#include "kernels/attention/part_sums.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_groups.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

using device::kAtOnce, device::load_values, device::store_values;

constexpr int kThreads = 256;
constexpr int kMostBlocks = 4096;
constexpr int kAhead = 4;  // parts that are read before they are added

/// Parameters for one gradient.
struct PartSum {
  DeviceRows parts;  // fp32 [row][head, part]
  DeviceRows into;
  void* wire;      // rows to be sent, with the strides of `into`
  int32_t groups;  // of eight elements, in a head
};

struct PartSumParams {
  PartSum sums[2];  // dk, dv
  Dtype into_element, wire_element;
  const uint8_t* uses;  // as in WireRows
  int32_t num_rows, num_heads, num_parts;
};

__device__ __forceinline__ void add_parts(const PartSumParams& p, const PartSum& sum, int32_t row,
                                          int32_t head, int32_t lane, float (&sums)[kAtOnce]) {
  const int64_t first =
      row * sum.parts.row_stride + int64_t{head} * p.num_parts * sum.parts.head_stride + lane;
  for (int32_t begin = 0; begin < p.num_parts; begin += kAhead) {
    float values[kAhead][kAtOnce];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i < p.num_parts)
        load_values(sum.parts.data, Dtype::fp32, first + (begin + i) * sum.parts.head_stride,
                    values[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= p.num_parts) continue;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) sums[j] += values[i][j];
    }
  }
}

__global__ void __launch_bounds__(kThreads) add_up_parts(const __grid_constant__ PartSumParams p) {
  const PartSum& sum = p.sums[blockIdx.y];
  const int64_t count = int64_t{p.num_rows} * p.num_heads * sum.groups;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const auto lane = static_cast<int32_t>(i % sum.groups) * kAtOnce;
    const int64_t row_head = i / sum.groups;
    const auto head = static_cast<int32_t>(row_head % p.num_heads);
    const auto row = static_cast<int32_t>(row_head / p.num_heads);
    float sums[kAtOnce] = {};
    add_parts(p, sum, row, head, lane, sums);
    const int64_t to = row * sum.into.row_stride + head * sum.into.head_stride + lane;
    const int uses = p.uses == nullptr ? WireRows::kStays : p.uses[row];
    if ((uses & WireRows::kStays) != 0) store_values(sum.into.data, p.into_element, to, sums);
    if ((uses & WireRows::kLeaves) != 0) store_values(sum.wire, p.wire_element, to, sums);
  }
}

}  // namespace

void launch_part_sums(const BackwardLaunch& launch, Stream stream) {
  const AttentionShape& shape = launch.shape;
  PartSumParams p{};
  p.sums[0] = {launch.dk_parts, launch.dk, launch.wire.dk,
               padded_lanes(shape.head_dim_qk) / kAtOnce};
  p.sums[1] = {launch.dv_parts, launch.dv, launch.wire.dv,
               padded_lanes(shape.head_dim_v) / kAtOnce};
  p.into_element = launch.dkv_element;
  p.wire_element = shape.dtype;
  p.uses = launch.wire.uses;
  p.num_rows = shape.kv_rows;
  p.num_heads = shape.num_kv_heads;
  p.num_parts = launch.key_tiles.group_parts;
  const int64_t most =
      int64_t{p.num_rows} * p.num_heads * std::max(p.sums[0].groups, p.sums[1].groups);
  const auto blocks = std::min<int64_t>((most + kThreads - 1) / kThreads, kMostBlocks);
  if (blocks == 0) return;
  const int32_t num_sums = shape.is_latent ? 1 : 2;
  launch_kernel(add_up_parts, Grid(static_cast<int32_t>(blocks), num_sums), kThreads, 0, stream, p);
}

}  // namespace cpscope::kernels
