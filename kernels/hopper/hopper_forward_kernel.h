#pragma once

#include "kernels/device/fp8_values.h"
#include "kernels/hopper/hopper_code_softmax.h"
#include "kernels/hopper/hopper_forward_rows.h"
#include "kernels/hopper/hopper_forward_stages.h"
#include "kernels/hopper/hopper_products.h"
#include "kernels/hopper/hopper_softmax.h"

#include <cstdint>

// Forward attention of sm_90a: out and lse of one compute item.
//
// A persistent kernel. One warp, the tile scheduler, fetches (query tile, head) items with a
// counter. One thread loads their Q, K and V tiles by TMA. Every consumer warpgroup computes 64
// query rows with wgmma. Three overlaps: P.V of a tile runs under the softmax of the next one;
// where kTakesTurns the products of one warpgroup run under the softmax of another; and an item
// begins while the one before ends: its tables and, where kQStages is 2, its Q and first K are
// fetched under the last tiles of the item before, whose rows are written under its first product.
// Rows in the dtype are written by TMA, from the shared memory of their item's Q (kSendsRows).
// Where rows see few keys, a tile holds several query heads of a KV head (kHasHeads): it has fewer
// tokens, so it meets fewer documents and masks less; and three CTAs of one consumer
// share an SM, each with items of its own, so that one computes while another begins or ends.
//
// Ladder: v1 is the portable kernel (attention_forward.cu), v2 had the first two overlaps, v3 the
// third, v4 steps by the number of keys; v5 rescales sums only when a logit exceeds a limit, found
// by a vote of the warp, and adds to descriptors instead of making new ones; v6 has tiles of three
// consumers where rows see many keys, and of one where they see few; v7 has three CTAs of the
// latter at head_dim 128 too, and less overhead per item and per step. In a later step of a ring an
// item merges its rows with those of the steps before (hopper_forward_rows.h). ALiBi: v1 is the
// portable kernel, v2 read the position of every key, v3 adds a line (RowState), v4 takes keys from
// the nearest on.
// Grid: kCtasPerSm CTAs per SM; 128 threads for the producer and for each consumer.
// Shared memory: kQStages of Q, kKStages of K and kVStages of V, in panels of 64 elements with the
// 128-byte swizzle. K is free as soon as its logits are computed and is refilled under their
// softmax; V waits for the next logits, so it needs the stages more.
// Accuracy as v1: fp32 sums, P rounded to the dtype, base-2 softmax with one FMA per logit. Source:
// FlashAttention-3 (arXiv:2407.08608), the two overlaps; FlashAttention-4 also skips rescaling,
// with a fixed slack.

namespace cpscope::kernels::device {

/// kPart of the kAll sums, from `first` on: the accumulators of one product.
template <int kPart, int kAll>
__device__ __forceinline__ auto part_of(float (&sums)[kAll], int first) -> float (&)[kPart] {
  return *reinterpret_cast<float(*)[kPart]>(sums + first);
}

/// Sums of E4m3 products. Tensor cores keep about 14 bits of the largest addend and cut the rest,
/// so after some tiles a thread adds its sums, in fp32, to those in its place of shared memory.
/// These are relative to the reference of that time. Sums of 96 products err by less than 1 %;
/// after 8 tiles instead of 32 the kernel is 5 % slower.
template <class B>
struct KeptSums {
  static constexpr int kTiles = 32;
  static constexpr int kFours = B::kV / 8, kFourBytes = kWarpgroupThreads * 16;

  uint32_t place;     // of the first four; others kFourBytes further on, `subtracted` last
  int32_t num_tiles;  // since the sums were kept
  bool has_any;

  __device__ KeptSums(const ForwardShared<B>& at, int consumer)
      : place(at.kept + consumer * (kFours + 1) * kFourBytes +
              threadIdx.x % kWarpgroupThreads * 16) {}

  __device__ __forceinline__ void begin() {
    num_tiles = 0;
    has_any = false;
  }

  /// Counts a tile. Returns whether sums are to be kept.
  __device__ __forceinline__ bool count_tile() { return ++num_tiles >= kTiles; }

  /// Keeps the sums, which become 0. No products may be in flight.
  __device__ __forceinline__ void keep(float (&sums)[B::kV / 2], const CodeRows<B>& state) {
    add_to(sums, state);
#pragma unroll
    for (int i = 0; i < B::kV / 2; i += 4) {
      store_shared_four(place + i / 4 * kFourBytes,
                        {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
      sums[i] = sums[i + 1] = sums[i + 2] = sums[i + 3] = 0.0f;
    }
    store_shared_pair(place + kFours * kFourBytes, {state.subtracted[0], state.subtracted[1]});
    num_tiles = 0;
    has_any = true;
  }

  __device__ __forceinline__ void add_to(float (&sums)[B::kV / 2], const CodeRows<B>& state) const {
    if (!has_any) return;
    const FloatPair subtracted = load_shared_pair(place + kFours * kFourBytes);
    const float shrink[2] = {exp2_approx(subtracted.x - state.subtracted[0]),
                             exp2_approx(subtracted.y - state.subtracted[1])};
#pragma unroll
    for (int i = 0; i < B::kV / 2; i += 4) {
      const FloatFour four = load_shared_four(place + i / 4 * kFourBytes);
      sums[i] += four.x * shrink[0];
      sums[i + 1] += four.y * shrink[0];
      sums[i + 2] += four.z * shrink[1];
      sums[i + 3] += four.w * shrink[1];
    }
  }
};
template <class B>
requires(!B::kHasCodes) struct KeptSums<B> {
  __device__ KeptSums(const ForwardShared<B>&, int) {}
};

/// A consumer warpgroup.
template <class B>
struct ForwardConsumer {
  const ForwardParams& p;
  const ForwardShared<B>& at;
  int group;  // index of the consumer
  NextStage<B::kQStages> next_q;
  NextStage<B::kKStages> next_k;
  NextStage<B::kVStages> next_v;
  uint32_t weights[B::kWalked * B::kBytes / 8];  // P of the previous tile, in pairs or in fours
  float out[B::kV / 2];
  KeptSums<B> kept;
  SoftmaxRows<B> state;
  UnwrittenItem unwritten;

  __device__ ForwardConsumer(const ForwardParams& params, const ForwardShared<B>& shared,
                             int consumer)
      : p(params), at(shared), group(consumer), kept(shared, consumer) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  /// Address of this warpgroup's rows in a stage of Q.
  __device__ __forceinline__ uint32_t q_rows(int stage) const {
    return at.q + stage * B::kQBytes + group * kWarpgroupRows * kPanelRowBytes;
  }

  /// Starts logits = Q K^T of the tiles in these stages.
  __device__ __forceinline__ void start_logits(float (&logits)[B::kWalked / 2], int q_stage,
                                               int k_stage) {
    const uint64_t q = matrix_descriptor(q_rows(q_stage), 16);
    const uint64_t k = matrix_descriptor(at.k + k_stage * B::kKBytes, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kQkSteps; ++step) {
      const uint64_t a = further(q, head_dim_step<B::kOwned>(step)),
                     b = further(k, head_dim_step<B::kWalked>(step));
      if constexpr (B::kHasCodes) {
        wgmma_ss_codes(logits, a, b, step > 0);
      } else {
        wgmma_ss<typename B::T>(logits, a, b, step > 0);
      }
    }
    wgmma_commit();
  }

  /// Starts out += P V of the V tile in `stage`.
  __device__ __forceinline__ void start_values(int stage) {
    if constexpr (B::kHasCodes) {
      start_code_values(stage);
    } else {
      start_narrow_values(stage);
    }
  }

  __device__ __forceinline__ void start_narrow_values(int stage) {
    constexpr int kPanelBytes = B::kWalked * kPanelRowBytes;
    const uint64_t v = matrix_descriptor(at.v + stage * B::kVBytes, kPanelBytes);
    pin(out);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
#pragma unroll
      for (int first = 0; first < B::kV; first += B::kValueElements) {
        const uint64_t rows = further(v, row_step(step) + first / kBoxLanes * kPanelBytes);
        wgmma_rs<typename B::T>(part_of<B::kValueElements / 2>(out, first / 2), weights + 4 * step,
                                rows);
      }
    }
    wgmma_commit();
  }

  /// Of E4m3: V lies by elements of head_dim, its keys in the order of `weights`.
  __device__ __forceinline__ void start_code_values(int stage) {
    const uint64_t v = matrix_descriptor(at.v + stage * B::kVBytes, 16);
    pin(out);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 32; ++step)
      wgmma_rs_codes(out, weights + 4 * step, further(v, 32 * step), 1);
    wgmma_commit();
  }

  /// A thread has numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16 of a row; a product wants four
  /// that follow one another, so V's keys are stored in the order that these have.
  __device__ __forceinline__ void cast_weights(const float (&logits)[B::kWalked / 2]) {
#pragma unroll
    for (int i = 0; i < B::kWalked / 8; ++i) {
      const int at_row = i / 2 * 8 + i % 2 * 2;
      weights[i] = pack_codes(Fp8Type::e4m3, logits[at_row], logits[at_row + 1], logits[at_row + 4],
                              logits[at_row + 5]);
    }
  }

  __device__ __forceinline__ void round_weights(const float (&logits)[B::kWalked / 2]) {
    if constexpr (B::kHasCodes) {
      cast_weights(logits);
    } else {
#pragma unroll
      for (int i = 0; i < B::kWalked / 4; ++i) {
        const float low = logits[2 * i], high = logits[2 * i + 1];
        weights[i] =
            B::kIsFp8 ? pack_fp8_values(Fp8Type::e4m3, low, high) : pack<typename B::T>(low, high);
      }
    }
  }

  /// Returns the stage of the next tile, once the tile has arrived.
  template <int kStages>
  __device__ __forceinline__ static int take(NextStage<kStages>& next, uint32_t full) {
    const int stage = next.stage();
    mbarrier_wait(full + 8 * stage, next.parity());
    next.advance();
    return stage;
  }
  __device__ __forceinline__ int take_k() { return take(next_k, at.k_full); }
  __device__ __forceinline__ int take_v() { return take(next_v, at.v_full); }
  __device__ __forceinline__ int take_q() { return take(next_q, at.q_full); }

  /// OwnedTile::unseen of this warpgroup, read again where it is needed: that is seldom, and there
  /// are no registers for it. Until the next item is read.
  __device__ __forceinline__ int32_t num_unseen(const typename B::Walk& walk) const {
    return walk.unseen() >> (8 * group) & 0xff;
  }

  __device__ __forceinline__ bool next_run(typename B::Walk& walk, int32_t first_row) {
    if (!walk.next_run(p.tiles.runs)) return false;
    if constexpr (B::kTrims) {
      if (walk.run == walk.last_run) walk.leave_out(num_unseen(walk));
    }
    if (walk.is_masked != 0 && walk.range_set != state.range_set) {
      state.ranges.fetch(p.tiles, p.q_rows, walk.range_set, first_row,
                         TileRows<B::kHasHeads>(p).step());
      state.range_set = walk.range_set;
    }
    return true;
  }

  __device__ __forceinline__ void wait_for_turn() const {
    if (B::kTakesTurns) named_barrier_sync(1 + group, 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void pass_turn() const {
    if (B::kTakesTurns)
      named_barrier_arrive(1 + (group + 1) % B::kConsumers, 2 * kWarpgroupThreads);
  }

  __device__ __forceinline__ void multiply_sums(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < B::kV / 2; ++i) out[i] *= factor[(i / 2) & 1];
  }

  __device__ __forceinline__ void cast_out() {
    const float descale = 1.0f / p.out_scale;
#pragma unroll
    for (int i = 0; i < B::kV / 2; ++i)
      out[i] = scale_to_fp8(Fp8Type::e4m3, out[i], p.out_scale) * descale;
  }

  /// Prefetches the rows that the item will be merged with: another item wrote them.
  __device__ __forceinline__ void prefetch_rows(const OwnedTile& tile, int32_t item_head) const {
    const TileRows<B::kHasHeads> rows(p);
    const int32_t in_tile = group * kWarpgroupRows + threadIdx.x % kWarpgroupThreads / 2;
    const int64_t row = tile.begin + rows.row_of(in_tile);
    if (row >= tile.end) return;
    const float* const place = static_cast<const float*>(p.out) + row * p.out_row_stride +
                               rows.head_of(in_tile, item_head) * p.out_head_stride;
    constexpr int kLineElements = 32;
    for (int32_t first = threadIdx.x % 2 * kLineElements; first < p.out_head_dim;
         first += 2 * kLineElements)
      prefetch_to_l2(place + first);
  }

  /// Turns logits into the weights of the next P V while the last one runs. Releases K, and then
  /// the V of the last one.
  __device__ __forceinline__ void weigh(float (&logits)[B::kWalked / 2],
                                        const typename B::Walk& walk, int k_stage, int v_stage,
                                        RowPlace rows) {
    if (is_elected()) mbarrier_arrive(at.k_free + 8 * k_stage);
    float shrink[2];
    const bool outgrown = state.take(p, logits, shrink, walk, rows);
    wgmma_wait<0>();
    pin(out);
    if (is_elected()) mbarrier_arrive(at.v_free + 8 * v_stage);
    round_weights(logits);
    if (outgrown) {
      multiply_sums(shrink);
      if constexpr (!B::kIsFp8) state.raise_limits(p);
    }
  }

  /// The same of codes (CodeRows). The branch follows the casts, so that these are made while
  /// exponentials are; K is released after it, because logits may be needed again.
  __device__ __forceinline__ void weigh_codes(float (&logits)[B::kWalked / 2],
                                              const typename B::Walk& walk, int q_stage,
                                              int k_stage, int v_stage) {
    float part[2];
    state.hide(logits, walk);
    state.begin_rows(p, logits, walk);
    state.weigh(p, logits, part);
    wgmma_wait<0>();
    pin(out);
    if (is_elected()) mbarrier_arrive(at.v_free + 8 * v_stage);
    cast_weights(logits);
    const bool is_full = kept.count_tile();
    if (any_in_warp(state.is_outgrown()) || is_full) {
      remake_codes(logits, part, walk, q_stage, k_stage);
      if (is_full) kept.keep(out, state);
      part[0] = part[1] = 0.0f;
    }
    if (is_elected()) mbarrier_arrive(at.k_free + 8 * k_stage);
    state.sum[0] += part[0];
    state.sum[1] += part[1];
  }

  /// Makes codes again where a weight is too large. No products may be in flight.
  __device__ __forceinline__ void remake_codes(float (&values)[B::kWalked / 2],
                                               const float (&part)[2], const typename B::Walk& walk,
                                               int q_stage, int k_stage) {
    if (any_in_warp(state.is_lost())) {
      kept.keep(out, state);  // that leaves its registers to the product
      const uint32_t rows = threadIdx.x / 32 % 4 * 16 * kPanelRowBytes;
      multiply_in_warp<B::kWalked>(values, q_rows(q_stage) + rows, at.k + k_stage * B::kKBytes);
      state.hide(values, walk);
      state.take(p, values);
    } else {
      float shrink[2];
      state.scale_down(values, part, shrink);
      multiply_sums(shrink);
    }
    cast_weights(values);
  }

  /// Computes nothing of the next tiles, of which this warpgroup's rows see nothing: but others
  /// wait for it at every barrier. Every lane must have seen a stage full before its warp releases
  /// it, else the stage may have been filled again.
  __device__ __forceinline__ void pass_by_tiles(int32_t num_tiles) {
#pragma unroll 1
    for (int32_t i = 0; i < num_tiles; ++i) {
      wait_for_turn();
      pass_turn();
      const int k_stage = take_k();
      __syncwarp();
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * k_stage);
      const int v_stage = take_v();
      __syncwarp();
      if (is_elected()) mbarrier_arrive(at.v_free + 8 * v_stage);
    }
  }

  /// Computes all streamed tiles of an item with runs, and writes the previous item meanwhile.
  /// Returns the next item, which is read under the last product. The compiler requires sums of
  /// products to be used before other products begin, so the mean is made at once.
  __device__ __forceinline__ ScheduledItem walk_tiles(const ScheduledItem& item, int32_t first_row,
                                                      int32_t head, TileScheduler& scheduler) {
    // After a wait next to a product, the compiler no longer knows that the lanes have converged.
    next_q.share_in_warp();
    next_k.share_in_warp();
    next_v.share_in_warp();
    if (p.merges != 0) prefetch_rows(item.tile, item.head);
    typename B::Walk walk(item);
    state = {};
    if constexpr (B::kHasCodes) kept.begin();
    const int q_stage = take_q();
    next_run(walk, first_row);
    {
      float logits[B::kWalked / 2];
      const int stage = take_k();
      start_logits(logits, q_stage, stage);
      write_rows<B, B::kSendsRows>(p, at, unwritten, q_rows(q_stage ^ 1), out);  // meanwhile
      wgmma_wait<0>();
      pin(logits);
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * stage);
      if constexpr (B::kHasCodes) {
        state.hide(logits, walk);
        state.take(p, logits);
      } else {
        float shrink[2];
        state.take(p, logits, shrink, walk, {first_row, head});
      }
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) out[i] = 0.0f;
      round_weights(logits);
      // With few keys there are few tiles; and a weight of fp8 must not be above its largest.
      if constexpr (!B::kHasHeads && !B::kIsFp8) state.raise_limits(p);
    }
    // Codes run 0.4 % slower with that, and few of their tiles have no rows for a warpgroup.
    if (B::kConsumers > 1 && !B::kHasCodes &&
        item.tile.begin + group * kWarpgroupRows >= item.tile.end) {
      pass_by_tiles(item.tile.num_tiles - 1);
      walk.stop();
    }
    // Most tiles continue a run: that takes one branch, and none over the code that begins a run.
    while (walk.next_in_run() || next_run(walk, first_row)) {
      float logits[B::kWalked / 2];
      const int k_stage = take_k();
      wait_for_turn();
      start_logits(logits, q_stage, k_stage);
      const int v_stage = take_v();
      start_values(v_stage);
      pass_turn();
      wgmma_wait<1>();
      pin(logits);
      if constexpr (B::kHasCodes) {
        weigh_codes(logits, walk, q_stage, k_stage, v_stage);
      } else {
        weigh(logits, walk, k_stage, v_stage, {first_row, head});
      }
    }
    // No more reads of Q; the waits above were those of whole warps.
    if (!B::kSendsRows && is_elected()) mbarrier_arrive(at.q_free);
    const int stage = take_v();
    start_values(stage);
    float factor[2];
    unwritten = end_softmax<B>(p, state, first_row, item.tile.end, head, factor);
    const int32_t num_left_out = B::kTrims ? num_unseen(walk) : 0;
    const ScheduledItem next = scheduler.read();
    wgmma_wait<0>();
    pin(out);
    if (is_elected()) mbarrier_arrive(at.v_free + 8 * stage);
    if constexpr (B::kTrims) pass_by_tiles(num_left_out);
    if constexpr (B::kHasCodes) kept.add_to(out, state);
    multiply_sums(factor);
    if constexpr (B::kIsFp8) {
      if (p.out_scale != 0.0f) cast_out();
    }
    if (p.merges != 0) merge_rows<B>(p, unwritten, out);
    return next;
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    // The first warpgroup may begin.
    if (B::kTakesTurns && group == B::kConsumers - 1)
      named_barrier_arrive(1, 2 * kWarpgroupThreads);
    const int32_t row_in_tile =
        group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
    ScheduledItem item = scheduler.read();
    while (!item.is_last()) {
      const TileRows<B::kHasHeads> rows(p);
      const int32_t first_row = item.tile.begin + rows.row_of(row_in_tile);
      const int32_t head = rows.head_of(row_in_tile, item.head);
      if (item.tile.num_runs == 0) {
        if (p.merges == 0) {
          write_empty_rows<B>(p, item.tile, first_row, head);
        } else if (p.rounds != 0) {
          round_rows<B>(p, item.tile, first_row, head);
        }
        item = scheduler.read();
      } else {
        item = walk_tiles(item, first_row, head, scheduler);
      }
    }
    write_rows<B, false>(p, at, unwritten, 0, out);
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, B::kCtasPerSm)
    attend_on_hopper(const __grid_constant__ ForwardParams p) {
  const ForwardShared<B> at;
  at.init();
  tell_begun(p.tiles.begun);
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_forward<B>(p, at);
    if (threadIdx.x / 32 == 1)
      TileScheduler(at.scheduler).schedule<true, B::kHasHeads>(p.tiles, p.counter);
    if (B::kSendsRows && threadIdx.x == 64) send_rows<B>(p, at);
  } else {
    claim_registers<B::kConsumerRegisters>();
    ForwardConsumer<B>(p, at, warpgroup - 1).run();
  }
}

}  // namespace cpscope::kernels::device
