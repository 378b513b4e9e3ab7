// dq of one compute item, inputs in bf16 or fp16.
//
// A CTA takes one work item: a stationary tile of query rows of one query head. A warp has 16 of
// the rows; their q and d_out stay in registers as operands (at head_dim 256 d_out stays in shared
// memory). K and V are streamed tile by tile; the next tile is copied while this one is used:
//   S = Q K^T, P = exp2(S scale log2(e) - log2_lse), dP = dO V^T, dS = P (dP - delta), dQ += dS K
// P and dS never leave registers; dS is rounded to the inputs' type, all sums are fp32. The scale
// of dQ is applied once at the end. Every stationary row is written by one CTA, in a fixed order.
//
// Grid: one CTA per work item, longest first. Block: 256 threads (head_dim 256: 128).
// Shared memory: two stages of K and V, 32 to 96 KB. Registers: 128 a thread at head_dim 64, else
// 255. Source: FlashAttention-2 (arXiv:2307.08691), alg. 2, with dQ summed inside one CTA instead
// of in global memory.
#include "kernels/attention/gradient_dims.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/attention/query_gradient.h"
#include "kernels/device/launch.h"

namespace cpscope::kernels {
namespace device {
namespace {

template <class Instance>
struct QueryGradient : Instance {
  using Instance::kQk;
  using Instance::kV;
  static constexpr bool kIsWide = kQk > 192;
  static constexpr int kOwned = kIsWide ? 64 : 128;
  static constexpr int kWalked = kIsWide ? 32 : 64;
  static constexpr bool kIsTight = kQk == 64 || kIsWide || (Instance::kIsCapped && kQk == 192);
  static constexpr int kColumns = kIsTight ? 16 : 32;  // keys at a time
  static constexpr int kThreads = kOwned * 2;
  static constexpr int kCtasPerSm = kQk == 64 || kIsWide ? 2 : 1;
  static constexpr int kKeyBytes = kWalked * kQk * 2;
  static constexpr int kStageBytes = kKeyBytes + kWalked * kV * 2;
  static constexpr int kSharedBytes = 2 * kStageBytes + (kIsWide ? kOwned * kV * 2 : 0);
  static_assert(kSharedBytes <= 99 * 1024, "more than a CTA of sm_86 and sm_89 may have");
};

/// State of a thread lane for its two rows.
template <class Kernel>
struct OwnedQueries {
  uint32_t q[Kernel::kQk / 16][4];
  uint32_t d_out[Kernel::kIsWide ? 1 : Kernel::kV / 16][4];
  FragmentAddress<Kernel::kV> d_out_tile;  // of d_out in shared memory
  int32_t rows[2];
  float log2_lse[2];
  float delta[2];
};

template <class Kernel>
__device__ __forceinline__ void load_queries(const BackwardLaunch& launch, const OwnedTile& tile,
                                             int32_t head, uint32_t d_out_tile,
                                             OwnedQueries<Kernel>& own) {
  using T = typename Kernel::T;
  const AttentionShape& shape = launch.shape;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const HeadRows<T> q = rows_of_head<T>(launch.q, head, shape.head_dim_qk);
  const HeadRows<T> d_out = rows_of_head<T>(launch.d_out, head, shape.head_dim_v);
  for (int i = 0; i < 2; ++i) {
    own.rows[i] = tile.begin + warp * 16 + lane / 4 + 8 * i;
    const int64_t at = int64_t{head} * shape.q_rows + own.rows[i];
    const bool is_there = own.rows[i] < tile.end;
    own.log2_lse[i] = is_there ? launch.log2_lse[at] : kInfinity;
    own.delta[i] = is_there ? launch.delta[at] : 0.0f;
  }
  load_operands<Kernel::kQk>(own.q, q, own.rows, tile.end);
  if constexpr (Kernel::kIsWide) {
    copy_tile<Kernel::kOwned, Kernel::kV, Kernel::kThreads>(d_out_tile, d_out, tile.begin,
                                                            tile.end);
    own.d_out_tile = along_rows<Kernel::kV>(d_out_tile + warp * 16 * Kernel::kV * 2);
  } else {
    load_operands<Kernel::kV>(own.d_out, d_out, own.rows, tile.end);
  }
}

template <class Kernel>
__device__ __forceinline__ void copy_keys(const BackwardLaunch& launch, int32_t kv_head,
                                          const WalkedTile& tile, uint32_t stage) {
  using T = typename Kernel::T;
  copy_tile<Kernel::kWalked, Kernel::kQk, Kernel::kThreads>(
      stage, rows_of_head<T>(launch.k, kv_head, launch.shape.head_dim_qk), tile.begin, tile.end);
  copy_tile<Kernel::kWalked, Kernel::kV, Kernel::kThreads>(
      stage + Kernel::kKeyBytes, rows_of_head<T>(launch.v, kv_head, launch.shape.head_dim_v),
      tile.begin, tile.end);
}

/// Adds the contribution of kColumns keys, from row `first` of the stage on, to dq. first_key:
/// number of that key; ranges: keys that the thread lane's rows see.
template <class Kernel, bool kIsMasked>
__device__ __forceinline__ void add_keys(const OwnedQueries<Kernel>& own,
                                         const Softmax<Kernel::kIsCapped>& softmax,
                                         const KeyRange (&ranges)[2], int32_t first_key,
                                         uint32_t stage, int first,
                                         float (&dq)[Kernel::kQk / 8][4]) {
  using T = typename Kernel::T;
  constexpr int kColumns = Kernel::kColumns;
  const uint32_t keys = stage + first * Kernel::kQk * 2;
  const uint32_t values = stage + Kernel::kKeyBytes + first * Kernel::kV * 2;
  float s[kColumns / 8][4];
  multiply<T, Kernel::kQk, kColumns>(s, own.q, along_lanes<Kernel::kQk>(keys));
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const int half = i % 4 / 2;
    const Weight weight = softmax.weigh(s[i / 4][i % 4], own.log2_lse[half]);
    s[i / 4][i % 4] = weight.probability * weight.slope;
  }
  float d_p[kColumns / 8][4];
  if constexpr (Kernel::kIsWide) {
    multiply<T, Kernel::kV, kColumns>(d_p, own.d_out_tile, along_lanes<Kernel::kV>(values));
  } else {
    multiply<T, Kernel::kV, kColumns>(d_p, own.d_out, along_lanes<Kernel::kV>(values));
  }
  // Bit c: the row sees the key of column c + 2 (lane % 4).
  uint32_t visible[2] = {};
  const int32_t first_of_lane = first_key + static_cast<int32_t>(threadIdx.x) % 4 * 2;
  for (int half = 0; kIsMasked && half < 2; ++half) {
    visible[half] = bits_between(ranges[half].lo - first_of_lane, ranges[half].hi - first_of_lane);
  }
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) {
    const bool is_visible = !kIsMasked || (visible[i % 4 / 2] >> (i / 4 * 8 + i % 2) & 1) != 0;
    const float d_s = s[i / 4][i % 4] * (d_p[i / 4][i % 4] - own.delta[i % 4 / 2]);
    // Selected, not multiplied: a row without a visible key may hold NaN.
    s[i / 4][i % 4] = is_visible ? d_s : 0.0f;
  }
  uint32_t d_s[kColumns / 16][4];
  pack_operands<T, kColumns>(d_s, s);
  accumulate<T, Kernel::kQk, kColumns>(dq, d_s, along_rows<Kernel::kQk>(keys));
}

/// Adds the contribution of one tile of keys to dq.
template <class Kernel>
__device__ __forceinline__ void add_tile(const BackwardLaunch& launch,
                                         const OwnedQueries<Kernel>& own, int32_t end_row,
                                         const Softmax<Kernel::kIsCapped>& softmax,
                                         const WalkedTile& tile, uint32_t stage,
                                         float (&dq)[Kernel::kQk / 8][4]) {
  KeyRange ranges[2];
  if (tile.is_masked) {
    const KeyRange* of_set =
        launch.query_tiles.ranges + int64_t{tile.range_set} * launch.shape.q_rows;
    for (int i = 0; i < 2; ++i) {
      if (own.rows[i] < end_row) ranges[i] = of_set[own.rows[i]];
      if (ranges[i].hi > tile.end) ranges[i].hi = tile.end;
    }
  }
#pragma unroll 1
  for (int first = 0; first < Kernel::kWalked; first += Kernel::kColumns) {
    const int32_t first_key = tile.begin + first;
    if (first_key >= tile.end) break;
    if (tile.is_masked) {
      add_keys<Kernel, true>(own, softmax, ranges, first_key, stage, first, dq);
    } else {
      add_keys<Kernel, false>(own, softmax, ranges, first_key, stage, first, dq);
    }
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kCtasPerSm)
    query_gradient(const __grid_constant__ BackwardLaunch launch) {
  const AttentionShape& shape = launch.shape;
  const WorkItem work = launch.query_tiles.work[blockIdx.x];
  const OwnedTile tile = launch.query_tiles.tiles[work.tile];
  const int32_t kv_head = (shape.first_head + work.head) / shape.group - shape.first_kv_head;
  const uint32_t stages = shared_address(dynamic_shared());

  TileWalk<Kernel::kWalked> walk(launch.query_tiles.runs + tile.first_run, tile.num_runs, work.head,
                                 work.head + 1);
  WalkedTile now, next;
  bool has_tile = walk.next(now);
  if (has_tile) copy_keys<Kernel>(launch, kv_head, now, stages);
  OwnedQueries<Kernel> own;
  load_queries<Kernel>(launch, tile, work.head, stages + 2 * Kernel::kStageBytes, own);
  copy_async_commit();

  const Softmax<Kernel::kIsCapped> softmax(shape);
  float dq[Kernel::kQk / 8][4] = {};
  uint32_t stage = stages;
  while (has_tile) {
    // This tile has arrived, and all threads have read the other stage.
    copy_async_wait<0>();
    __syncthreads();
    const bool has_next = walk.next(next);
    const uint32_t other = 2 * stages + Kernel::kStageBytes - stage;
    if (has_next) copy_keys<Kernel>(launch, kv_head, next, other);
    copy_async_commit();
    add_tile<Kernel>(launch, own, tile.end, softmax, now, stage, dq);
    now = next;
    has_tile = has_next;
    stage = other;
  }
  copy_async_wait<0>();
  store_rows<Kernel::kQk>(launch.dq, work.head, shape.head_dim_qk, dq, own.rows, tile.end,
                          shape.scale);
}

}  // namespace
}  // namespace device

TileShape portable_query_gradient_tile(const AttentionShape& shape) {
  return with_gradient_instance(shape, [](auto instance) {
    using Kernel = device::QueryGradient<decltype(instance)>;
    return TileShape{Kernel::kOwned, Kernel::kWalked};
  });
}

void launch_portable_query_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  with_gradient_instance(launch.shape, [&](auto instance) {
    using Kernel = device::QueryGradient<decltype(instance)>;
    launch_kernel(device::query_gradient<Kernel>, launch.query_tiles.num_work, Kernel::kThreads,
                  Kernel::kSharedBytes, stream, launch);
  });
}

}  // namespace cpscope::kernels
