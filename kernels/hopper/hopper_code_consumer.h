#pragma once

#include "kernels/device/fp8_values.h"
#include "kernels/device/tensor_core.h"
#include "kernels/hopper/hopper_stationary_keys.h"

#include <cstdint>

/// The products of the fused backward of sm_90a in codes of 8 bits (described in
/// hopper_fp8_gradients.cu).
namespace cpscope::kernels::device {

/// Names of bytes (pick_bytes) by which codes are turned. A thread has two words, of rows
/// 2 t, 2 t + 1 and of 2 t + 8, 2 t + 9 of 16, each with two elements of both rows.
struct TurnedBytes {
  uint32_t even, odd;  // of the words that hold the first and the second element
};
/// Four adjacent codes are rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9: a thread of a quad holds these
/// columns of P' and dS'.
inline constexpr TurnedBytes kAsColumns{0x6420, 0x7531};
/// They are rows 2 t, 2 t + 8, 2 t + 1, 2 t + 9: where store_grads puts these rows of dS'.
inline constexpr TurnedBytes kAsRows{0x6240, 0x7351};

/// Half of a row of turned Q and dO: 64 codes of each.
inline constexpr uint32_t kTurnedHalf = kPanelRowBytes / 2;

/// Turns 64 rows of codes, as one warp of a warpgroup, which turns 32 elements: `half` of each row
/// of `to`, an element's, gets their codes.
template <TurnedBytes kBytes>
__device__ __forceinline__ void turn_rows(uint32_t from, uint32_t to, int half) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int row = lane % 16, chunk = 2 * warp + lane / 16;
  const int element = 16 * chunk + 2 * (lane % 8) + lane / 8 % 2;
  from += row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4);
  to += element * kPanelRowBytes + ((4 * half ^ (element & 7)) << 4);
#pragma unroll
  for (int rows = 0; rows < 4; ++rows) {
    uint32_t words[4];
    load_matrix_x4_transposed(words, from + rows * 16 * kPanelRowBytes);
    const uint32_t turned[4] = {
        pick_bytes(words[0], words[1], kBytes.even), pick_bytes(words[0], words[1], kBytes.odd),
        pick_bytes(words[2], words[3], kBytes.even), pick_bytes(words[2], words[3], kBytes.odd)};
    store_matrices_x4(to ^ rows << 4, turned);
  }
}

/// A warpgroup that turns Q and dO of every streamed tile, until there are no more.
template <class B>
__device__ __forceinline__ void turn_tiles(const FusedShared<B>& at) {
  for (int number = 0;; ++number) {
    const int stage = number % B::kStages, phase = number / B::kStages & 1;
    mbarrier_wait(at.first_full + 8 * stage, phase);
    if (load_shared_int(at.ends + 4 * stage) != 0) return;
    TileBarrier(at.turned_free, number + kTurnedStages).wait();
    const uint32_t q = at.walked + stage * B::kStageBytes, to = at.turned_of(number);
    turn_rows<kAsColumns>(q, to, 0);
    mbarrier_wait(at.second_full + 8 * stage, phase);
    turn_rows<kAsColumns>(q + B::kFirstBytes, to, 1);
    publish_shared_writes();
    // Every lane signals its own loads and stores.
    TileBarrier(at.turned_full, number).arrive();
    mbarrier_arrive(at.walked_free + 8 * stage);
  }
}

/// Ends turn_tiles after `num_tiles`; all lanes of the warp that has loaded them call it.
template <class B>
__device__ __forceinline__ void end_turning(const FusedShared<B>& at, int num_tiles) {
  const int stage = num_tiles % B::kStages, phase = num_tiles / B::kStages & 1;
  mbarrier_wait(at.walked_free + 8 * stage, phase ^ 1);
  if (threadIdx.x % 32 == 0) {
    store_shared_int(at.ends + 4 * stage, 1);
    mbarrier_arrive(at.first_full + 8 * stage);
  }
  mbarrier_arrive(at.first_full + 8 * stage);
}

/// A consumer warpgroup.
template <class B>
struct CodeConsumer : StationaryKeys<B> {
  using Keys = StationaryKeys<B>;
  using Tiles = typename Keys::Tiles;
  using Keys::at, Keys::dk, Keys::dv, Keys::fused, Keys::group, Keys::k, Keys::num_walked, Keys::p,
      Keys::query_gradient, Keys::v;
  using Keys::Keys;

  /// Starts sums = offsets + A B^T; a: this warpgroup's keys, b: the streamed rows, of format kB.
  /// The offsets' other operand is in shared memory too: one in registers would hold the warp until
  /// the products before have ended.
  template <Fp8Type kB, int kHeadDim>
  __device__ __forceinline__ void start_product(float (&sums)[kPartRows / 2], uint32_t a,
                                                uint32_t b, uint32_t offsets) const {
    const uint64_t owned = matrix_descriptor(a, 16), walked = matrix_descriptor(b, 16);
    wgmma_fence();
    wgmma_ss<Bf16>(sums, plain_descriptor(at.halves), offset_descriptor(offsets), 0);
#pragma unroll
    for (int step = 0; step < kHeadDim / 32; ++step) {
      wgmma_ss_codes<Fp8Type::e4m3, kB>(sums, further(owned, 32 * step), further(walked, 32 * step),
                                        1);
    }
    wgmma_commit();
  }

  /// total += codes B, for the streamed rows; turned: address of B, turned. Tensor cores keep about
  /// 14 bits of a sum, so a tile's sum is added in fp32.
  template <Fp8Type kA, Fp8Type kB, int kSums>
  __device__ __forceinline__ static void add_product(float (&total)[kSums],
                                                     uint32_t (&codes)[kPartRows / 8],
                                                     uint32_t turned) {
    float sums[kSums];
    const uint64_t rows = matrix_descriptor(turned, 16);
    pin(codes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kPartRows / 32; ++step)
      wgmma_rs_codes<kA, kB>(sums, codes + 4 * step, further(rows, 32 * step), step > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
#pragma unroll
    for (int i = 0; i < kSums; ++i) total[i] += sums[i];
    pin(total);
  }

  /// Codes of a part as an operand in registers (wgmma_rs_codes).
  __device__ __forceinline__ static void encode(Fp8Type type, const float (&values)[kPartRows / 2],
                                                uint32_t (&codes)[kPartRows / 8]) {
#pragma unroll
    for (int i = 0; i < kPartRows / 16; ++i) {
      const float* const of = values + 8 * i;
      codes[2 * i] = pack_codes(type, of[0], of[1], of[4], of[5]);
      codes[2 * i + 1] = pack_codes(type, of[2], of[3], of[6], of[7]);
    }
  }

  /// logits -> P', in fp32. facts: address of the metadata of this thread's columns.
  template <bool kIsMasked>
  __device__ __forceinline__ void weigh_tile(float (&logits)[kPartRows / 2], uint32_t facts,
                                             int32_t key) const {
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float slope;
        logits[4 * j + i] =
            weigh<LogitForm::plain>(p, logits[4 * j + i], -p.fp8.weight_log2, slope);
      }
      if constexpr (kIsMasked) hide_columns<typename B::Facts>(facts + 32 * j, key, logits + 4 * j);
    }
  }

  /// dP' - delta -> dS', in fp32.
  __device__ __forceinline__ void differentiate(const float (&weights)[kPartRows / 2],
                                                float (&dp)[kPartRows / 2], bool is_masked) const {
    // A key that no row sees may hold a NaN, and so may its dP'.
    if (is_masked) {
#pragma unroll
      for (int i = 0; i < kPartRows / 2; ++i) dp[i] = weights[i] == 0.0f ? 0.0f : dp[i];
    }
#pragma unroll
    for (int i = 0; i < kPartRows / 2; ++i) dp[i] = slope_of<B>(p, weights[i], dp[i], 0.0f);
  }

  /// Stores dS' as dS [streamed row, key] in shared memory, the keys of 16 in the order of kAsRows.
  __device__ __forceinline__ void store_grads(const uint32_t (&codes)[kPartRows / 8],
                                              uint32_t grads) const {
    const int lane = threadIdx.x % 32, chunk = 4 * group + Keys::warp();
    const uint32_t to = grads + lane * kPanelRowBytes + ((chunk ^ (lane & 7)) << 4);
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t* const of = codes + 4 * rows + i / 2 * 2;
        words[i] = pick_bytes(of[0], of[1], i % 2 == 0 ? 0x5140 : 0x7362);
      }
      store_transposed_x4(to + rows * 32 * kPanelRowBytes, words);
    }
  }

  /// Adds a streamed tile to dk and dv, and stores its dS.
  __device__ __forceinline__ void take_tile(int32_t key, bool is_masked) {
    const int stage = num_walked % B::kStages, phase = num_walked / B::kStages & 1;
    const uint32_t q = at.q_of(num_walked), d_out = q + B::kFirstBytes;
    const uint32_t offsets = at.offsets + stage * 2 * B::kOffsetBytes;
    const uint32_t facts = at.facts + stage * B::Facts::kBytes + 8 * (threadIdx.x % 4);
    const uint32_t turned = at.turned_of(num_walked);
    float logits[kPartRows / 2], dp[kPartRows / 2];
    mbarrier_wait(at.first_full + 8 * stage, phase);
    start_product<Fp8Type::e4m3, B::kQk>(logits, k, q, offsets);
    mbarrier_wait(at.second_full + 8 * stage, phase);
    start_product<B::kGradients, B::kV>(dp, v, d_out, offsets + B::kOffsetBytes);
    wgmma_wait<1>();
    pin(logits);
    if (is_masked) {
      weigh_tile<true>(logits, facts, key);
    } else {
      weigh_tile<false>(logits, facts, key);
    }
    uint32_t weights[kPartRows / 8], grads[kPartRows / 8];
    encode(Fp8Type::e4m3, logits, weights);
    wgmma_wait<0>();
    pin(dp);
    mbarrier_arrive(at.walked_free + 8 * stage);
    differentiate(logits, dp, is_masked);
    encode(B::kGradients, dp, grads);
    this->wait_for_grads(num_walked - 1);
    store_grads(grads, at.grads_of(num_walked));
    publish_shared_writes();
    // Every lane signals its own stores.
    TileBarrier(at.grads_full + 16 * group, num_walked).arrive();
    TileBarrier(at.turned_full, num_walked).wait();
    add_product<Fp8Type::e4m3, B::kGradients>(dv, weights, turned + kTurnedHalf);
    add_product<B::kGradients, Fp8Type::e4m3>(dk, grads, turned);
    TileBarrier(at.turned_free, num_walked).arrive();
  }

  /// Makes dq of a tile whose dS both consumers have stored.
  __device__ __forceinline__ void make_dq(int number, bool closes) {
    // Own dS and turned K are the work of all warps.
    TileBarrier(at.grads_full + 16 * group, number).wait();
    float dq[B::kQk / 2];
    query_gradient.start_codes(dq, number);
    wgmma_wait<0>();
    pin(dq);
    query_gradient.give(dq, number, closes);
  }

  /// Computes all tiles of an item. A consumer makes dq of every other tile, a tile later.
  __device__ __forceinline__ void walk_tiles(Tiles& tiles, int32_t key) {
    // Rows of K that were cleared are this warpgroup's.
    named_barrier_sync(1 + group, kWarpgroupThreads);
    turn_rows<kAsRows>(k, at.turned_keys, group);
    publish_shared_writes();  // the barriers of the first dS cover it
    bool has_tile = true, has_before = false, closed = false;
    do {
      num_walked = shared_by_warp(num_walked);
      const bool closes = fused.closes(tiles.walk);
      take_tile(key, tiles.walk.is_masked != 0);
      if (has_before && this->makes_dq_of(num_walked - 1)) make_dq(num_walked - 1, closed);
      has_tile = tiles.next(p.tiles.runs);
      has_before = true;
      closed = closes;
      ++num_walked;
    } while (has_tile);
    num_walked = shared_by_warp(num_walked);
    if (this->makes_dq_of(num_walked - 1)) {
      this->wait_for_grads(num_walked - 1);
      make_dq(num_walked - 1, closed);
    }
    this->free_owned();
  }
};

}  // namespace cpscope::kernels::device
