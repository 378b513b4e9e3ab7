#include "kernels/hopper_backward.h"
#include "kernels/hopper_backward_kernel.h"
#include "kernels/launch.h"

#include <algorithm>
#include <cmath>

// dq of one compute item on sm_90a, heads of 65 to 128 lanes.
//
// A CTA owns 128 query rows of a head and walks the keys that they see: S = Q K^T, dP = dO V^T,
// dS = P (dP - delta), dq += dS K. dS stays in registers as an operand of the last product, which
// runs under the next tile's softmax; the two consumer warpgroups take turns with their products.
//
// Ladder: v1 is the portable kernel (query_gradient.cu); this one is v2.
// Grid: one CTA per SM, work from a counter; 128 threads for the producer and for each consumer.
// Shared memory: Q and dO of the owner, kStages of K and V, panels with the 128-byte swizzle.
// Accuracy: as v1: fp32 sums, dS rounded to the dtype.
// Source: FlashAttention-2 (arXiv:2307.08691), alg. 2, with the loops exchanged.

namespace cpscope::kernels {
namespace device {
namespace {

/// The producer's thread.
template <class B>
__device__ __forceinline__ void fetch_keys(const BackwardParams& p, const BackwardShared<B>& at) {
  WorkDeal deal(at.deal);
  int num_walked = 0, num_owned = 0;  // fetched
  for (;;) {
    const DealtItem item = deal.read_alone();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    if (tile.num_runs == 0) continue;
    mbarrier_wait(at.owned_free, (num_owned & 1) ^ 1);
    ++num_owned;
    const int32_t kv_head = (p.first_head + item.head) / p.group - p.first_kv_head;
    mbarrier_arrive_expecting(at.owned_full, B::kOwnedBytes);
    load_panels<B::kQk, B::kOwned>(at.owned, &p.q, at.owned_full, tile.begin, tile.end, item.head);
    load_panels<B::kV, B::kOwned>(at.owned + B::kOwnedFirstBytes, &p.d_out, at.owned_full,
                                  tile.begin, tile.end, item.head);
    for (RunWalk<B::kWalked> walk(item); walk.next(p.tiles.runs); ++num_walked) {
      const int stage = num_walked % B::kStages;
      const uint32_t k = at.walked + stage * B::kWalkedBytes;
      mbarrier_wait(at.walked_free + 8 * stage, ((num_walked / B::kStages) & 1) ^ 1);
      mbarrier_arrive_expecting(at.first_full + 8 * stage, B::kWalkedBytes);
      load_panels<B::kQk, B::kWalked>(k, &p.k, at.first_full + 8 * stage, walk.row, walk.end,
                                      kv_head);
      load_panels<B::kV, B::kWalked>(k + B::kFirstBytes, &p.v, at.first_full + 8 * stage, walk.row,
                                     walk.end, kv_head);
    }
  }
}

/// A consumer warpgroup.
template <class B>
struct QueryGradientConsumer {
  const BackwardParams& p;
  const BackwardShared<B>& at;
  int group;  // which consumer
  uint32_t q, d_out;
  int num_walked = 0, num_owned = 0;     // taken
  uint32_t logit_grads[B::kWalked / 4];  // dS of the tile before, in pairs
  float dq[B::kQk / 2];

  __device__ QueryGradientConsumer(const BackwardParams& params, const BackwardShared<B>& shared,
                                   int consumer)
      : p(params),
        at(shared),
        group(consumer),
        q(shared.owned + consumer * kWarpgroupRows * kPanelRowBytes),
        d_out(q + B::kOwnedFirstBytes) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ void start_logits(float (&logits)[B::kWalked / 2],
                                               float (&dp)[B::kWalked / 2], int stage) {
    const uint32_t k = at.walked + stage * B::kWalkedBytes, v = k + B::kFirstBytes;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kQk / 16; ++step) {
      wgmma_ss<typename B::T>(logits, matrix_descriptor(step_address<B::kOwned>(q, step), 16),
                              matrix_descriptor(step_address<B::kWalked>(k, step), 16), step > 0);
    }
#pragma unroll
    for (int step = 0; step < B::kV / 16; ++step) {
      wgmma_ss<typename B::T>(dp, matrix_descriptor(step_address<B::kOwned>(d_out, step), 16),
                              matrix_descriptor(step_address<B::kWalked>(v, step), 16), step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void start_dq(int stage) {
    pin(dq);
    pin(logit_grads);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      wgmma_rs<typename B::T>(
          dq, logit_grads + 4 * step,
          matrix_descriptor(at.walked + stage * B::kWalkedBytes + step * 16 * kPanelRowBytes,
                            B::kWalked * kPanelRowBytes));
    }
    wgmma_commit();
  }

  /// logits -> dS. Hidden pairs are chosen away at the end: there even dP may be a NaN.
  __device__ __forceinline__ void differentiate(const QueryRows& rows,
                                                float (&logits)[B::kWalked / 2],
                                                const float (&dp)[B::kWalked / 2],
                                                const RunWalk<B::kWalked>& walk) {
#pragma unroll
    for (int i = 0; i < B::kWalked / 2; ++i) {
      const int r = (i / 2) & 1;
      float slope;
      const float weight = weigh<B::kHasCap>(p, logits[i], rows.log2_lse[r], slope);
      logits[i] = weight * (dp[i] - rows.delta[r]);
      if (B::kHasCap) logits[i] *= slope;
    }
    if (walk.is_masked != 0) {
      const int32_t key = walk.row + 2 * (threadIdx.x % 4);
      const KeySpan span[2] = {rows.ranges.span(0, walk.end), rows.ranges.span(1, walk.end)};
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i) {
        if (!span[(i / 2) & 1].has(key + (i / 4) * 8 + (i & 1))) logits[i] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void round_grads(const float (&logits)[B::kWalked / 2]) {
#pragma unroll
    for (int i = 0; i < B::kWalked / 4; ++i)
      logit_grads[i] = pack<typename B::T>(logits[2 * i], logits[2 * i + 1]);
  }

  __device__ __forceinline__ int wait_for(int number) const {
    const int stage = number % B::kStages;
    mbarrier_wait(at.first_full + 8 * stage, (number / B::kStages) & 1);
    return stage;
  }

  /// All walked tiles of an item.
  __device__ __forceinline__ void walk_tiles(const DealtItem& item, QueryRows& rows,
                                             int32_t first_row) {
    RunWalk<B::kWalked> walk(item);
    const auto step = [&] {
      const bool has_tile = walk.next(p.tiles.runs);
      if (has_tile && walk.begins_run && walk.is_masked != 0)
        rows.ranges.fetch(p.tiles, p.q_rows, walk.range_set, first_row);
      return has_tile;
    };
    {
      float logits[B::kWalked / 2], dp[B::kWalked / 2];
      step();
      start_logits(logits, dp, wait_for(num_walked));
      wgmma_wait<0>();
      pin(logits);
      pin(dp);
      differentiate(rows, logits, dp, walk);
      round_grads(logits);
    }
    while (step()) {
      float logits[B::kWalked / 2], dp[B::kWalked / 2];
      const int before = num_walked % B::kStages;
      ++num_walked;
      const int stage = wait_for(num_walked);
      named_barrier_sync(1 + group, 2 * kWarpgroupThreads);
      start_logits(logits, dp, stage);
      start_dq(before);
      named_barrier_arrive(2 - group, 2 * kWarpgroupThreads);
      wgmma_wait<1>();
      pin(logits);
      pin(dp);
      differentiate(rows, logits, dp, walk);  // dS K runs meanwhile
      wgmma_wait<0>();
      pin(dq);
      if (is_elected()) mbarrier_arrive(at.walked_free + 8 * before);
      round_grads(logits);
    }
    // Nothing reads Q and dO any more; the waits above were those of whole warps.
    if (is_elected()) mbarrier_arrive(at.owned_free);
    const int last = num_walked % B::kStages;
    ++num_walked;
    start_dq(last);
    wgmma_wait<0>();
    pin(dq);
    if (is_elected()) mbarrier_arrive(at.walked_free + 8 * last);
  }

  __device__ __forceinline__ void run() {
    WorkDeal deal(at.deal);
    if (group == 1) named_barrier_arrive(1, 2 * kWarpgroupThreads);  // the first one may begin
    for (;;) {
      const DealtItem item = deal.read();
      if (item.is_last()) return;
      const OwnedTile& tile = item.tile;
      const int32_t first_row =
          tile.begin + group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < B::kQk / 2; ++i) dq[i] = 0.0f;
      if (tile.num_runs > 0) {
        QueryRows rows(p, first_row, item.head);
        mbarrier_wait(at.owned_full, num_owned & 1);
        ++num_owned;
        walk_tiles(item, rows, first_row);
      }
      float* to = static_cast<float*>(p.first.data) + item.head * p.first.head_stride +
                  static_cast<int64_t>(first_row) * p.first.row_stride;
      if (first_row < tile.end) store_row<B::kQk, false>(to, p.lanes_qk, dq, p.scale);
      to += 8 * p.first.row_stride;
      if (first_row + 8 < tile.end) store_row<B::kQk, true>(to, p.lanes_qk, dq, p.scale);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    query_gradient_on_hopper(const __grid_constant__ BackwardParams p) {
  const BackwardShared<B> at;
  at.init(1, 4 * B::kConsumers, 0);
  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_keys<B>(p, at);
    if (threadIdx.x == 32) WorkDeal(at.deal).deal(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    QueryGradientConsumer<B>(p, at, warpgroup - 1).run();
  }
}

// Lanes, owned and walked rows, stages, registers.
template <class T, bool kHasCap>
using Budget128 = BackwardBudget<T, 128, 128, 128, 96, 3, 0, 40, 232, kHasCap>;

template <class T, bool kHasCap>
void launch_budget(const BackwardLaunch& launch, Stream stream) {
  using B = Budget128<T, kHasCap>;
  BackwardParams p = make_backward_params(launch);
  make_backward_maps(launch, B::kOwned, B::kWalked, p);
  p.tiles = launch.query_tiles;
  p.counter = launch.counters;
  p.first = launch.dq;
  const int32_t ctas = std::min(
      p.tiles.num_work, resident_ctas(query_gradient_on_hopper<B>, B::kThreads, B::kSharedBytes));
  launch_kernel(query_gradient_on_hopper<B>, Grid(ctas), B::kThreads, B::kSharedBytes, stream, p);
}

}  // namespace
}  // namespace device

std::string why_not_hopper_backward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper backward takes bf16 and fp16 only";
  if (shape.head_dim_qk > 256 || shape.head_dim_v > 256)
    return "the Hopper backward takes at most 256 lanes per head";
  return "";
}

TileShape hopper_query_gradient_tile_shape(const AttentionShape& shape) {
  if (device::is_wide(shape)) return hopper_wide_query_gradient_tile_shape(shape);
  using Budget = device::Budget128<Bf16, false>;
  return {Budget::kOwned, Budget::kWalked};
}

void launch_hopper_query_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  if (device::is_wide(launch.shape)) return launch_hopper_wide_query_gradient(launch, stream);
  const bool has_cap = launch.shape.softcap != 0.0f;
  if (launch.shape.dtype == Dtype::bf16) {
    has_cap ? device::launch_budget<Bf16, true>(launch, stream)
            : device::launch_budget<Bf16, false>(launch, stream);
  } else {
    has_cap ? device::launch_budget<Fp16, true>(launch, stream)
            : device::launch_budget<Fp16, false>(launch, stream);
  }
}

}  // namespace cpscope::kernels
