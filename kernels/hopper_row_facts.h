#pragma once

#include "kernels/hopper_backward_kernel.h"

#include <cmath>
#include <cstdint>

/// What kernels that own keys must know of every walked query row. Keys are rows of their products,
/// so that what belongs to a query belongs to a column; a warp of the producer puts it into shared
/// memory beside the tile.
namespace cpscope::kernels::device {

/// Where the facts of a stage's walked rows lie: log2_lse, delta, then lo and size of the keys
/// seen.
template <int kRows>
struct FactLayout {
  static constexpr int kDelta = 4 * kRows;
  static constexpr int kLo = 8 * kRows;
  static constexpr int kSize = 12 * kRows;
  static constexpr int kBytes = 16 * kRows;
};

/// Addresses of the facts' stages and of their barriers.
struct FactStages {
  uint32_t facts, full, free;
};

/// A lane's part of a walked tile's facts on their way to shared memory. Plain loads, since rows
/// begin anywhere and none past the run's end may be read; all at once. All tiles want lse and
/// delta: they are asked for before the stage is free.
template <class Walk>
struct RowFacts {
  static constexpr int kPerLane = Walk::kRows / 32;
  float log2_lse[kPerLane], delta[kPerLane];

  __device__ __forceinline__ void fetch(const BackwardParams& p, const Walk& walk, int32_t head) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t row = walk.row + 32 * i + static_cast<int32_t>(threadIdx.x % 32);
      const bool is_walked = row < walk.end;
      const int64_t place = static_cast<int64_t>(head) * p.q_rows + row;
      log2_lse[i] = is_walked ? p.log2_lse[place] : INFINITY;
      delta[i] = is_walked ? p.delta[place] : 0.0f;
    }
  }

  /// keys_end: of the owned keys.
  __device__ __forceinline__ void store(const BackwardParams& p, const Walk& walk, int32_t keys_end,
                                        uint32_t facts) const {
    using Facts = FactLayout<Walk::kRows>;
    const uint32_t to = facts + 4 * (threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      store_shared_float(to + 128 * i, log2_lse[i]);
      store_shared_float(to + Facts::kDelta + 128 * i, delta[i]);
    }
    if (walk.is_masked == 0) return;
    KeyRange keys[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t row = walk.row + 32 * i + static_cast<int32_t>(threadIdx.x % 32);
      keys[i] = {};
      if (row < walk.end)
        keys[i] = p.tiles.ranges[static_cast<int64_t>(walk.range_set) * p.q_rows + row];
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const KeySpan span = clip_to_run(keys[i], keys_end);
      store_shared_int(to + Facts::kLo + 128 * i, span.lo);
      store_shared_int(to + Facts::kSize + 128 * i, static_cast<int32_t>(span.size));
    }
  }
};

/// The producer's second warp: the facts of the walked rows. Each lane arrives at a stage's barrier.
template <int kStages, class Walk>
__device__ __forceinline__ void fetch_facts(const BackwardParams& p, WorkDeal deal,
                                            const FactStages& at) {
  using Facts = FactLayout<Walk::kRows>;
  int num_walked = 0;
  for (;;) {
    const DealtItem item = deal.read();
    if (item.is_last()) return;
    const HeadRange heads(p, item.head);
    for (int32_t head = heads.first; head < heads.last; ++head) {
      for (Walk walk(item); walk.next(p.tiles.runs); ++num_walked) {
        const int stage = num_walked % kStages;
        RowFacts<Walk> facts;
        facts.fetch(p, walk, head);
        mbarrier_wait(at.free + 8 * stage, ((num_walked / kStages) & 1) ^ 1);
        facts.store(p, walk, item.tile.end, at.facts + stage * Facts::kBytes);
        // Every lane tells of its own stores.
        mbarrier_arrive(at.full + 8 * stage);
      }
    }
  }
}

}  // namespace cpscope::kernels::device
