#pragma once

#include "kernels/hopper_products.h"
#include "kernels/hopper_softmax.h"
#include "kernels/merge_weights.h"

#include <cmath>
#include <cstdint>

// Forward attention of sm_90a: out and lse of one compute item.
//
// A persistent kernel. One warp, the dealer, draws (query tile, head) items from a counter, a
// thread fetches their Q, K and V tiles by box copies; every consumer warpgroup computes 64
// query rows with wgmma. Three overlaps: P.V of a tile runs under the softmax of the next one;
// where kTakesTurns the products of one warpgroup run under the softmax of another; and an item
// begins while the one before ends: its tables and, where kQStages is 2, its Q and first K are
// fetched under the last tiles of the item before, whose rows leave under its first product. In the
// dtype they do so by the copy unit, from where the item's Q was (kSendsRows).
// Where rows see few keys, query heads of a kv head lie side by side in a tile (kHasHeads): it has
// fewer tokens, so it meets fewer documents and hides less; and three CTAs of one consumer
// share an SM, each with items of its own, so that one computes while another begins or ends.
//
// Ladder: v1 is the portable kernel (attention_forward.cu), v2 had the first two overlaps, v3 the
// third, v4 steps by the number of keys; v5 leaves sums alone while no logit outgrows a limit, of
// which a vote of the warp tells, and adds to descriptors instead of making them; v6 has tiles of
// three consumers where rows see many keys, and of one where they see few; v7 has three CTAs of
// these at 128 lanes too, and less to do around an item.
// Grid: kCtasPerSm CTAs per SM; 128 threads for the producer and for each consumer.
// Shared memory: kQStages of Q, kKStages of K and kVStages of V, in 64-lane panels with the
// 128-byte swizzle. K is free as soon as its logits are there and comes again under their softmax;
// V waits for the next logits, so it wants the stages more.
// Accuracy: as v1: fp32 sums, P rounded to the dtype, base-2 softmax with one FMA per logit.
// Source: FlashAttention-3 (arXiv:2407.08608), the two overlaps; FlashAttention-4 leaves sums alone
// too, with a fixed slack.

namespace cpscope::kernels::device {

/// One configuration of the kernel. kQk, kV: lanes of a head that it is built for.
template <class T_, int kQk_, int kV_, int kConsumers_, int kWalked_, int kKStages_, int kVStages_,
          int kQStages_, bool kTakesTurns_, bool kHasHeads_, int kProducerRegisters_,
          int kConsumerRegisters_, bool kHasCap_>
struct ForwardBudget {
  using T = T_;
  static constexpr int kQk = kQk_, kV = kV_, kConsumers = kConsumers_, kWalked = kWalked_;
  static constexpr int kOwned = kWarpgroupRows * kConsumers;
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr bool kHasHeads = kHasHeads_;  // side by side in a tile: rows see few keys
  static constexpr bool kHasCap = kHasCap_;
  static constexpr int kKStages = kKStages_, kVStages = kVStages_, kQStages = kQStages_;
  static constexpr bool kSendsRows = kQStages == 2 && kV <= kQk;  // where Q was, under the next Q
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kCtasPerSm =
      kRegistersPerSm /
      (kWarpgroupThreads * (kProducerRegisters + kConsumers * kConsumerRegisters));
  // Lanes of V that one product takes. ptxas wants the registers of an instruction among those that
  // a warp is launched with, whatever it has later.
  static constexpr int kValueLanes = kCtasPerSm == 3 ? kBoxLanes : kV;
  static constexpr int kQBytes = kOwned * kQk * 2;
  static constexpr int kKBytes = kWalked * kQk * 2;
  static constexpr int kVBytes = kWalked * kV * 2;
  static constexpr int kSharedBytes =
      1024 + kQStages * kQBytes + kKStages * kKBytes + kVStages * kVBytes + 256 + WorkDeal::kBytes;

  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kCtasPerSm * kThreads));
  static_assert(kProducerRegisters % 8 == 0 && kConsumerRegisters % 8 == 0);
  static_assert(kQk % kBoxLanes == 0 && kV % kBoxLanes == 0 && kWalked % 16 == 0);
  static_assert(kSharedBytes <= max_shared_bytes(kCtasPerSm));
};

/// Where things lie in shared memory.
template <class B>
struct ForwardShared {
  uint32_t q, k, v;
  uint32_t q_full, q_free, out_full, k_full, k_free, v_full, v_free, deal;

  __device__ ForwardShared() {
    q = align_to_swizzle(shared_address(dynamic_shared()));
    k = q + B::kQStages * B::kQBytes;
    v = k + B::kKStages * B::kKBytes;
    q_full = v + B::kVStages * B::kVBytes;
    q_free = q_full + 8 * B::kQStages;
    out_full = q_free + 8;
    k_full = out_full + 8;
    k_free = k_full + 8 * B::kKStages;
    v_full = k_free + 8 * B::kKStages;
    v_free = v_full + 8 * B::kVStages;
    deal = v_free + 8 * B::kVStages;
  }

  __device__ void init() const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      for (int i = 0; i < B::kQStages; ++i) mbarrier_init(q_full + 8 * i, 1);
      mbarrier_init(q_free, B::kSendsRows ? 1 : kConsumerWarps);
      if (B::kSendsRows) mbarrier_init(out_full, 32 * kConsumerWarps);
      for (int i = 0; i < B::kKStages; ++i) {
        mbarrier_init(k_full + 8 * i, 1);
        mbarrier_init(k_free + 8 * i, kConsumerWarps);
      }
      for (int i = 0; i < B::kVStages; ++i) {
        mbarrier_init(v_full + 8 * i, 1);
        mbarrier_init(v_free + 8 * i, kConsumerWarps);
      }
      WorkDeal(deal).init(kConsumerWarps, B::kSendsRows ? 2 : 1);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
};

/// Tiles of an item, the one that was fetched last included, that are left when the next item is
/// drawn: time enough to draw it, and not so much that a CTA holds one while others have none.
inline constexpr int kDrawAhead = 4;

/// The producer's thread.
template <class B>
__device__ __forceinline__ void fetch_forward(const ForwardParams& p, const ForwardShared<B>& at) {
  for (const TensorMap* map : {&p.q, &p.k, &p.v}) prefetch_map(map);
  WorkDeal deal(at.deal);
  NextStage<B::kKStages> next_k;
  NextStage<B::kVStages> next_v;
  int num_q = 0;  // tiles fetched
  const auto fetch_k = [&](int row, int end, int head) {
    const int stage = next_k.stage();
    mbarrier_wait(at.k_free + 8 * stage, next_k.parity() ^ 1);
    mbarrier_arrive_expecting(at.k_full + 8 * stage, B::kKBytes);
    load_panels<B::kQk, B::kWalked>(at.k + stage * B::kKBytes, &p.k, at.k_full + 8 * stage, row,
                                    end, head);
    next_k.advance();
  };
  const auto fetch_v = [&](int row, int end, int head) {
    const int stage = next_v.stage();
    mbarrier_wait(at.v_free + 8 * stage, next_v.parity() ^ 1);
    mbarrier_arrive_expecting(at.v_full + 8 * stage, B::kVBytes);
    load_panels<B::kV, B::kWalked>(at.v + stage * B::kVBytes, &p.v, at.v_full + 8 * stage, row, end,
                                   head);
    next_v.advance();
  };

  for (;;) {
    const DealtItem item = deal.read_holding();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    int32_t left = tile.num_tiles;
    if (left <= kDrawAhead) deal.let_go();
    if (left == 0) continue;
    const int stage = num_q % B::kQStages;
    // Of two stages: nobody reads the Q of the item before the one before, whose rows have left.
    mbarrier_wait(at.q_free, (num_q & 1) ^ 1);
    ++num_q;
    const TileRows<B::kHasHeads> rows(p);
    const int32_t head = rows.head_of(0, item.head);
    const int32_t kv_head = (p.first_head + head) / p.group - p.first_kv_head;
    mbarrier_arrive_expecting(at.q_full + 8 * stage, B::kQBytes);
    load_panels<B::kQk, B::kOwned, B::kHasHeads>(at.q + stage * B::kQBytes, &p.q,
                                                 at.q_full + 8 * stage, tile.begin, tile.end, head);
    RunWalk<B::kWalked> walk(item);
    walk.next(p.tiles.runs);
    fetch_k(walk.row, walk.end, kv_head);
    // Consumers want the next K before this V.
    int32_t row = walk.row, end = walk.end;
    while (walk.next(p.tiles.runs)) {
      fetch_k(walk.row, walk.end, kv_head);
      fetch_v(row, end, kv_head);
      row = walk.row;
      end = walk.end;
      if (--left == kDrawAhead) deal.let_go();
    }
    fetch_v(row, end, kv_head);
  }
}

/// Writes one of a thread's two rows of `out`; there is no branch but on a parameter.
template <class B, bool kSecond>
__device__ __forceinline__ void store_out(const ForwardParams& p, int64_t row, int32_t head,
                                          int32_t num_lanes, const float (&out)[B::kV / 2]) {
  const int64_t place = row * p.out_row_stride + head * p.out_head_stride;
  using T = typename B::T;
  if (p.is_narrow != 0) {
    store_narrow_row<T, B::kV, kSecond>(static_cast<T*>(p.out) + place, num_lanes, out);
  } else if (p.rounds != 0) {
    store_rounded_row<T, B::kV, kSecond>(static_cast<float*>(p.out) + place, num_lanes, out);
  } else {
    store_row<B::kV, kSecond>(static_cast<float*>(p.out) + place, num_lanes, out, 1.0f);
  }
}

/// Writes what rows have that see nothing.
template <class B>
__device__ __forceinline__ void write_empty_rows(const ForwardParams& p, const OwnedTile& tile,
                                                 int32_t first_row, int32_t head) {
  const float zeros[B::kV / 2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first_row + TileRows<B::kHasHeads>(p).step() * r;
    const bool is_there = row < tile.end;
    store_if(is_there && threadIdx.x % 4 == 0, p.lse + row * p.lse_row_stride + head, -INFINITY);
    store_out<B, false>(p, row, head, is_there ? p.out_lanes : 0, zeros);
  }
}

/// The place of a thread's first two lanes of one of its rows of `out` in fp32.
__device__ __forceinline__ float* out_place(const ForwardParams& p, int64_t row, int32_t head) {
  return static_cast<float*>(p.out) + row * p.out_row_stride + head * p.out_head_stride +
         2 * (threadIdx.x % 4);
}

/// Rounds what rows have that see nothing of these keys and are merged with them all the same.
template <class B>
__device__ __forceinline__ void round_rows(const ForwardParams& p, const OwnedTile& tile,
                                           int32_t first_row, int32_t head) {
  using T = typename B::T;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = first_row + TileRows<B::kHasHeads>(p).step() * r;
    if (row >= tile.end) continue;
    float* const place = out_place(p, row, head);
    for (int32_t lane = 0; lane < p.out_lanes; lane += 8) {
      const FloatPair pair = *reinterpret_cast<const FloatPair*>(place + lane);
      const FloatPair rounded = round_pair<T>(pair.x, pair.y);
      store_pair(place + lane, rounded.x, rounded.y);
    }
  }
}

/// What a thread keeps of an item whose sums are done and whose rows are not yet written.
struct UnwrittenItem {
  int32_t first_row = 0, rows_end = 0;  // nothing is written where they are equal
  int32_t head = 0;
  float lse;        // of the one of the thread's two rows that it tells of
  float max_logit;  // of the warp's rows of the head, -inf: none is visible; NaN: a sum is one
};

/// Lanes of a quad have the same two rows; even ones tell of the first, odd ones of the second.
__device__ __forceinline__ int told_row() { return static_cast<int>(threadIdx.x & 1); }

/// Ends the softmax of an item's rows. factor: that makes sums of P V the mean of V. A sum is at
/// least the weight of the reference, 1, so approximations that leave out subnormal numbers do.
template <class B>
__device__ __forceinline__ UnwrittenItem end_softmax(const ForwardParams& p,
                                                     const RowState<B>& state, int32_t first_row,
                                                     int32_t rows_end, int32_t head,
                                                     float (&factor)[2]) {
  UnwrittenItem item{first_row, rows_end, head, -INFINITY, -INFINITY};
  const TileRows<B::kHasHeads> rows(p);
  const bool is_second = told_row() != 0;
  float sum = is_second ? state.sum[1] : state.sum[0];
  sum += shuffle_xor(is_second ? state.sum[0] : state.sum[1], 1);
  sum += shuffle_xor(sum, 2);
  const bool is_empty = sum == 0.0f;
  const float told = is_empty ? 0.0f : reciprocal_approx(sum);
  const float other = shuffle_xor(told, 1);
  factor[0] = is_second ? other : told;
  factor[1] = is_second ? told : other;
  const float reference = is_second ? state.reference[1] : state.reference[0];
  const float log_sum = logf(sum);
  item.lse = is_empty ? -INFINITY : reference * p.logit_scale + log_sum;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_there = first_row + rows.step() * r < rows_end;
    item.max_logit = fmaxf(item.max_logit, is_there ? state.largest[r] : -INFINITY);
  }
  // The running maximum passed over it.
  if (sum != sum && first_row + rows.step() * told_row() < rows_end) item.max_logit = NAN;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float largest = max_or_nan(item.max_logit, shuffle_xor(item.max_logit, step));
    // Lanes in between have rows of other heads.
    const bool is_same_head = step < 4 || step >= 4 * rows.num_heads();
    item.max_logit = is_same_head ? largest : item.max_logit;
  }
  return item;
}

/// An item's rows, whose mean of V is in `out`, become those of earlier keys and these. No products
/// may be under way.
template <class B>
__device__ __forceinline__ void merge_rows(const ForwardParams& p, UnwrittenItem& item,
                                           float (&out)[B::kV / 2]) {
  const int32_t step = TileRows<B::kHasHeads>(p).step();
  const int64_t told = item.first_row + step * told_row();
  const bool is_told = told < item.rows_end;
  const float before = is_told ? p.lse[told * p.lse_row_stride + item.head] : -INFINITY;
  const MergeWeights own(before, item.lse);
  const float other_before = shuffle_xor(own.before, 1), other_added = shuffle_xor(own.added, 1);
  item.lse = own.lse;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool is_own = told_row() == r;
    const float weight_before = is_own ? own.before : other_before;
    const float weight_added = is_own ? own.added : other_added;
    const int64_t row = item.first_row + step * r;
    const int32_t num_lanes = row < item.rows_end ? p.out_lanes : 0;
    const float* const place = out_place(p, row, item.head);
#pragma unroll
    for (int group = 0; group < B::kV / 8; ++group) {
      if (8 * group >= num_lanes) continue;
      const FloatPair pair = *reinterpret_cast<const FloatPair*>(place + 8 * group);
      float& x = out[4 * group + 2 * r];
      float& y = out[4 * group + 2 * r + 1];
      x = merge_values(pair.x, weight_before, x, weight_added);
      y = merge_values(pair.y, weight_before, y, weight_added);
    }
  }
}

/// The producer's thread that sends rows: those of every item with runs, from its stage of Q, when
/// all consumers have put them there, which they do when they have begun the next one. In the first
/// one they have nothing to put there and say so all the same; the last one's rows they write.
template <class B>
__device__ __forceinline__ void send_rows(const ForwardParams& p, const ForwardShared<B>& at) {
  const TileRows<B::kHasHeads> rows(p);
  WorkDeal deal(at.deal);
  OwnedTile tile;  // of the item before
  int32_t head = 0;
  for (int num_begun = 0;;) {
    const DealtItem item = deal.read_alone();
    if (item.is_last()) break;
    if (item.tile.num_runs == 0) continue;
    mbarrier_wait(at.out_full, num_begun & 1);
    if (num_begun > 0 && p.is_narrow != 0) {
      send_panels<B::kOwned, B::kHasHeads>(at.q + (num_begun - 1) % 2 * B::kQBytes, &p.narrow_out,
                                           tile.begin, tile.end, head, p.out_lanes);
      commit_boxes();
      wait_for_boxes_read();
    }
    mbarrier_arrive(at.q_free);
    ++num_begun;
    tile = item.tile;
    head = rows.head_of(0, item.head);
  }
  wait_for_boxes();
}

/// Puts a warp's rows in the dtype to shared memory, for send_rows. to: of the warpgroup's rows.
template <class B>
__device__ __forceinline__ void place_rows(uint32_t to, const float (&out)[B::kV / 2]) {
  using T = typename B::T;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  const uint32_t at_row = to + row * kPanelRowBytes + (((lane / 16) ^ (row & 7)) << 4);
#pragma unroll
  for (int step = 0; step < B::kV / 16; ++step) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pack<T>(out[8 * step + 2 * i], out[8 * step + 2 * i + 1]);
    store_matrices_x4((at_row ^ (step % 4 << 5)) + step / 4 * B::kOwned * kPanelRowBytes, words);
  }
}

/// Lets the rows leave and raises the head's largest logit. kPlaces: from shared memory if they are
/// in the dtype; `place`: of the warpgroup's rows there. No branch but on a parameter: products are
/// under way.
template <class B, bool kPlaces>
__device__ __forceinline__ void write_rows(const ForwardParams& p, const ForwardShared<B>& at,
                                           const UnwrittenItem& item, uint32_t place,
                                           const float (&out)[B::kV / 2]) {
  const int lane = threadIdx.x % 32;
  const TileRows<B::kHasHeads> rows(p);
  const bool is_placed = kPlaces && p.is_narrow != 0;
  if (is_placed) place_rows<B>(place, out);
  const int64_t told = item.first_row + rows.step() * told_row();
  store_if(told < item.rows_end && lane % 4 < 2, p.lse + told * p.lse_row_stride + item.head,
           item.lse);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (is_placed) continue;
    const int64_t row = item.first_row + rows.step() * r;
    const int32_t num_lanes = row < item.rows_end ? p.out_lanes : 0;
    if (r == 0) {
      store_out<B, false>(p, row, item.head, num_lanes, out);
    } else {
      store_out<B, true>(p, row, item.head, num_lanes, out);
    }
  }
  const bool has_logit = item.first_row < item.rows_end && item.max_logit != -INFINITY;
  const bool is_first = lane % 4 == 0 && lane / 4 < rows.num_heads();  // of its head
  atomic_max_if(is_first && has_logit && p.max_logit != nullptr, p.max_logit + item.head,
                item.max_logit * p.logit_scale);
  if constexpr (kPlaces) {
    publish_shared_writes();
    mbarrier_arrive(at.out_full);  // every lane tells of its own
  }
}

/// kPart of the sums, from `first` on: what one product adds to.
template <int kPart, int kAll>
__device__ __forceinline__ auto part_of(float (&sums)[kAll], int first) -> float (&)[kPart] {
  return *reinterpret_cast<float(*)[kPart]>(sums + first);
}

/// A consumer warpgroup.
template <class B>
struct ForwardConsumer {
  const ForwardParams& p;
  const ForwardShared<B>& at;
  int group;  // which consumer
  NextStage<B::kQStages> next_q;
  NextStage<B::kKStages> next_k;
  NextStage<B::kVStages> next_v;
  uint32_t weights[B::kWalked / 4];  // P of the tile before, in pairs
  float out[B::kV / 2];
  RowState<B> state;
  UnwrittenItem unwritten;

  __device__ ForwardConsumer(const ForwardParams& params, const ForwardShared<B>& shared,
                             int consumer)
      : p(params), at(shared), group(consumer) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  /// This warpgroup's rows of a stage of Q.
  __device__ __forceinline__ uint32_t q_rows(int stage) const {
    return at.q + stage * B::kQBytes + group * kWarpgroupRows * kPanelRowBytes;
  }

  /// logits = Q K^T of the tiles in these stages.
  __device__ __forceinline__ void start_logits(float (&logits)[B::kWalked / 2], int q_stage,
                                               int k_stage) {
    const uint64_t q = matrix_descriptor(q_rows(q_stage), 16);
    const uint64_t k = matrix_descriptor(at.k + k_stage * B::kKBytes, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kQk / 16; ++step) {
      wgmma_ss<typename B::T>(logits, further(q, lane_step<B::kOwned>(step)),
                              further(k, lane_step<B::kWalked>(step)), step > 0);
    }
    wgmma_commit();
  }

  /// out += P V of the V tile in `stage`.
  __device__ __forceinline__ void start_values(int stage) {
    constexpr int kPanelBytes = B::kWalked * kPanelRowBytes;
    const uint64_t v = matrix_descriptor(at.v + stage * B::kVBytes, kPanelBytes);
    pin(out);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
#pragma unroll
      for (int lane = 0; lane < B::kV; lane += B::kValueLanes) {
        const uint64_t rows = further(v, row_step(step) + lane / kBoxLanes * kPanelBytes);
        wgmma_rs<typename B::T>(part_of<B::kValueLanes / 2>(out, lane / 2), weights + 4 * step,
                                rows);
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void round_weights(const float (&logits)[B::kWalked / 2]) {
#pragma unroll
    for (int i = 0; i < B::kWalked / 4; ++i)
      weights[i] = pack<typename B::T>(logits[2 * i], logits[2 * i + 1]);
  }

  /// The stage of the next tile, which is there.
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

  __device__ __forceinline__ bool next_run(RunWalk<B::kWalked>& walk, int32_t first_row) {
    if (!walk.next_run(p.tiles.runs)) return false;
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

  /// Asks for the rows that the item will be merged with: they were written by another item.
  __device__ __forceinline__ void prefetch_rows(const OwnedTile& tile, int32_t dealt_head) const {
    const TileRows<B::kHasHeads> rows(p);
    const int32_t in_tile = group * kWarpgroupRows + threadIdx.x % kWarpgroupThreads / 2;
    const int64_t row = tile.begin + rows.row_of(in_tile);
    if (row >= tile.end) return;
    const float* const place = static_cast<const float*>(p.out) + row * p.out_row_stride +
                               rows.head_of(in_tile, dealt_head) * p.out_head_stride;
    constexpr int kLineLanes = 32;
    for (int32_t lane = threadIdx.x % 2 * kLineLanes; lane < p.out_lanes; lane += 2 * kLineLanes)
      prefetch_to_l2(place + lane);
  }

  /// All walked tiles of an item with runs; the item before is written meanwhile. Returns the next
  /// one, which is read under the last product. The compiler wants sums of products to be used
  /// before other products begin, so the mean is made at once.
  __device__ __forceinline__ DealtItem walk_tiles(const DealtItem& item, int32_t first_row,
                                                  int32_t head, WorkDeal& deal) {
    // What was waited for beside a product hides from the compiler that lanes are together.
    next_q.share_in_warp();
    next_k.share_in_warp();
    next_v.share_in_warp();
    if (p.merges != 0) prefetch_rows(item.tile, item.head);
    RunWalk<B::kWalked> walk(item);
    state = {};
    const int q_stage = take_q();
    next_run(walk, first_row);
    float shrink[2];
    {
      float logits[B::kWalked / 2];
      const int stage = take_k();
      start_logits(logits, q_stage, stage);
      write_rows<B, B::kSendsRows>(p, at, unwritten, q_rows(q_stage ^ 1), out);  // meanwhile
      wgmma_wait<0>();
      pin(logits);
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * stage);
      state.take(p, logits, shrink, walk);
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) out[i] = 0.0f;
      round_weights(logits);
      if constexpr (!B::kHasHeads) state.raise_limits(p);  // of few keys there are few tiles
    }
    // Most tiles go on with a run: one branch, and none over what begins one.
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
      if (is_elected()) mbarrier_arrive(at.k_free + 8 * k_stage);
      const bool outgrown = state.take(p, logits, shrink, walk);  // P V runs meanwhile
      wgmma_wait<0>();
      pin(out);
      if (is_elected()) mbarrier_arrive(at.v_free + 8 * v_stage);
      round_weights(logits);
      if (outgrown) {
        multiply_sums(shrink);
        state.raise_limits(p);
      }
    }
    // Nothing reads Q any more; the waits above were those of whole warps.
    if (!B::kSendsRows && is_elected()) mbarrier_arrive(at.q_free);
    const int stage = take_v();
    start_values(stage);
    float factor[2];
    unwritten = end_softmax<B>(p, state, first_row, item.tile.end, head, factor);
    const DealtItem next = deal.read();
    wgmma_wait<0>();
    pin(out);
    if (is_elected()) mbarrier_arrive(at.v_free + 8 * stage);
    multiply_sums(factor);
    if (p.merges != 0) merge_rows<B>(p, unwritten, out);
    return next;
  }

  __device__ __forceinline__ void run() {
    WorkDeal deal(at.deal);
    // The first warpgroup may begin.
    if (B::kTakesTurns && group == B::kConsumers - 1)
      named_barrier_arrive(1, 2 * kWarpgroupThreads);
    const int32_t row_in_tile =
        group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
    DealtItem item = deal.read();
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
        item = deal.read();
      } else {
        item = walk_tiles(item, first_row, head, deal);
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
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_forward<B>(p, at);
    if (threadIdx.x / 32 == 1) WorkDeal(at.deal).deal<true, B::kHasHeads>(p.tiles, p.counter);
    if (B::kSendsRows && threadIdx.x == 64) send_rows<B>(p, at);
  } else {
    claim_registers<B::kConsumerRegisters>();
    ForwardConsumer<B>(p, at, warpgroup - 1).run();
  }
}

}  // namespace cpscope::kernels::device
