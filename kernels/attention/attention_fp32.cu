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
#include "kernels/attention/fp32_tiles.h"
#include "kernels/device/launch.h"

namespace cpscope::kernels {
namespace device {
namespace {

template <int kLanes>
inline constexpr int kCtasPerSm = kLanes > 128 ? 1 : 2;

__device__ __forceinline__ int32_t kv_head_of(const AttentionShape& shape, int32_t head) {
  return (shape.first_head + head) / shape.group - shape.first_kv_head;
}

__device__ __forceinline__ Fp32Rows rows_from(const DeviceRows& rows, int32_t head,
                                              int32_t head_dim, int32_t begin, int32_t end) {
  return {rows_of_head<float>(rows, head, head_dim), begin, end};
}

/// Visibility of the cells c[i][j] of a tile: bit 4 i + j. Queries are the rows.
__device__ __forceinline__ uint32_t visible_cells(const DeviceTiles& tiles, int32_t q_rows,
                                                  const OwnedTile& own, const WalkedTile& walked) {
  if (!walked.is_masked) return 0xffff;
  uint32_t visible = 0;
  for (int i = 0; i < 4; ++i) {
    const int32_t q = own.begin + thread_y() + 16 * i;
    if (q >= own.end) continue;
    const KeyRange range = tiles.ranges[int64_t{walked.range_set} * q_rows + q];
    for (int j = 0; j < 4; ++j) {
      const int32_t k = walked.begin + thread_x() + 16 * j;
      if (k >= range.lo && k < range.hi && k < walked.end) visible |= 1u << (4 * i + j);
    }
  }
  return visible;
}

/// Maximum, and sum, over the 16 threads that share rows.
__device__ __forceinline__ float max_over_columns(float value) {
  for (int mask = 8; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}
__device__ __forceinline__ float sum_over_columns(float value) {
  for (int mask = 8; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

/// Running softmax of the thread's four rows.
struct OnlineSoftmax {
  float max[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};  // natural logits
  float sum[4] = {};                                                // of this thread's columns
};

/// Turns products into weights. Returns in `factors` the factors for earlier sums.
__device__ __forceinline__ void weigh_tile(const AttentionShape& shape, uint32_t visible,
                                           float (&s)[4][4], OnlineSoftmax& softmax,
                                           float (&factors)[4]) {
  for (int i = 0; i < 4; ++i) {
    float tile_max = -kInfinity;
    for (int j = 0; j < 4; ++j) {
      s[i][j] = logit_of(shape, s[i][j]).value;
      if ((visible >> (4 * i + j) & 1) != 0) tile_max = fmaxf(tile_max, s[i][j]);
    }
    const float max = fmaxf(softmax.max[i], max_over_columns(tile_max));
    // A row without a visible key so far keeps -inf; -inf - -inf must not arise.
    const float base = max == -kInfinity ? 0.0f : max;
    factors[i] = expf(softmax.max[i] - base);
    softmax.max[i] = max;
    softmax.sum[i] *= factors[i];
    for (int j = 0; j < 4; ++j) {
      s[i][j] = (visible >> (4 * i + j) & 1) != 0 ? expf(s[i][j] - base) : 0.0f;
      softmax.sum[i] += s[i][j];
    }
  }
}

/// Writes lse and max_logit. Returns in `factors` the factors that turn the sums of P V into the
/// output.
__device__ __forceinline__ void finish_rows(const ForwardLaunch& launch, int32_t head,
                                            const OwnedTile& tile, const OnlineSoftmax& softmax,
                                            float (&factors)[4]) {
  float largest = -kInfinity;
  for (int i = 0; i < 4; ++i) {
    const float sum = sum_over_columns(softmax.sum[i]);
    factors[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int32_t row = tile.begin + thread_y() + 16 * i;
    if (row >= tile.end) continue;
    if (thread_x() == 0) {
      launch.lse[row * launch.lse_row_stride + head] =
          sum == 0.0f ? -kInfinity : softmax.max[i] + logf(sum);
    }
    // A NaN in the row's data shows in its sum; fmaxf would lose it.
    const float row_max = sum != sum ? sum : softmax.max[i];
    largest = row_max != row_max || row_max > largest ? row_max : largest;
  }
  if (thread_x() == 0 && largest != -kInfinity) atomic_max(launch.max_logit + head, largest);
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    forward_fp32(const __grid_constant__ ForwardLaunch launch) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const WorkItem work = launch.query_tiles.work[blockIdx.x];
  const OwnedTile tile = launch.query_tiles.tiles[work.tile];
  const int32_t kv_head = kv_head_of(shape, work.head);
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileWalk<kFp32Rows> walk(launch.query_tiles.runs + tile.first_run, tile.num_runs, work.head,
                           work.head + 1);
  const Fp32Rows q = rows_from(launch.q, work.head, qk, tile.begin, tile.end);
  OnlineSoftmax softmax;
  float out[4][kLanes / 16] = {}, factors[4];
  WalkedTile keys;
  while (walk.next(keys)) {
    float s[4][4];
    multiply_rows(s, q, rows_from(launch.k, kv_head, qk, keys.begin, keys.end), tiles);
    weigh_tile(shape, visible_cells(launch.query_tiles, shape.q_rows, tile, keys), s, softmax,
               factors);
    for (int i = 0; i < kLanes / 4; ++i) out[i % 4][i / 4] *= factors[i % 4];
    put_weights(s, tiles);
    accumulate_rows<kLanes>(out, rows_from(launch.v, kv_head, v, keys.begin, keys.end), tiles);
  }
  finish_rows(launch, work.head, tile, softmax, factors);
  store_sums<kLanes>(launch.out, work.head, v, out, tile.begin, tile.end, factors);
}

/// Computes P times the cap's slope in `s`, and P in `p`, from products and the row's statistics.
/// Invisible cells weigh 0. They are selected, not multiplied, because their data may be NaN.
__device__ __forceinline__ void weigh_cell(const AttentionShape& shape, bool is_visible,
                                           float log2_lse, float& s, float& p) {
  const Fp32Logit logit = logit_of(shape, s);
  p = is_visible ? exp2f(fmaf(logit.value, kLog2E, -log2_lse)) : 0.0f;
  s = p * logit.slope;
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    query_gradient_fp32(const __grid_constant__ BackwardLaunch launch) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const WorkItem work = launch.query_tiles.work[blockIdx.x];
  const OwnedTile tile = launch.query_tiles.tiles[work.tile];
  const int32_t kv_head = kv_head_of(shape, work.head);
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileWalk<kFp32Rows> walk(launch.query_tiles.runs + tile.first_run, tile.num_runs, work.head,
                           work.head + 1);
  const Fp32Rows q = rows_from(launch.q, work.head, qk, tile.begin, tile.end);
  const Fp32Rows d_out = rows_from(launch.d_out, work.head, v, tile.begin, tile.end);
  float log2_lse[4], delta[4];
  for (int i = 0; i < 4; ++i) {
    const int32_t row = tile.begin + thread_y() + 16 * i;
    const int64_t at = int64_t{work.head} * shape.q_rows + row;
    log2_lse[i] = row < tile.end ? launch.log2_lse[at] : kInfinity;
    delta[i] = row < tile.end ? launch.delta[at] : 0.0f;
  }
  float dq[4][kLanes / 16] = {};
  WalkedTile now;
  while (walk.next(now)) {
    const Fp32Rows keys = rows_from(launch.k, kv_head, qk, now.begin, now.end);
    const uint32_t visible = visible_cells(launch.query_tiles, shape.q_rows, tile, now);
    float s[4][4], d_p[4][4];
    multiply_rows(s, q, keys, tiles);
    multiply_rows(d_p, d_out, rows_from(launch.v, kv_head, v, now.begin, now.end), tiles);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const bool is_visible = (visible >> i & 1) != 0;
      float p;
      weigh_cell(shape, is_visible, log2_lse[i / 4], s[i / 4][i % 4], p);
      const float d_s = s[i / 4][i % 4] * (d_p[i / 4][i % 4] - delta[i / 4]);
      s[i / 4][i % 4] = is_visible ? d_s : 0.0f;
    }
    put_weights(s, tiles);
    accumulate_rows<kLanes>(dq, keys, tiles);
  }
  const float factors[4] = {shape.scale, shape.scale, shape.scale, shape.scale};
  store_sums<kLanes>(launch.dq, work.head, qk, dq, tile.begin, tile.end, factors);
}

/// Data of the thread's four query columns.
struct QueryColumns {
  float log2_lse[4];
  float delta[4];
  uint32_t visible = 0;  // bit 4 i + j: query j sees key i
};

__device__ __forceinline__ QueryColumns load_columns(const BackwardLaunch& launch,
                                                     const OwnedTile& own,
                                                     const WalkedTile& walked) {
  QueryColumns columns;
  const int64_t q_rows = launch.shape.q_rows;
  for (int j = 0; j < 4; ++j) {
    const int32_t q = walked.begin + thread_x() + 16 * j;
    const bool is_there = q < walked.end;
    columns.log2_lse[j] = is_there ? launch.log2_lse[walked.head * q_rows + q] : kInfinity;
    columns.delta[j] = is_there ? launch.delta[walked.head * q_rows + q] : 0.0f;
    KeyRange range;
    if (is_there) range = launch.key_tiles.ranges[walked.range_set * q_rows + q];
    for (int i = 0; i < 4; ++i) {
      const int32_t k = own.begin + thread_y() + 16 * i;
      const bool is_seen = !walked.is_masked || (k >= range.lo && k < range.hi);
      if (is_there && is_seen) columns.visible |= 1u << (4 * i + j);
    }
  }
  return columns;
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, kCtasPerSm<kLanes>)
    key_gradient_fp32(const __grid_constant__ BackwardLaunch launch) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const WorkItem work = launch.key_tiles.work[blockIdx.x];
  const OwnedTile tile = launch.key_tiles.tiles[work.tile];
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  const int32_t group_begin = (shape.first_kv_head + work.head) * shape.group - shape.first_head;
  const int32_t group_end = group_begin + shape.group;
  TileWalk<kFp32Rows> walk(launch.key_tiles.runs + tile.first_run, tile.num_runs,
                           group_begin < 0 ? 0 : group_begin,
                           group_end < shape.num_heads ? group_end : shape.num_heads);
  const Fp32Rows keys = rows_from(launch.k, work.head, qk, tile.begin, tile.end);
  const Fp32Rows values = rows_from(launch.v, work.head, v, tile.begin, tile.end);
  float dk[4][kLanes / 16] = {}, dv[4][kLanes / 16] = {};
  WalkedTile now;
  while (walk.next(now)) {
    const Fp32Rows q = rows_from(launch.q, now.head, qk, now.begin, now.end);
    const Fp32Rows d_out = rows_from(launch.d_out, now.head, v, now.begin, now.end);
    const QueryColumns columns = load_columns(launch, tile, now);
    float s[4][4], d_p[4][4], p[4][4];
    multiply_rows(s, keys, q, tiles);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      weigh_cell(shape, (columns.visible >> i & 1) != 0, columns.log2_lse[i % 4], s[i / 4][i % 4],
                 p[i / 4][i % 4]);
    }
    put_weights(p, tiles);
    accumulate_rows<kLanes>(dv, d_out, tiles);
    multiply_rows(d_p, values, d_out, tiles);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float d_s = s[i / 4][i % 4] * (d_p[i / 4][i % 4] - columns.delta[i % 4]);
      s[i / 4][i % 4] = (columns.visible >> i & 1) != 0 ? d_s : 0.0f;
    }
    put_weights(s, tiles);
    accumulate_rows<kLanes>(dk, q, tiles);
  }
  const float scales[4] = {shape.scale, shape.scale, shape.scale, shape.scale};
  const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  store_sums<kLanes>(launch.dk, work.head, qk, dk, tile.begin, tile.end, scales);
  store_sums<kLanes>(launch.dv, work.head, v, dv, tile.begin, tile.end, ones);
}

/// Launches the instance whose head_dims hold the shape's.
template <class Launch>
void launch_for_lanes(const AttentionShape& shape, int32_t num_work,
                      void (*const (&kernels)[3])(Launch), const Launch& launch, Stream stream) {
  if (num_work == 0) return;
  const int32_t lanes = shape.head_dim_qk > shape.head_dim_v ? shape.head_dim_qk : shape.head_dim_v;
  launch_kernel(kernels[lanes <= 64    ? 0
                        : lanes <= 128 ? 1
                                       : 2],
                num_work, kFp32Threads, static_cast<int32_t>(sizeof(Fp32Tiles)), stream, launch);
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
