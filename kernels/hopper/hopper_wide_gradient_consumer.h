#pragma once

#include "kernels/hopper/hopper_gradient_consumer.h"

#include <cstdint>

/// The products of the fused backward of sm_90a for head_dims of up to 192 and 128 (described in
/// hopper_gradients.cu).
namespace cpscope::kernels::device {

/// A consumer warpgroup. dk and dv take 160 registers, so S', dP' and each part of dq have the same
/// 32, one after another.
template <class B>
struct WideGradientConsumer : GradientConsumer<B> {
  using T = typename B::T;
  using Base = GradientConsumer<B>;
  using Tiles = typename Base::Tiles;
  using Base::at, Base::dk, Base::dv, Base::fused, Base::group, Base::k, Base::logit_grads,
      Base::num_walked, Base::p, Base::query_gradient, Base::v, Base::weights;

  static constexpr int kPart = B::kDqElements;
  float tile[kPartRows / 2];      // S', dP' or a part of dq
  uint32_t rests[kPartRows / 4];  // P' less `weights`, in bf16, in pairs

  using Base::Base;

  /// Address of the metadata of this thread's first two columns.
  __device__ __forceinline__ uint32_t facts_of(int number) const {
    return at.facts + number % B::kStages * B::Facts::kBytes + 8 * (threadIdx.x % 4);
  }

  /// Starts S' of tile num_walked.
  __device__ __forceinline__ void start_logits() {
    mbarrier_wait(at.first_full + 8 * (num_walked % B::kStages), (num_walked / B::kStages) & 1);
    this->template start_product<B::kQk>(tile, k, at.q_of(num_walked), 0);
  }

  /// S' -> P', as an operand, and with what its rounding has left out for dS.
  template <bool kIsMasked>
  __device__ __forceinline__ void weigh_tile(uint32_t facts, int32_t key) {
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
      const FloatPair row_lse = load_shared_pair(facts + 32 * j);
      float* const values = tile + 4 * j;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float slope;
        values[i] = weigh<B::kForm>(p, values[i], i % 2 == 0 ? row_lse.x : row_lse.y, slope);
      }
      if constexpr (kIsMasked) hide_columns<typename B::Facts>(facts + 32 * j, key, values);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        weights[2 * j + i] = round_weights<B>(p, values[2 * i], values[2 * i + 1]);
        const FloatPair rounded = unpack<T>(weights[2 * j + i]);
        rests[2 * j + i] = pack<Bf16>(values[2 * i] - rounded.x, values[2 * i + 1] - rounded.y);
      }
    }
  }

  /// Two of P', as they were before they were rounded.
  __device__ __forceinline__ FloatPair weights_of(int i) const {
    const FloatPair rounded = unpack<T>(weights[i]), rest = unpack<Bf16>(rests[i]);
    return {rounded.x + rest.x, rounded.y + rest.y};
  }

  /// dP' -> dS' = P' (dP' - delta), rounded.
  __device__ __forceinline__ void differentiate(uint32_t facts, bool is_masked) {
    // A key that no row sees may hold a NaN, and so may its dP'.
    if (is_masked) {
#pragma unroll
      for (int i = 0; i < kPartRows / 4; ++i) {
        const FloatPair weight = weights_of(i);
        tile[2 * i] = weight.x == 0.0f ? 0.0f : tile[2 * i];
        tile[2 * i + 1] = weight.y == 0.0f ? 0.0f : tile[2 * i + 1];
      }
    }
    pin(weights);  // otherwise 32 sums of above are kept, and registers spill
    pin(rests);
#pragma unroll
    for (int j = 0; j < kPartRows / 8; ++j) {
      const FloatPair delta = load_shared_pair(facts + B::Facts::kDelta + 32 * j);
#pragma unroll
      for (int i = 2 * j; i < 2 * j + 2; ++i) {
        const FloatPair weight = weights_of(i);
        logit_grads[i] = round_grads<B>(p, slope_of<B>(p, weight.x, tile[2 * i], delta.x),
                                        slope_of<B>(p, weight.y, tile[2 * i + 1], delta.y));
      }
    }
  }

  /// Frees dS of tile `number`, of which this warp has no more products.
  __device__ __forceinline__ void free_grads(int number) const {
    if (this->is_elected()) mbarrier_arrive(TileBarrier(at.grads_free, number).address);
  }

  /// Waits until all warps of both consumers have stored dS of tile `number`.
  __device__ __forceinline__ void wait_for_all_grads(int number) const {
    TileBarrier(at.grads_full + 16 * group, number).wait();
    this->wait_for_grads(number);
  }

  /// Starts the first of this consumer's parts of dq of tile `number`: it makes two of three, then
  /// of the next tile one.
  template <bool kMakesTwo>
  __device__ __forceinline__ void start_dq(int number) {
    wait_for_all_grads(number);
    query_gradient.template start<kMakesTwo ? 0 : 2 * kPart>(tile, number);
  }

  /// Gives the parts, of which the first is in flight.
  template <bool kMakesTwo>
  __device__ __forceinline__ void finish_dq(int number, bool closes) {
    wgmma_wait<0>();
    pin(tile);
    if constexpr (kMakesTwo) {
      query_gradient.template give<0, false>(tile, number, closes);
      query_gradient.template start<kPart>(tile, number);
      wgmma_wait<0>();
      pin(tile);
    }
    free_grads(number);
    query_gradient.template give<kMakesTwo ? kPart : 2 * kPart>(tile, number, closes);
  }

  /// A streamed tile whose S' is ready. kDqParts: that this consumer makes of the tile before.
  template <int kDqParts>
  __device__ __forceinline__ void take_tile(int32_t key, bool is_masked, bool closed) {
    const uint32_t facts = facts_of(num_walked), d_out = at.d_out_of(num_walked);
    const int before = num_walked - 1;
    if (is_masked) {
      weigh_tile<true>(facts, key);
    } else {
      weigh_tile<false>(facts, key);
    }
    mbarrier_wait(at.second_full, num_walked & 1);
    // dv first: there are no registers for its operand while dS' is made.
    this->start_sums(dv, weights, d_out);
    this->template start_product<B::kV>(tile, v, d_out, 0);
    wgmma_wait<0>();
    pin(dv);
    pin(tile);
    if (this->is_elected()) mbarrier_arrive(at.second_free);
    differentiate(facts, is_masked);
    TileBarrier(at.grads_free, before - 1).wait();
    this->store_grads(at.grads_of(num_walked));
    this->start_sums(dk, logit_grads, at.q_of(num_walked));
    publish_shared_writes();
    // Every lane signals its own stores.
    TileBarrier(at.grads_full + 16 * group, num_walked).arrive();
    if constexpr (kDqParts > 0) start_dq<kDqParts == 2>(before);
    wgmma_wait<kDqParts == 0 ? 0 : 1>();
    pin(dk);
    ++num_walked;
    this->free_walked();
    if constexpr (kDqParts > 0) finish_dq<kDqParts == 2>(before, closed);
  }

  /// Computes all tiles of an item. dq of a tile is made a tile later, when the other consumer's dS
  /// has long been stored.
  __device__ __forceinline__ void walk_tiles(Tiles& tiles, int32_t key) {
    bool has_before = false, closed = false;  // the previous tile
    do {
      num_walked = shared_by_warp(num_walked);
      const bool closes = fused.closes(tiles.walk), is_masked = tiles.walk.is_masked != 0;
      start_logits();
      wgmma_wait<0>();
      pin(tile);
      if (!has_before) {
        take_tile<0>(key, is_masked, closed);
      } else if (this->makes_dq_of(num_walked - 1)) {
        take_tile<2>(key, is_masked, closed);
      } else {
        take_tile<1>(key, is_masked, closed);
      }
      has_before = true;
      closed = closes;
    } while (tiles.next(p.tiles.runs));
    num_walked = shared_by_warp(num_walked);
    const int last = num_walked - 1;
    if (this->makes_dq_of(last)) {
      start_dq<true>(last);
      finish_dq<true>(last, closed);
    } else {
      start_dq<false>(last);
      finish_dq<false>(last, closed);
    }
    this->free_owned();
  }
};

}  // namespace cpscope::kernels::device
