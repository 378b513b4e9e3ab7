#pragma once

#include "kernels/hopper_pipeline.h"
#include "kernels/hopper_products.h"

#include <cmath>
#include <cstdint>

// Forward attention of sm_90a: out and lse of one compute item.
//
// A persistent kernel. The producer, one thread, draws (query tile, head) items from a counter and
// fetches Q, K and V tiles by box copies; every consumer warpgroup computes 64 query rows with
// wgmma. Two overlaps: P.V of a tile runs under the softmax of the next one, and where
// kTakesTurns the products of one warpgroup run under the softmax of another.
//
// Ladder: v1 is the portable kernel (attention_forward.cu); this one is v2.
// Grid: one CTA per SM; 128 threads for the producer and for each consumer.
// Shared memory: Q, and kStages of K and V, in 64-lane panels with the 128-byte swizzle.
// Accuracy: as v1: fp32 sums, P rounded to the dtype, base-2 softmax with one FMA per logit.
// Source: FlashAttention-3 (arXiv:2407.08608), the two overlaps.

namespace cpscope::kernels::device {

/// One configuration of the kernel. kQk, kV: lanes of a head that it is built for.
template <class T_, int kQk_, int kV_, int kConsumers_, int kWalked_, bool kTakesTurns_,
          int kProducerRegisters_, int kConsumerRegisters_, bool kHasCap_>
struct ForwardBudget {
  using T = T_;
  static constexpr int kQk = kQk_, kV = kV_, kConsumers = kConsumers_, kWalked = kWalked_;
  static constexpr int kOwned = kWarpgroupRows * kConsumers;
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr bool kHasCap = kHasCap_;
  static constexpr int kStages = 2;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kQBytes = kOwned * kQk * 2;
  static constexpr int kKBytes = kWalked * kQk * 2;
  static constexpr int kVBytes = kWalked * kV * 2;
  static constexpr int kSharedBytes = 1024 + kQBytes + kStages * (kKBytes + kVBytes) + 256;

  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kThreads));
  static_assert(kProducerRegisters % 8 == 0 && kConsumerRegisters % 8 == 0);
  static_assert(kQk % kBoxLanes == 0 && kV % kBoxLanes == 0 && kWalked % 16 == 0);
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

struct ForwardParams {
  TensorMap q, k, v;
  DeviceTiles tiles;
  int32_t q_rows;
  int32_t* counter;
  float* out;
  int64_t out_row_stride, out_head_stride;
  int32_t out_lanes;
  float* lse;
  int64_t lse_row_stride;
  float* max_logit;
  int32_t first_head, first_kv_head, group;
  float inverse_cap;  // scale / softcap
  float softcap;
  float logit_scale;  // of what the softmax sees: 1 after a cap, else `scale`
};

/// Where things lie in shared memory.
template <class B>
struct ForwardShared {
  uint32_t q, k, v;
  uint32_t q_full, q_free, k_full, k_free, v_full, v_free, slots;

  __device__ ForwardShared() {
    q = align_to_swizzle(shared_address(dynamic_shared()));
    k = q + B::kQBytes;
    v = k + B::kStages * B::kKBytes;
    q_full = v + B::kStages * B::kVBytes;
    q_free = q_full + 8;
    k_full = q_free + 8;
    k_free = k_full + 8 * B::kStages;
    v_full = k_free + 8 * B::kStages;
    v_free = v_full + 8 * B::kStages;
    slots = v_free + 8 * B::kStages;
  }

  __device__ void init() const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      mbarrier_init(q_full, 1);
      mbarrier_init(q_free, kConsumerWarps);
      for (int i = 0; i < B::kStages; ++i) {
        mbarrier_init(k_full + 8 * i, 1);
        mbarrier_init(v_full + 8 * i, 1);
        mbarrier_init(k_free + 8 * i, kConsumerWarps);
        mbarrier_init(v_free + 8 * i, kConsumerWarps);
      }
      WorkSlots(slots).init(kConsumerWarps);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
};

/// The producer's thread.
template <class B>
__device__ __forceinline__ void fetch_forward(const ForwardParams& p, const ForwardShared<B>& at) {
  WorkSlots slots(at.slots);
  int num_k = 0, num_v = 0, num_q = 0;  // tiles fetched
  const auto fetch_k = [&](int row, int end, int head) {
    const int stage = num_k % B::kStages;
    mbarrier_wait(at.k_free + 8 * stage, ((num_k / B::kStages) & 1) ^ 1);
    mbarrier_arrive_expecting(at.k_full + 8 * stage, B::kKBytes);
    load_panels<B::kQk, B::kWalked>(at.k + stage * B::kKBytes, &p.k, at.k_full + 8 * stage, row,
                                    end, head);
    ++num_k;
  };
  const auto fetch_v = [&](int row, int end, int head) {
    const int stage = num_v % B::kStages;
    mbarrier_wait(at.v_free + 8 * stage, ((num_v / B::kStages) & 1) ^ 1);
    mbarrier_arrive_expecting(at.v_full + 8 * stage, B::kVBytes);
    load_panels<B::kV, B::kWalked>(at.v + stage * B::kVBytes, &p.v, at.v_full + 8 * stage, row, end,
                                   head);
    ++num_v;
  };

  for (;;) {
    const int32_t drawn = slots.draw(p.counter, p.tiles.num_work);
    if (drawn < 0) return;
    const WorkItem item = p.tiles.work[drawn];
    const OwnedTile tile = p.tiles.tiles[item.tile];
    mbarrier_wait(at.q_free, (num_q & 1) ^ 1);
    ++num_q;
    if (tile.num_runs == 0) {
      mbarrier_arrive(at.q_full);
      continue;
    }
    const int32_t kv_head = (p.first_head + item.head) / p.group - p.first_kv_head;
    mbarrier_arrive_expecting(at.q_full, B::kQBytes);
    load_panels<B::kQk, B::kOwned>(at.q, &p.q, at.q_full, tile.begin, tile.end, item.head);
    RunWalk<B::kWalked> walk(tile);
    walk.next(p.tiles.runs);
    fetch_k(walk.row, walk.end, kv_head);
    // Consumers want the next K before this V.
    int32_t row = walk.row, end = walk.end;
    while (walk.next(p.tiles.runs)) {
      fetch_k(walk.row, walk.end, kv_head);
      fetch_v(row, end, kv_head);
      row = walk.row;
      end = walk.end;
    }
    fetch_v(row, end, kv_head);
  }
}

/// Running softmax of a thread's two rows.
template <class B>
struct RowState {
  float largest[2] = {-INFINITY, -INFINITY};  // of the logits before logit_scale
  float sum[2] = {0.0f, 0.0f};                // this thread's part
  KeySpan span[2];

  __device__ __forceinline__ void read_spans(const ForwardParams& p, int32_t range_set,
                                             int32_t run_end, int32_t first_row) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      span[r] = span_of_row(p.tiles, p.q_rows, range_set, first_row + 8 * r, run_end);
  }

  /// logits -> exp2(logit - largest); shrink: by how much earlier results become smaller.
  __device__ __forceinline__ void take(const ForwardParams& p, float (&logits)[B::kWalked / 2],
                                       float (&shrink)[2], int32_t first_key, bool is_masked) {
    if constexpr (B::kHasCap) {
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i)
        logits[i] = p.softcap * tanh_with_slope(logits[i] * p.inverse_cap).value;
    }
    if (is_masked) {
      const int32_t key = first_key + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i) {
        if (!span[(i / 2) & 1].has(key + (i / 4) * 8 + (i & 1))) logits[i] = -INFINITY;
      }
    }
    const float to_log2 = p.logit_scale * kLog2E;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
#pragma unroll
      for (int i = 2 * r; i < B::kWalked / 2; i += 4)
        top = fmaxf(top, fmaxf(logits[i], logits[i + 1]));
      top = fmaxf(top, shuffle_xor(top, 1));
      top = fmaxf(top, shuffle_xor(top, 2));
      const float subtracted = top == -INFINITY ? 0.0f : top * to_log2;
      // From the difference, so that it is 1 where the largest stays: a product fused with the
      // subtraction leaves a rounding, and a row of a thousand tiles would keep it as often.
      shrink[r] = top == -INFINITY ? 0.0f : exp2_approx((largest[r] - top) * to_log2);
      largest[r] = top;
      float part = 0.0f;
#pragma unroll
      for (int i = 2 * r; i < B::kWalked / 2; i += 4) {
        logits[i] = exp2_approx(logits[i] * to_log2 - subtracted);
        logits[i + 1] = exp2_approx(logits[i + 1] * to_log2 - subtracted);
        part += logits[i] + logits[i + 1];
      }
      sum[r] = sum[r] * shrink[r] + part;
    }
  }
};

/// Writes the rows of one item and raises the head's largest logit.
template <class B>
__device__ __forceinline__ void finish_rows(const ForwardParams& p, RowState<B>& state,
                                            const float (&out)[B::kV / 2], int32_t first_row,
                                            int32_t rows_end, int32_t head) {
  const int lane = threadIdx.x % 32;
  float top = -INFINITY;
  bool has_nan = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const int64_t row = first_row + 8 * r;
    if (row >= rows_end) continue;
    const bool is_empty = sum == 0.0f;
    const float factor = is_empty ? 0.0f : 1.0f / sum;
    top = fmaxf(top, state.largest[r]);
    has_nan = has_nan || sum != sum;  // the running maximum passes over it
    if (lane % 4 == 0) {
      p.lse[row * p.lse_row_stride + head] =
          is_empty ? -INFINITY : state.largest[r] * p.logit_scale + logf(sum);
    }
    float* to = p.out + row * p.out_row_stride + head * p.out_head_stride;
    if (r == 0) {
      store_row<B::kV, false>(to, p.out_lanes, out, factor);
    } else {
      store_row<B::kV, true>(to, p.out_lanes, out, factor);
    }
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) top = fmaxf(top, shuffle_xor(top, step));
  if (any_in_warp(has_nan)) top = NAN;
  if (lane == 0 && top != -INFINITY && p.max_logit != nullptr)
    atomic_max(p.max_logit + head, top * p.logit_scale);
}

/// A consumer warpgroup.
template <class B>
struct ForwardConsumer {
  const ForwardParams& p;
  const ForwardShared<B>& at;
  int group;  // which consumer
  uint32_t q;
  int num_k = 0, num_v = 0, num_q = 0;  // tiles taken
  uint32_t weights[B::kWalked / 4];     // P of the tile before, in pairs
  float out[B::kV / 2];

  __device__ ForwardConsumer(const ForwardParams& params, const ForwardShared<B>& shared,
                             int consumer)
      : p(params),
        at(shared),
        group(consumer),
        q(shared.q + consumer * kWarpgroupRows * kPanelRowBytes) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  /// logits = Q K^T of the K tile in `stage`.
  __device__ __forceinline__ void start_logits(float (&logits)[B::kWalked / 2], int stage) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kQk / 16; ++step) {
      wgmma_ss<typename B::T>(
          logits, matrix_descriptor(step_address<B::kOwned>(q, step), 16),
          matrix_descriptor(step_address<B::kWalked>(at.k + stage * B::kKBytes, step), 16),
          step > 0);
    }
    wgmma_commit();
  }

  /// out += P V of the V tile in `stage`.
  __device__ __forceinline__ void start_values(int stage) {
    pin(out);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      wgmma_rs<typename B::T>(
          out, weights + 4 * step,
          matrix_descriptor(at.v + stage * B::kVBytes + step * 16 * kPanelRowBytes,
                            B::kWalked * kPanelRowBytes));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void round_weights(const float (&logits)[B::kWalked / 2]) {
#pragma unroll
    for (int i = 0; i < B::kWalked / 4; ++i)
      weights[i] = pack<typename B::T>(logits[2 * i], logits[2 * i + 1]);
  }

  __device__ __forceinline__ int take_k() {
    const int stage = num_k % B::kStages;
    mbarrier_wait(at.k_full + 8 * stage, (num_k / B::kStages) & 1);
    ++num_k;
    return stage;
  }
  __device__ __forceinline__ int take_v() {
    const int stage = num_v % B::kStages;
    mbarrier_wait(at.v_full + 8 * stage, (num_v / B::kStages) & 1);
    ++num_v;
    return stage;
  }

  /// All walked tiles of an item.
  __device__ __forceinline__ void walk_tiles(const OwnedTile& tile, RowState<B>& state,
                                             int32_t first_row) {
    RunWalk<B::kWalked> walk(tile);
    const auto step = [&] {
      const bool has_tile = walk.next(p.tiles.runs);
      if (has_tile && walk.begins_run && walk.is_masked != 0)
        state.read_spans(p, walk.range_set, walk.end, first_row);
      return has_tile;
    };
    float shrink[2];
    {
      float logits[B::kWalked / 2];
      step();
      const int stage = take_k();
      start_logits(logits, stage);
      wgmma_wait<0>();
      pin(logits);
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * stage);
      state.take(p, logits, shrink, walk.row, walk.is_masked != 0);
      round_weights(logits);
    }
    while (step()) {
      float logits[B::kWalked / 2];
      const int k_stage = take_k();
      if (B::kTakesTurns) named_barrier_sync(1 + group, 2 * kWarpgroupThreads);
      start_logits(logits, k_stage);
      const int v_stage = take_v();
      start_values(v_stage);
      if (B::kTakesTurns)
        named_barrier_arrive(1 + (group + 1) % B::kConsumers, 2 * kWarpgroupThreads);
      wgmma_wait<1>();
      pin(logits);
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * k_stage);
      state.take(p, logits, shrink, walk.row, walk.is_masked != 0);  // P V runs meanwhile
      wgmma_wait<0>();
      pin(out);
      if (is_elected()) mbarrier_arrive(at.v_free + 8 * v_stage);
      round_weights(logits);
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) out[i] *= shrink[(i / 2) & 1];
    }
    const int stage = take_v();
    start_values(stage);
    wgmma_wait<0>();
    pin(out);
    if (is_elected()) mbarrier_arrive(at.v_free + 8 * stage);
  }

  __device__ __forceinline__ void run() {
    WorkSlots slots(at.slots);
    // The first warpgroup may begin.
    if (B::kTakesTurns && group == B::kConsumers - 1)
      named_barrier_arrive(1, 2 * kWarpgroupThreads);
    for (;;) {
      const int32_t drawn = slots.read();
      if (drawn < 0) return;
      const OwnedTile tile = p.tiles.tiles[p.tiles.work[drawn].tile];
      const int32_t first_row =
          tile.begin + group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
      RowState<B> state;
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) out[i] = 0.0f;
      mbarrier_wait(at.q_full, num_q & 1);
      ++num_q;
      if (tile.num_runs > 0) walk_tiles(tile, state, first_row);
      __syncwarp();  // every lane has seen q_full's phase before the next one can begin
      if (is_elected()) mbarrier_arrive(at.q_free);
      // Read again rather than kept in registers through the walk.
      const WorkItem item = p.tiles.work[drawn];
      finish_rows<B>(p, state, out, first_row, p.tiles.tiles[item.tile].end, item.head);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    attend_on_hopper(const __grid_constant__ ForwardParams p) {
  const ForwardShared<B> at;
  at.init();
  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_forward<B>(p, at);
  } else {
    claim_registers<B::kConsumerRegisters>();
    ForwardConsumer<B>(p, at, warpgroup - 1).run();
  }
}

}  // namespace cpscope::kernels::device
