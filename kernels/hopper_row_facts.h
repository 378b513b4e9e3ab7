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

/// A warp puts the facts of a walked tile's rows to `facts`. Plain loads, since rows begin anywhere
/// and none past the run's end may be read.
template <class Walk>
__device__ __forceinline__ void store_facts(const BackwardParams& p, const DealtItem& item,
                                            const Walk& walk, int32_t head, uint32_t facts) {
  using Facts = FactLayout<Walk::kRows>;
#pragma unroll
  for (int i = threadIdx.x % 32; i < Walk::kRows; i += 32) {
    const int32_t row = walk.row + i;
    const bool is_walked = row < walk.end;
    const int64_t place = static_cast<int64_t>(head) * p.q_rows + row;
    store_shared_float(facts + 4 * i, is_walked ? p.log2_lse[place] : INFINITY);
    store_shared_float(facts + Facts::kDelta + 4 * i, is_walked ? p.delta[place] : 0.0f);
    const KeySpan span = is_walked
                             ? span_of_row(p.tiles, p.q_rows, walk.range_set, row, item.tile.end)
                             : KeySpan{};
    store_shared_int(facts + Facts::kLo + 4 * i, span.lo);
    store_shared_int(facts + Facts::kSize + 4 * i, static_cast<int32_t>(span.size));
  }
}

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
        const uint32_t facts = at.facts + stage * Facts::kBytes;
        mbarrier_wait(at.free + 8 * stage, ((num_walked / kStages) & 1) ^ 1);
        store_facts(p, item, walk, head, facts);
        // Every lane tells of its own stores.
        mbarrier_arrive(at.full + 8 * stage);
      }
    }
  }
}

}  // namespace cpscope::kernels::device
