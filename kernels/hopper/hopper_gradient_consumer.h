#pragma once

#include "kernels/hopper/hopper_stationary_keys.h"

#include <cstdint>

/// The products of the fused backward of sm_90a in 16 bits (described in hopper_gradients.cu).
namespace cpscope::kernels::device {

/// A consumer warpgroup.
template <class B>
struct GradientConsumer : StationaryKeys<B> {
  using T = typename B::T;
  using Keys = StationaryKeys<B>;
  using Tiles = typename Keys::Tiles;
  using Keys::at, Keys::dk, Keys::dv, Keys::fused, Keys::group, Keys::k, Keys::num_walked, Keys::p,
      Keys::query_gradient, Keys::v;

  // P' and dS' of a part, in pairs: operands of products that may be in flight.
  uint32_t weights[kPartRows / 4], logit_grads[kPartRows / 4];
  float log2_lse[kPartRows / 4];  // if products do not subtract it
  OffsetHalves halves;

  using Keys::Keys;

  /// Starts sums = A B^T over kHeadDim elements, plus `offsets` of the streamed rows if products
  /// subtract them; a: this warpgroup's keys, b: the streamed rows. Offsets come first: a product
  /// with an operand in registers holds the warp until the operand is read.
  template <int kHeadDim>
  __device__ __forceinline__ void start_product(float (&sums)[kPartRows / 2], uint32_t a,
                                                uint32_t b, uint32_t offsets) const {
    const uint64_t owned = matrix_descriptor(a, 16), walked = matrix_descriptor(b, 16);
    wgmma_fence();
    if constexpr (B::kHasOffsets) wgmma_rs_first(sums, halves.pairs, offset_descriptor(offsets));
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      wgmma_ss<T>(sums, further(owned, head_dim_step<B::kOwned>(step)),
                  further(walked, head_dim_step<B::kWalked>(step)), B::kHasOffsets || step > 0);
    }
    wgmma_commit();
  }

  /// Starts sums += weights B; b: the streamed rows.
  template <int kSums>
  __device__ __forceinline__ static void start_sums(float (&sums)[kSums],
                                                    uint32_t (&weights)[kPartRows / 4],
                                                    uint32_t b) {
    const uint64_t rows = matrix_descriptor(b, B::kWalked * kPanelRowBytes);
    pin(sums);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPartRows / 16; ++step)
      wgmma_rs<T>(sums, weights + 4 * step, further(rows, row_step(step)));
    wgmma_commit();
  }

  /// Loads log2(e) lse of this thread's columns of a part, in pairs. facts: address of the metadata
  /// of its first two columns.
  __device__ __forceinline__ void load_lse(uint32_t facts) {
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
      const FloatPair pair = load_shared_pair(facts + 32 * j);
      log2_lse[2 * j] = pair.x;
      log2_lse[2 * j + 1] = pair.y;
    }
  }

  /// logits -> P', in fp32 (times the cap's slope) and rounded. facts: address of the metadata of
  /// this thread's columns; head: of the columns.
  template <bool kIsMasked>
  __device__ __forceinline__ void weigh_part(float (&logits)[kPartRows / 2], uint32_t facts,
                                             int32_t key, int32_t head) {
    AlibiOfTwo alibi;
    if constexpr (B::kForm == LogitForm::alibi)
      alibi = alibi_log2(p, p.alibi.key_positions, key, head);
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
      float slope[4];
      FloatPair positions{0.0f, 0.0f};
      if constexpr (B::kForm == LogitForm::alibi)
        positions = load_shared_pair(facts + B::Facts::kPosition + 32 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = logits[4 * j + i];
        float subtracted = B::kIsFp8 ? -p.fp8.weight_log2 : 0.0f;
        if constexpr (!B::kHasOffsets) subtracted = log2_lse[2 * j + i % 2];
        if constexpr (B::kForm == LogitForm::alibi)
          subtracted += alibi.of(i / 2, i % 2 == 0 ? positions.x : positions.y);
        value = weigh<B::kForm>(p, value, subtracted, slope[i]);
      }
      if constexpr (kIsMasked) hide_columns<typename B::Facts>(facts + 32 * j, key, logits + 4 * j);
      weights[2 * j] = round_weights<B>(p, logits[4 * j], logits[4 * j + 1]);
      weights[2 * j + 1] = round_weights<B>(p, logits[4 * j + 2], logits[4 * j + 3]);
      if constexpr (B::kForm == LogitForm::capped) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // The slope of an invisible pair may be a NaN.
          float& value = logits[4 * j + i];
          value = value == 0.0f ? 0.0f : value * slope[i];
        }
      }
    }
  }

  /// dS' = P' (dP' - delta), rounded; exact: P' in fp32.
  __device__ __forceinline__ void differentiate(const float (&exact)[kPartRows / 2],
                                                float (&dp)[kPartRows / 2], uint32_t facts,
                                                bool is_masked) {
    // A key that no row sees may hold a NaN, and so may its dP'.
    if (is_masked) {
#pragma unroll
      for (int i = 0; i < kPartRows / 2; ++i) dp[i] = exact[i] == 0.0f ? 0.0f : dp[i];
    }
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
      FloatPair delta{0.0f, 0.0f};
      if constexpr (!B::kHasOffsets) delta = load_shared_pair(facts + B::Facts::kDelta + 32 * j);
      logit_grads[2 * j] = round_grads<B>(p, slope_of<B>(p, exact[4 * j], dp[4 * j], delta.x),
                                          slope_of<B>(p, exact[4 * j + 1], dp[4 * j + 1], delta.y));
      logit_grads[2 * j + 1] =
          round_grads<B>(p, slope_of<B>(p, exact[4 * j + 2], dp[4 * j + 2], delta.x),
                         slope_of<B>(p, exact[4 * j + 3], dp[4 * j + 3], delta.y));
    }
  }

  /// Stores dS' as dS [streamed row, key] in shared memory; this warpgroup's keys are a panel.
  __device__ __forceinline__ void store_grads(uint32_t grads) const {
    const int lane = threadIdx.x % 32;
    const int row = lane / 16 * 8 + lane % 8, chunk = 2 * Keys::warp() + (lane / 8 & 1);
    const uint32_t to = grads + group * B::kWalked * kPanelRowBytes + row * kPanelRowBytes +
                        ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int j = 0; j < kPartRows / 16; ++j)
      store_transposed_x4(to + j * 16 * kPanelRowBytes, logit_grads + 4 * j);
  }

  /// Addresses of a part of a streamed tile and of its row metadata.
  struct Part {
    uint32_t q, d_out, offsets, facts, grads;
  };
  __device__ __forceinline__ Part part_of(int number, int part) const {
    const int stage = number % B::kStages, row = part * kPartRows;
    const uint32_t q = at.q_of(number) + row * kPanelRowBytes;
    return {q, q + B::kFirstBytes,
            at.offsets + stage * 2 * B::kOffsetBytes + row * B::kOffsetRowBytes,
            at.facts + stage * B::Facts::kBytes + 4 * row + 8 * (threadIdx.x % 4),
            at.grads_of(number) + row * kPanelRowBytes};
  }

  /// Starts the first part's S'.
  __device__ __forceinline__ void start_logits(float (&logits)[kPartRows / 2], int number) const {
    mbarrier_wait(at.first_full + 8 * (number % B::kStages), (number / B::kStages) & 1);
    const Part part = part_of(number, 0);
    start_product<B::kQk>(logits, k, part.q, part.offsets);
  }

  /// A part whose S' is ready: adds to dk and dv, and stores dS in shared memory. next_logits: of
  /// the next part, started meanwhile.
  template <bool kStartsNext>
  __device__ __forceinline__ void take_part(const Part& part, int32_t key, int32_t head,
                                            bool is_masked, float (&logits)[kPartRows / 2],
                                            float (&next_logits)[kPartRows / 2]) {
    float dp[kPartRows / 2];
    start_product<B::kV>(dp, v, part.d_out, part.offsets + B::kOffsetBytes);
    if constexpr (!B::kHasOffsets && !B::kAlternates) load_lse(part.facts);
    if (is_masked) {
      weigh_part<true>(logits, part.facts, key, head);
    } else {
      weigh_part<false>(logits, part.facts, key, head);
    }
    start_sums(dv, weights, part.d_out);  // before dP' is used
    if constexpr (kStartsNext) {
      start_product<B::kQk>(next_logits, k, part.q + kPartRows * kPanelRowBytes,
                            part.offsets + kPartRows * B::kOffsetRowBytes);
    }
    wgmma_wait<kStartsNext ? 2 : 1>();
    pin(dp);
    differentiate(logits, dp, part.facts, is_masked);
    if constexpr (B::kAlternates) this->wait_for_grads(num_walked - 1);
    store_grads(part.grads);  // the other consumer waits for it
    start_sums(dk, logit_grads, part.q);
  }

  /// Computes all tiles of an item.
  __device__ __forceinline__ void walk_tiles(Tiles& tiles, int32_t key) {
    float logits[kPartRows / 2];
    start_logits(logits, num_walked);
    if constexpr (!B::kHasOffsets && B::kAlternates) load_lse(part_of(num_walked, 0).facts);
    wgmma_wait<0>();
    pin(logits);
    if constexpr (B::kAlternates) {
      walk_alternately(tiles, key, logits);
    } else {
      walk_together(tiles, key, logits);
    }
  }

  /// Both consumers make half of each tile's dq, at the same time.
  __device__ __forceinline__ void walk_together(Tiles& tiles, int32_t key,
                                                float (&logits)[kPartRows / 2]) {
    bool has_tile = true;
    do {
      num_walked = shared_by_warp(num_walked);  // closing a tile hides from the compiler that it is
                                                // uniform
      const bool closes = fused.closes(tiles.walk);
      take_parts(tiles, key, logits);
      has_tile = tiles.next(p.tiles.runs);
      publish_shared_writes();
      named_barrier_sync(kGradsBarrier, B::kConsumers * kWarpgroupThreads);
      float dq[B::kQk / 2];
      query_gradient.start(dq, num_walked);
      wgmma_wait<1>();
      pin(dv);
      pin(dk);
      ++num_walked;
      start_next_logits(logits, has_tile);
      wgmma_wait<1>();
      pin(dq);
      this->free_walked();
      query_gradient.give(dq, num_walked - 1, closes);
      wgmma_wait<0>();
      pin(logits);
    } while (has_tile);
    this->free_owned();
  }

  /// A consumer makes all of dq of every other tile, which reads less of shared memory than half of
  /// every tile's dq. It does so a tile later, when the other consumer's dS has long been stored.
  /// So the consumers need not stay in step, and one computes weights while the other one
  /// multiplies.
  __device__ __forceinline__ void walk_alternately(Tiles& tiles, int32_t key,
                                                   float (&logits)[kPartRows / 2]) {
    bool has_tile = true, has_before = false, closed = false;  // the previous tile
    do {
      num_walked = shared_by_warp(num_walked);
      const bool closes = fused.closes(tiles.walk);
      if (has_before && this->makes_dq_of(num_walked - 1)) {
        has_tile = take_tile<true>(tiles, key, logits, closed);
      } else {
        has_tile = take_tile<false>(tiles, key, logits, closed);
      }
      has_before = true;
      closed = closes;
    } while (has_tile);
    num_walked = shared_by_warp(num_walked);
    if (this->makes_dq_of(num_walked - 1)) {
      this->wait_for_grads(num_walked - 1);
      float dq[B::kQk / 2];
      query_gradient.start(dq, num_walked - 1);
      wgmma_wait<0>();
      pin(dq);
      this->free_owned();
      query_gradient.give(dq, num_walked - 1, closed);
    } else {
      this->free_owned();
    }
  }

  /// A streamed tile whose S' is ready. kMakesDq: also makes dq of the previous tile. Returns
  /// whether there is a next tile; its S' is then ready.
  template <bool kMakesDq>
  __device__ __forceinline__ bool take_tile(Tiles& tiles, int32_t key,
                                            float (&logits)[kPartRows / 2], bool closed) {
    take_parts(tiles, key, logits);
    publish_shared_writes();
    // Every lane signals its own stores.
    TileBarrier(at.grads_full + 16 * group, num_walked).arrive();
    const bool has_tile = tiles.next(p.tiles.runs);
    ++num_walked;
    if constexpr (!kMakesDq) start_next_logits(logits, has_tile);
    wgmma_wait<kMakesDq ? 0 : 1>();
    pin(dv);
    pin(dk);
    this->free_walked();
    if constexpr (kMakesDq) {
      float dq[B::kQk / 2];
      query_gradient.start(dq, num_walked - 2);
      wgmma_wait<0>();
      pin(dq);
      query_gradient.give(dq, num_walked - 2, closed);
      start_next_logits(logits, has_tile);  // afterwards: there are no registers for both
    }
    // Without a next tile it reads from V, which stays in place; the values are not used.
    if constexpr (!B::kHasOffsets)
      load_lse(has_tile ? part_of(num_walked, 0).facts : at.owned + B::kOwnedFirstBytes);
    wgmma_wait<0>();
    pin(logits);
    return has_tile;
  }

  /// Computes P' and dS' of a tile, and adds to dv and dk.
  __device__ __forceinline__ void take_parts(const Tiles& tiles, int32_t key,
                                             float (&logits)[kPartRows / 2]) {
    const bool is_masked = tiles.walk.is_masked != 0;
    const int32_t head = B::kForm == LogitForm::alibi ? tiles.head() : 0;
    const int stage = num_walked % B::kStages;
    mbarrier_wait(at.second_full + 8 * stage, (num_walked / B::kStages) & 1);
    if constexpr (B::kParts == 1) {
      take_part<false>(part_of(num_walked, 0), key, head, is_masked, logits, logits);
    } else {
      float next_logits[kPartRows / 2];
      take_part<true>(part_of(num_walked, 0), key, head, is_masked, logits, next_logits);
      wgmma_wait<1>();
      pin(next_logits);
      take_part<false>(part_of(num_walked, 1), key, head, is_masked, next_logits, next_logits);
    }
  }

  /// Starts S' of tile num_walked; without a next tile that of the last one again, because a branch
  /// would end all products.
  __device__ __forceinline__ void start_next_logits(float (&logits)[kPartRows / 2],
                                                    bool has_tile) const {
    start_logits(logits, has_tile ? num_walked : num_walked - 1);
  }
};

}  // namespace cpscope::kernels::device
