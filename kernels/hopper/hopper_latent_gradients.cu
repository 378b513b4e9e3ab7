#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_latent_gradients.h"
#include "kernels/hopper/hopper_row_metadata.h"

#include <algorithm>
#include <cstdint>
#include <string>

// dq, and dk, of one compute item of latent attention on sm_90a: a row of K is up to 576 elements,
// whose first 512 are the row of V.
//
// Both kernels are one: a CTA holds 64 stationary rows, streams those that meet them, 64 at a time,
// and sums up 64 x 576 elements in registers.
//   dq  holds Q and dO, streams K:   S = Q K^T, dP = dO V^T, dq += dS K
//   dk  holds K, streams Q and dO of every query head: S' = K Q^T, dP' = V dO^T,
//       dk += P' dO + scale dS' Q
// The two consumers have roles: one makes S and the weights P, the other dP and from both dS =
// P (dP - delta). Each sums up half of the elements, so that each needs P (for dk) and dS. They
// pass through shared memory by threads: a thread of one consumer and the thread with the same
// index of the other hold the same pairs, one writes P in fp32, the other dS, rounded, in its
// place. A half of a streamed tile is loaded again as soon as both have read it.
//
// Ladder: v1 is the portable kernel (attention_terms.cu, products in fp32); this one is v2.
// Grid: one CTA per SM, work fetched with a counter; 128 threads for the producer and for each
// consumer. Shared memory: 227 KiB, a single stage of streamed rows. Limit: a tile of 64 x 64 of dk
// takes 4352 clocks of products, and its 136 KiB of Q and dO come from L2 at 28 bytes a clock.
// Accuracy: fp32 sums, P and dS (in dk times the scale) rounded to the dtype.
// Source: FlashAttention-2 (arXiv:2307.08691), alg. 2; DeepSeek-V2 (arXiv:2405.04434), 2.1; roles
// as in hopper_wide_key_gradient.cu.

namespace cpscope::kernels {
namespace device {
namespace {

constexpr int kTileRows = kWarpgroupRows;
constexpr int kPanelBytes = kTileRows * kPanelRowBytes;
constexpr int kQk = 576, kV = 512;
constexpr int kHalf = kV / 2;  // elements that a consumer sums up; one also those behind V
constexpr int kLast = kQk - kV;
constexpr int kHalfPanels = kHalf / kBoxLanes;
constexpr int kScores = kTileRows / 2;  // of a thread
using Facts = FactLayout<kTileRows>;

/// One of the kernels, with inputs in T.
template <class Element, bool kHasStationaryKeys>
struct LatentGradient {
  using T = Element;
  static constexpr bool kOwnsKeys = kHasStationaryKeys;
  static constexpr int kConsumers = 2;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kOwnsKeys ? 40 : 24;
  static constexpr int kConsumerRegisters = kOwnsKeys ? 232 : 240;
  static constexpr int kRowBytes = kTileRows * kQk * 2;  // of q, or of k
  static constexpr int kGradBytes = kTileRows * kV * 2;  // of d_out
  static constexpr int kExchangeBytes = kTileRows * kTileRows * 4;
  static constexpr int kFactBytes = kOwnsKeys ? Facts::kBytes : 0;
  static constexpr int kBarriers = 20;
  static constexpr int kSharedBytes = 1024 + 2 * kRowBytes + kGradBytes + kExchangeBytes +
                                      kFactBytes + 8 * kBarriers + TileScheduler::kBytes;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kThreads));
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

/// Which rows of a pair of tensors: q or k, and those that dP multiplies, d_out or v.
enum Operand { kFirst = 0, kSecond = 1 };

/// Addresses in shared memory. V is where K is.
template <class B>
struct LatentShared {
  uint32_t owned[2], walked[2];  // [Operand]
  uint32_t exchange, facts, barriers, scheduler;

  __device__ LatentShared() {
    const uint32_t begin = align_to_swizzle(shared_address(dynamic_shared()));
    owned[kFirst] = begin;
    walked[kFirst] = begin + B::kRowBytes;
    const uint32_t grads = begin + 2 * B::kRowBytes;
    owned[kSecond] = B::kOwnsKeys ? owned[kFirst] : grads;
    walked[kSecond] = B::kOwnsKeys ? grads : walked[kFirst];
    exchange = grads + B::kGradBytes;
    facts = exchange + B::kExchangeBytes;
    barriers = facts + B::kFactBytes;
    scheduler = barriers + 8 * B::kBarriers;
  }

  __device__ uint32_t owned_full() const { return barriers; }
  __device__ uint32_t owned_free() const { return barriers + 8; }
  __device__ uint32_t facts_full() const { return barriers + 16; }
  __device__ uint32_t facts_free() const { return barriers + 24; }
  /// Of a half of a streamed operand. K and V are one.
  __device__ uint32_t full(Operand operand, int half) const {
    return barriers + 32 + 8 * (half + (B::kOwnsKeys ? 2 * operand : 0));
  }
  __device__ uint32_t free(Operand operand, int half) const { return full(operand, half) + 32; }
  /// Of a warp and its partner: P is there, dS is.
  __device__ uint32_t weights_there(int warp) const { return barriers + 96 + 16 * warp; }
  __device__ uint32_t grads_there(int warp) const { return weights_there(warp) + 8; }

  __device__ void init() const {
    constexpr int kWarps = 4;  // of a consumer
    if (threadIdx.x == 0) {
      mbarrier_init(owned_full(), 1);
      mbarrier_init(owned_free(), 2 * kWarps);
      mbarrier_init(facts_full(), 32);
      mbarrier_init(facts_free(), 2 * kWarpgroupThreads);
      for (const Operand operand : {kFirst, kSecond}) {
        if (operand == kSecond && !B::kOwnsKeys) continue;
        for (int half = 0; half < 2; ++half) {
          mbarrier_init(full(operand, half), 1);
          mbarrier_init(free(operand, half), num_readers(operand, half) * kWarps);
        }
      }
      for (int warp = 0; warp < kWarps; ++warp) {
        mbarrier_init(weights_there(warp), 32);
        mbarrier_init(grads_there(warp), 32);
      }
      TileScheduler(scheduler).init(2 * kWarps + (B::kOwnsKeys ? 1 : 0), 1);
      mbarrier_init_fence();
    }
    __syncthreads();
  }

  /// Consumers that read a half: of K both halves; of Q the one that makes weights reads both, of
  /// dO the other one does, and each the half that it sums up.
  __device__ static constexpr int num_readers(Operand operand, int half) {
    return B::kOwnsKeys && (operand == kFirst) == (half == 0) ? 1 : 2;
  }
};

/// Query heads, one after another, whose rows an item streams; of a kernel with stationary queries
/// the one that it holds.
template <class B>
struct StreamedHeads {
  int32_t first, last;
  __device__ StreamedHeads(const BackwardParams& p, int32_t head) : first(head), last(head + 1) {
    if constexpr (B::kOwnsKeys) {
      const HeadRange heads(p, head);
      first = heads.first;
      last = heads.last;
    }
  }
};

/// Loads panels of rows, clipped at `end`, and tells the barrier how many bytes will arrive.
template <int kFirstPanel, int kPanels>
__device__ __forceinline__ void load_part(uint32_t tile, const TensorMap* map, uint32_t barrier,
                                          int32_t row, int32_t end, int32_t head) {
  mbarrier_arrive_expecting(barrier, kPanels * kPanelBytes);
#pragma unroll
  for (int panel = kFirstPanel; panel < kFirstPanel + kPanels; ++panel)
    load_box(tile + panel * kPanelBytes, map, barrier, panel * kBoxLanes, kMapRows - end + row,
             head, end, kMapRows);
}

/// The producer's first thread: loads the tiles.
template <class B>
__device__ __forceinline__ void fetch_tiles(const BackwardParams& p, const LatentShared<B>& at) {
  TileScheduler scheduler(at.scheduler);
  uint32_t walked_parity = 1, owned_parity = 1;  // of the phase that has freed what is loaded next
  for (;;) {
    const ScheduledItem item = scheduler.read_alone();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    const StreamedHeads<B> heads(p, item.head);
    if (tile.num_runs == 0 || heads.first >= heads.last) continue;
    const int32_t kv_head = B::kOwnsKeys ? item.head / p.group_parts
                                         : (p.first_head + item.head) / p.group - p.first_kv_head;
    mbarrier_wait(at.owned_free(), owned_parity);
    owned_parity ^= 1;
    mbarrier_arrive_expecting(at.owned_full(), B::kRowBytes + (B::kOwnsKeys ? 0 : B::kGradBytes));
    load_panels<kQk, kTileRows>(at.owned[kFirst], B::kOwnsKeys ? &p.k : &p.q, at.owned_full(),
                                tile.begin, tile.end, B::kOwnsKeys ? kv_head : item.head);
    if constexpr (!B::kOwnsKeys)
      load_panels<kV, kTileRows>(at.owned[kSecond], &p.d_out, at.owned_full(), tile.begin, tile.end,
                                 item.head);
    for (int32_t head = heads.first; head < heads.last; ++head) {
      for (RunWalk<kTileRows> walk(item); walk.next(p.tiles.runs);) {
        const auto load = [&]<int kFirstPanel, int kPanels>(Operand operand, int half,
                                                            const TensorMap* map) {
          mbarrier_wait(at.free(operand, half), walked_parity);
          load_part<kFirstPanel, kPanels>(at.walked[operand], map, at.full(operand, half), walk.row,
                                          walk.end, B::kOwnsKeys ? head : kv_head);
        };
        // dO is free sooner: of a tile, dS Q comes last.
        if constexpr (B::kOwnsKeys) {
          load.template operator()<0, kHalfPanels>(kSecond, 0, &p.d_out);
          load.template operator()<kHalfPanels, kHalfPanels>(kSecond, 1, &p.d_out);
        }
        const TensorMap* const rows = B::kOwnsKeys ? &p.q : &p.k;
        load.template operator()<0, kHalfPanels>(kFirst, 0, rows);
        load.template operator()<kHalfPanels, kHalfPanels + 1>(kFirst, 1, rows);
        walked_parity ^= 1;
      }
    }
  }
}

/// The streamed tiles of an item, in the order of fetch_tiles.
template <class B>
struct LatentWalk : RunWalk<kTileRows> {
  const ScheduledItem& item;
  int32_t heads_left;

  __device__ LatentWalk(const BackwardParams& p, const ScheduledItem& scheduled)
      : RunWalk<kTileRows>(scheduled), item(scheduled) {
    const StreamedHeads<B> heads(p, scheduled.head);
    heads_left = heads.last - heads.first;
  }

  /// is_new_run: the tile is the first one of a run.
  __device__ __forceinline__ bool next(const TileRun* runs, bool& is_new_run) {
    is_new_run = false;
    while (heads_left > 0) {
      if (this->next_in_run()) return true;
      is_new_run = true;
      if (this->next_run(runs)) return true;
      --heads_left;
      static_cast<RunWalk<kTileRows>&>(*this) = RunWalk<kTileRows>(item);
    }
    return false;
  }
};

/// A consumer warpgroup: makes the weights, and the sums of the first half of the elements; or dS,
/// and the sums of the others.
template <class B, bool kMakesWeights>
struct LatentConsumer {
  using T = typename B::T;
  static constexpr int kOwnHalf = kMakesWeights ? 0 : 1;

  const BackwardParams& p;
  const LatentShared<B>& at;
  uint32_t exchange;  // of this thread and its partner
  uint32_t walked_parity = 0, owned_parity = 0;
  uint32_t weights[kTileRows / 4], grads[kTileRows / 4];  // P (for dk) and dS, in pairs
  float sums[kHalf / 2];
  float last_sums[kLast / 2];

  __device__ LatentConsumer(const BackwardParams& params, const LatentShared<B>& shared)
      : p(params), at(shared), exchange(shared.exchange + threadIdx.x % kWarpgroupThreads * 16) {}

  __device__ __forceinline__ static int warp() { return threadIdx.x / 32 % 4; }
  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ void wait_for(uint32_t barrier) const {
    mbarrier_wait(barrier, walked_parity);
  }
  /// This warp does not read the half any more.
  __device__ __forceinline__ void release(Operand operand, int half) const {
    if (is_elected()) mbarrier_arrive(at.free(operand, half));
  }
  __device__ __forceinline__ uint32_t facts() const { return at.facts + 8 * (threadIdx.x % 4); }

  /// tile = S or dP.
  __device__ __forceinline__ void make_product(float (&tile)[kScores]) const {
    constexpr Operand kOperand = kMakesWeights ? kFirst : kSecond;
    constexpr int kSteps = (kMakesWeights ? kQk : kV) / 16, kHalfSteps = kHalf / 16;
    const uint64_t a = matrix_descriptor(at.owned[kOperand], 16),
                   b = matrix_descriptor(at.walked[kOperand], 16);
    wait_for(at.full(kOperand, 0));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step)
      wgmma_ss<T>(tile, further(a, head_dim_step<kTileRows>(step)),
                  further(b, head_dim_step<kTileRows>(step)), step > 0);
    wait_for(at.full(kOperand, 1));
    wgmma_fence();
#pragma unroll
    for (int step = kHalfSteps; step < kSteps; ++step)
      wgmma_ss<T>(tile, further(a, head_dim_step<kTileRows>(step)),
                  further(b, head_dim_step<kTileRows>(step)), 1);
    wgmma_commit();
    wgmma_wait<0>();
    pin(tile);
  }

  /// Starts sums += operands times this consumer's half of the streamed rows. kHasLast: also the
  /// elements behind V.
  template <bool kHasLast>
  __device__ __forceinline__ void start_sums(uint32_t (&operands)[kTileRows / 4], Operand operand) {
    const uint32_t half = at.walked[operand] + kOwnHalf * kHalfPanels * kPanelBytes;
    const uint64_t rows = matrix_descriptor(half, kPanelBytes);
    pin(operands);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileRows / 16; ++step) {
      wgmma_rs<T>(sums, operands + 4 * step, further(rows, row_step(step)));
      if constexpr (kHasLast)
        wgmma_rs<T>(last_sums, operands + 4 * step,
                    further(rows, kHalfPanels * kPanelBytes + row_step(step)));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void pin_sums() {
    pin(sums);
    if constexpr (!kMakesWeights) pin(last_sums);
  }

  /// S -> P, 0 for invisible pairs whatever their logits are. row: of the thread's first stationary
  /// row; the second one is 8 further on.
  template <class Walk>
  __device__ __forceinline__ void weigh_tile(float (&tile)[kScores], const QueryRows* rows,
                                             const Walk& walk, int32_t row) const {
    float slope;
    if constexpr (B::kOwnsKeys) {
#pragma unroll
      for (int j = 0; j < kTileRows / 8; ++j) {
        const FloatPair log2_lse = load_shared_pair(facts() + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i)
          tile[i] =
              weigh<LogitForm::plain>(p, tile[i], i % 2 == 0 ? log2_lse.x : log2_lse.y, slope);
        if (walk.is_masked == 0) continue;
        hide_columns<Facts>(facts() + 32 * j, row, tile + 4 * j);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        tile[i] = weigh<LogitForm::plain>(p, tile[i], rows->log2_lse[i / 2 & 1], slope);
      if (walk.is_masked == 0) return;
      const int32_t key = walk.row + 2 * static_cast<int32_t>(threadIdx.x % 4);
      const KeySpan span[2] = {rows->ranges.span(0, walk.end), rows->ranges.span(1, walk.end)};
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (!span[i / 2 & 1].has(key + i / 4 * 8 + (i & 1))) tile[i] = 0.0f;
      }
    }
  }

  /// dP -> dS, of this tile's weights.
  template <class Walk>
  __device__ __forceinline__ void differentiate(float (&tile)[kScores], const QueryRows* rows,
                                                const Walk& walk) {
    const float factor = B::kOwnsKeys ? p.scale : 1.0f;
#pragma unroll
    for (int j = 0; j < kTileRows / 8; ++j) {
      const FloatFour four = load_shared_four(exchange + j * kWarpgroupThreads * 16);
      const float of_pairs[4] = {four.x, four.y, four.z, four.w};
      FloatPair delta{0.0f, 0.0f};
      if constexpr (B::kOwnsKeys) delta = load_shared_pair(facts() + Facts::kDelta + 32 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = of_pairs[i];
        const float of_row = B::kOwnsKeys ? (i % 2 == 0 ? delta.x : delta.y) : rows->delta[i / 2];
        float& value = tile[4 * j + i];
        // A row that is not seen may hold a NaN, and so may its dP.
        value = walk.is_masked != 0 && weight == 0.0f ? 0.0f : weight * (value - of_row) * factor;
      }
      if constexpr (B::kOwnsKeys) {
        weights[2 * j] = pack<T>(four.x, four.y);
        weights[2 * j + 1] = pack<T>(four.z, four.w);
      }
    }
#pragma unroll
    for (int i = 0; i < kTileRows / 4; ++i) grads[i] = pack<T>(tile[2 * i], tile[2 * i + 1]);
  }

  __device__ __forceinline__ void send_weights(const float (&tile)[kScores]) {
#pragma unroll
    for (int j = 0; j < kTileRows / 8; ++j) {
      store_shared_four(exchange + j * kWarpgroupThreads * 16,
                        {tile[4 * j], tile[4 * j + 1], tile[4 * j + 2], tile[4 * j + 3]});
      if constexpr (B::kOwnsKeys) {
        weights[2 * j] = pack<T>(tile[4 * j], tile[4 * j + 1]);
        weights[2 * j + 1] = pack<T>(tile[4 * j + 2], tile[4 * j + 3]);
      }
    }
    mbarrier_arrive(at.weights_there(warp()));
  }

  /// In the place of the weights, which this thread has read.
  __device__ __forceinline__ void send_grads() const {
#pragma unroll
    for (int j = 0; j < kTileRows / 16; ++j)
      store_shared_four(exchange + j * kWarpgroupThreads * 16,
                        {from_bits(grads[4 * j]), from_bits(grads[4 * j + 1]),
                         from_bits(grads[4 * j + 2]), from_bits(grads[4 * j + 3])});
    mbarrier_arrive(at.grads_there(warp()));
  }

  __device__ __forceinline__ void take_grads() {
    wait_for(at.grads_there(warp()));
#pragma unroll
    for (int j = 0; j < kTileRows / 16; ++j) {
      const FloatFour four = load_shared_four(exchange + j * kWarpgroupThreads * 16);
      grads[4 * j] = to_bits(four.x);
      grads[4 * j + 1] = to_bits(four.y);
      grads[4 * j + 2] = to_bits(four.z);
      grads[4 * j + 3] = to_bits(four.w);
    }
  }

  template <class Walk>
  __device__ __forceinline__ void take_tile(const QueryRows* rows, const Walk& walk, int32_t row) {
    float tile[kScores];
    make_product(tile);
    if constexpr (B::kOwnsKeys) wait_for(at.facts_full());
    pin_sums();
    if constexpr (kMakesWeights) {
      weigh_tile(tile, rows, walk, row);
      send_weights(tile);
      release(kFirst, 1);
    } else {
      release(kSecond, 0);
      wait_for(at.weights_there(warp()));
      differentiate(tile, rows, walk);
      send_grads();
    }
    if constexpr (B::kOwnsKeys) {
      mbarrier_arrive(at.facts_free());
      if constexpr (kMakesWeights) wait_for(at.full(kSecond, kOwnHalf));
      start_sums<false>(weights, kSecond);
    }
    if constexpr (kMakesWeights) take_grads();
    if constexpr (B::kOwnsKeys && !kMakesWeights) wait_for(at.full(kFirst, kOwnHalf));
    start_sums<!kMakesWeights>(grads, kFirst);
    if constexpr (B::kOwnsKeys) {
      wgmma_wait<1>();
      release(kSecond, kOwnHalf);
    }
    wgmma_wait<0>();
    pin_sums();
    release(kFirst, kOwnHalf);
    walked_parity ^= 1;
  }

  __device__ __forceinline__ void store_sums(const ScheduledItem& item, int32_t row) const {
    const float factor = B::kOwnsKeys ? 1.0f : p.scale;
    float* to = static_cast<float*>(p.first.data) + item.head * p.first.head_stride +
                int64_t{row} * p.first.row_stride + kOwnHalf * kHalf;
    const int32_t elements = p.head_dim_qk - kOwnHalf * kHalf;
    if (row < item.tile.end) {
      store_row<kHalf, false>(to, elements, sums, factor);
      if constexpr (!kMakesWeights)
        store_row<kLast, false>(to + kHalf, elements - kHalf, last_sums, factor);
    }
    to += 8 * p.first.row_stride;
    if (row + 8 < item.tile.end) {
      store_row<kHalf, true>(to, elements, sums, factor);
      if constexpr (!kMakesWeights)
        store_row<kLast, true>(to + kHalf, elements - kHalf, last_sums, factor);
    }
  }

  __device__ __forceinline__ void run_item(const ScheduledItem& item, QueryRows* rows,
                                           int32_t row) {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kLast / 2; ++i) last_sums[i] = 0.0f;
    LatentWalk<B> walk(p, item);
    bool is_new_run, has_tile = walk.next(p.tiles.runs, is_new_run);
    if (has_tile) {
      wait_for_owned();
      for (; has_tile; has_tile = walk.next(p.tiles.runs, is_new_run)) {
        if (!B::kOwnsKeys && kMakesWeights && is_new_run && walk.is_masked != 0)
          rows->ranges.fetch(p.tiles, p.q_rows, walk.range_set, row);
        take_tile(rows, walk, row);
      }
      if (is_elected()) mbarrier_arrive(at.owned_free());
    }
    store_sums(item, row);
  }

  __device__ __forceinline__ void wait_for_owned() {
    mbarrier_wait(at.owned_full(), owned_parity);
    owned_parity ^= 1;
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    for (;;) {
      const ScheduledItem item = scheduler.read();
      if (item.is_last()) return;
      const int32_t row =
          item.tile.begin + warp() * 16 + static_cast<int32_t>(threadIdx.x) % 32 / 4;
      if constexpr (B::kOwnsKeys) {
        run_item(item, nullptr, row);
      } else {
        QueryRows rows(p, row, item.head);
        run_item(item, &rows, row);
      }
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    latent_gradient_on_hopper(const __grid_constant__ BackwardParams p) {
  const LatentShared<B> at;
  at.init();
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_tiles<B>(p, at);
    if constexpr (B::kOwnsKeys) {
      if (threadIdx.x / 32 == 1)
        fetch_facts<1, RunWalk<kTileRows>>(p, TileScheduler(at.scheduler),
                                           {at.facts, at.facts_full(), at.facts_free()});
    }
    if (threadIdx.x / 32 == 2) TileScheduler(at.scheduler).schedule(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    if (warpgroup == 1) {
      LatentConsumer<B, true>(p, at).run();
    } else {
      LatentConsumer<B, false>(p, at).run();
    }
  }
}

template <class B>
void launch_latent_gradient(const BackwardLaunch& launch, BackwardParams& p, Stream stream) {
  make_backward_maps(launch, kTileRows, kTileRows, p);
  constexpr auto kKernel = latent_gradient_on_hopper<B>;
  const int32_t ctas =
      std::min(p.tiles.num_work, resident_ctas(kKernel, B::kThreads, B::kSharedBytes));
  launch_kernel(kKernel, Grid(ctas), B::kThreads, B::kSharedBytes, stream, p);
}

template <bool kOwnsKeys>
void launch_in_dtype(const BackwardLaunch& launch, BackwardParams& p, Stream stream) {
  if (p.tiles.num_work == 0) return;
  launch.shape.dtype == Dtype::bf16
      ? launch_latent_gradient<LatentGradient<Bf16, kOwnsKeys>>(launch, p, stream)
      : launch_latent_gradient<LatentGradient<Fp16, kOwnsKeys>>(launch, p, stream);
}

}  // namespace
}  // namespace device

std::string why_not_hopper_latent_backward(const AttentionShape& shape) {
  if (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16)
    return "the Hopper backward of latent attention takes bf16 and fp16";
  if (shape.is_fp8) return "the Hopper backward of latent attention does not take fp8";
  if (shape.softcap != 0.0f) return "the Hopper backward of latent attention has no softcap";
  if (shape.head_dim_qk > device::kQk || shape.head_dim_v > device::kV)
    return "the Hopper backward of latent attention takes head_dim up to " +
           std::to_string(device::kQk) + ", of V up to " + std::to_string(device::kV);
  return "";
}

TileShape hopper_latent_gradient_tile_shape() { return {device::kTileRows, device::kTileRows}; }

void launch_hopper_latent_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::BackwardParams p = device::make_backward_params(launch);
  p.tiles = launch.query_tiles;
  p.counter = launch.counters;
  p.first = launch.dq;
  device::launch_in_dtype<false>(launch, p, stream);
}

void launch_hopper_latent_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::BackwardParams p = device::make_backward_params(launch);
  p.tiles = launch.key_tiles;
  p.counter = launch.counters + 1;
  device::set_key_results(launch, p);
  device::launch_in_dtype<true>(launch, p, stream);
}

}  // namespace cpscope::kernels
