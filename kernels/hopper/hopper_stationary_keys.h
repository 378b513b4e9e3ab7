#pragma once

#include "kernels/hopper/hopper_fused_dq.h"
#include "kernels/hopper/hopper_fused_stages.h"
#include "kernels/hopper/hopper_row_metadata.h"

#include <cstdint>

/// What a consumer of the fused backward of sm_90a does without its products: it holds dk and dv of
/// its stationary keys and writes them.
namespace cpscope::kernels::device {

template <class B>
struct StationaryKeys {
  using T = typename B::T;
  using Tiles = HeadWalk<B, typename B::Count>;

  const FusedParams& fused;
  const BackwardParams& p;
  const FusedShared<B>& at;
  int group;  // index of the consumer
  FusedQueryGradient<B> query_gradient;
  uint32_t k, v;
  int num_walked = 0, num_owned = 0;  // taken
  float dk[B::kQk / 2];
  float dv[B::kV / 2];

  __device__ StationaryKeys(const FusedParams& params, const FusedShared<B>& shared, int consumer)
      : fused(params),
        p(params.base),
        at(shared),
        group(consumer),
        query_gradient{params, shared, consumer},
        k(shared.owned + group * kWarpgroupRows * kPanelRowBytes),
        v(k + B::kOwnedFirstBytes) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }
  __device__ __forceinline__ static int warp() { return threadIdx.x / 32 % 4; }

  /// Zeroes K's rows that no query sees: they may hold a NaN, which a dS of zero would not keep out
  /// of dq. The barrier before dq's product covers this store too.
  __device__ __forceinline__ void clear_gaps(const OwnedTile& tile) const {
    const int row = threadIdx.x % kWarpgroupThreads / 2, in_tile = group * kWarpgroupRows + row;
    if ((p.tiles.gaps[tile.first_gap + in_tile / 32] >> in_tile % 32 & 1) == 0) return;
    constexpr int kHalf = kPanelRowBytes / 2;
    const uint32_t to = k + row * kPanelRowBytes + threadIdx.x % 2 * kHalf;
#pragma unroll
    for (int panel = 0; panel < B::kQkLanes / kBoxLanes; ++panel) {
#pragma unroll
      for (int byte = 0; byte < kHalf; byte += 16)
        store_shared_four(to + panel * B::kOwned * kPanelRowBytes + byte, {0.0f, 0.0f, 0.0f, 0.0f});
    }
  }

  __device__ __forceinline__ bool makes_dq_of(int number) const { return number % 2 == group; }

  /// Waits until dS of the other consumer's keys is stored. Before a consumer stores dS of a tile
  /// it waits for that of the tile before: then the dq product that reads the place it overwrites
  /// is done.
  __device__ __forceinline__ void wait_for_grads(int number) const {
    TileBarrier(at.grads_full + 16 * (group ^ 1), number).wait();
  }

  /// Every lane has observed owned_full's phase: it has waited for products since.
  __device__ __forceinline__ void free_owned() const {
    if (is_elected()) mbarrier_arrive(at.owned_free);
  }

  /// Frees the stage of the tile before num_walked. Every lane signals that it has read the
  /// metadata.
  __device__ __forceinline__ void free_walked() const {
    mbarrier_arrive(at.walked_free + 8 * ((num_walked - 1) % B::kStages));
  }

  /// Stores one of a thread's two rows.
  template <int kHeadDim, bool kSecond>
  __device__ __forceinline__ void store_sums(const DeviceRows& rows, int32_t head, int32_t row,
                                             int32_t elements,
                                             const float (&sums)[kHeadDim / 2]) const {
    const int64_t place = head * rows.head_stride + static_cast<int64_t>(row) * rows.row_stride;
    if (fused.is_narrow != 0) {
      store_narrow_row<T, kHeadDim, kSecond>(static_cast<T*>(rows.data) + place, elements, sums);
    } else {
      store_row<kHeadDim, kSecond>(static_cast<float*>(rows.data) + place, elements, sums, 1.0f);
    }
  }

  __device__ __forceinline__ bool leaves(int32_t row, int32_t rows_end) const {
    return row < rows_end && (fused.wire.uses[row] & WireRows::kLeaves) != 0;
  }
  __device__ __forceinline__ bool stays(int32_t row, int32_t rows_end) const {
    return row < rows_end &&
           (fused.wire.uses == nullptr || (fused.wire.uses[row] & WireRows::kStays) != 0);
  }

  /// wire: where rows to be sent go. Both rows come first, and each condition where it is used: so
  /// the registers suffice (PtxasReport).
  template <int kHeadDim>
  __device__ __forceinline__ void store_rows(const DeviceRows& rows, void* wire, int32_t head,
                                             int32_t first_row, int32_t rows_end, int32_t elements,
                                             const float (&sums)[kHeadDim / 2]) const {
    // Usually all rows of a warp are alike.
    if (fused.wire.uses != nullptr &&
        any_in_warp(leaves(first_row, rows_end) || leaves(first_row + 8, rows_end))) {
      T* const to = static_cast<T*>(wire) + head * rows.head_stride +
                    static_cast<int64_t>(first_row) * rows.row_stride;
      store_narrow_row<T, kHeadDim, false>(to, leaves(first_row, rows_end) ? elements : 0, sums);
      store_narrow_row<T, kHeadDim, true>(to + 8 * rows.row_stride,
                                          leaves(first_row + 8, rows_end) ? elements : 0, sums);
    }
    store_sums<kHeadDim, false>(rows, head, first_row, stays(first_row, rows_end) ? elements : 0,
                                sums);
    store_sums<kHeadDim, true>(rows, head, first_row + 8,
                               stays(first_row + 8, rows_end) ? elements : 0, sums);
  }

  /// Takes items until there are no more. consumer: this one, whose products walk_tiles(tiles, key)
  /// starts, for all tiles of an item; `key` is this thread's first.
  template <class Consumer>
  __device__ __forceinline__ void run(Consumer& consumer) {
    TileScheduler scheduler(at.scheduler);
    const int32_t row_in_tile = group * kWarpgroupRows + warp() * 16 + threadIdx.x % 32 / 4;
    for (;;) {
      const ScheduledItem item = scheduler.read();
      if (item.is_last()) return;
#pragma unroll
      for (int i = 0; i < B::kQk / 2; ++i) dk[i] = 0.0f;
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) dv[i] = 0.0f;
      const int32_t key = item.tile.begin + row_in_tile;  // rows: key and key + 8
      Tiles tiles(p, item);
      if (tiles.next(p.tiles.runs)) {
        mbarrier_wait(at.owned_full, num_owned & 1);
        ++num_owned;
        if (item.tile.first_gap >= 0) clear_gaps(item.tile);
        consumer.walk_tiles(tiles, key);
      }
      if constexpr (B::kIsFp8) {
#pragma unroll
        for (int i = 0; i < B::kV / 2; ++i) dv[i] *= dv_scale<B>(p);
      }
      store_rows<B::kV>(p.second, fused.wire.dv, item.head, key, item.tile.end, p.head_dim_v, dv);
#pragma unroll
      for (int i = 0; i < B::kQk / 2; ++i) dk[i] *= p.scale;
      store_rows<B::kQk>(p.first, fused.wire.dk, item.head, key, item.tile.end, p.head_dim_qk, dk);
    }
  }
};

}  // namespace cpscope::kernels::device
