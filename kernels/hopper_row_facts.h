#pragma once

#include "kernels/hopper_backward_kernel.h"

#include <cmath>
#include <cstdint>

/// What kernels that own keys must know of every walked query row. Keys are rows of their products,
/// so that what belongs to a query belongs to a column; a warp of the producer puts it into shared
/// memory beside the tile.
namespace cpscope::kernels::device {

/// Where the facts of a stage's walked rows lie: log2_lse and delta (unless they are offsets,
/// below), then lo and size of the keys seen.
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

/// What products take from every row's sum, so that no warp has to read it: -lse and -delta as sums
/// of three bf16 numbers each, which is all that an fp32 number holds. For 64 walked rows: three
/// groups of 8 rows with the 128-byte swizzle, whose first rows are the parts of -lse, of -delta,
/// and none; all others are zeros. An operand is a group with the one behind it.
inline constexpr int kOffsetParts = 3;
inline constexpr int kOffsetGroupBytes = 8 * kPanelRowBytes, kOffsetBytes = 3 * kOffsetGroupBytes;

/// The other operand: ones for the parts, for none else.
struct OffsetOnes {
  uint32_t pairs[4];

  __device__ OffsetOnes() {
    constexpr uint32_t kOne = 0x3F80;  // bf16
    const int lane = threadIdx.x % 4;
    pairs[0] = pairs[1] = lane == 0 ? kOne | kOne << 16 : lane == 1 ? kOne : 0;
    pairs[2] = pairs[3] = 0;
  }
};

/// A lane's part of a walked tile's facts on their way to shared memory: rows 2 * lane and the next
/// one of every 64. Plain loads, since rows begin anywhere and none past the run's end may be read;
/// all at once. All tiles want lse and delta: they are asked for before the stage is free.
template <class Walk>
struct RowFacts {
  static constexpr int kPerLane = Walk::kRows / 32;
  static constexpr int kPairs = kPerLane / 2;
  float log2_lse[kPerLane], delta[kPerLane];

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  /// Of the i-th number, in the tile.
  __device__ __forceinline__ static int row_of(int i) { return i / 2 * 64 + 2 * lane() + i % 2; }

  __device__ __forceinline__ void fetch(const BackwardParams& p, const Walk& walk, int32_t head) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t row = walk.row + row_of(i);
      const bool is_walked = row < walk.end;
      const int64_t place = static_cast<int64_t>(head) * p.q_rows + row;
      log2_lse[i] = is_walked ? p.log2_lse[place] : INFINITY;
      delta[i] = is_walked ? p.delta[place] : 0.0f;
    }
  }

  __device__ __forceinline__ void store_statistics(uint32_t facts) const {
    const uint32_t to = facts + 8 * lane();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      store_shared_pair(to + 256 * i, {log2_lse[2 * i], log2_lse[2 * i + 1]});
      store_shared_pair(to + FactLayout<Walk::kRows>::kDelta + 256 * i,
                        {delta[2 * i], delta[2 * i + 1]});
    }
  }

  /// lse_factor: of log2_lse, to what is added to q.k. The parts of an infinite lse are no numbers,
  /// which nobody sees: a tile with such a row has a mask.
  __device__ __forceinline__ void store_offsets(float lse_factor, uint32_t offsets) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t groups = offsets + i * kOffsetBytes;
      store_parts(log2_lse[2 * i] * lse_factor, log2_lse[2 * i + 1] * lse_factor, groups);
      store_parts(-delta[2 * i], -delta[2 * i + 1], groups + kOffsetGroupBytes);
    }
  }

  /// The keys seen, where the tile has a mask. keys_end: of the owned keys.
  __device__ __forceinline__ void store_keys(const BackwardParams& p, const Walk& walk,
                                             int32_t keys_end, uint32_t facts) const {
    using Facts = FactLayout<Walk::kRows>;
    if (walk.is_masked == 0) return;
    KeyRange keys[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t row = walk.row + row_of(i);
      keys[i] = {};
      if (row < walk.end)
        keys[i] = p.tiles.ranges[static_cast<int64_t>(walk.range_set) * p.q_rows + row];
    }
    const uint32_t to = facts + 8 * lane();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const KeySpan even = clip_to_run(keys[2 * i], keys_end);
      const KeySpan odd = clip_to_run(keys[2 * i + 1], keys_end);
      store_shared_int_pair(to + Facts::kLo + 256 * i, {even.lo, odd.lo});
      store_shared_int_pair(to + Facts::kSize + 256 * i,
                            {static_cast<int32_t>(even.size), static_cast<int32_t>(odd.size)});
    }
  }

 private:
  /// The parts of two columns' numbers.
  __device__ __forceinline__ static void store_parts(float even, float odd, uint32_t group) {
#pragma unroll
    for (int row = 0; row < kOffsetParts; ++row) {
      const uint32_t pair = pack<Bf16>(even, odd);
      const int chunk = (lane() / 4) ^ row;
      store_shared_int(group + row * kPanelRowBytes + 16 * chunk + 4 * (lane() % 4),
                       static_cast<int32_t>(pair));
      even -= to_float(Bf16{static_cast<uint16_t>(pair)});
      odd -= to_float(Bf16{static_cast<uint16_t>(pair >> 16)});
    }
  }
};

/// The producer's second warp: the facts of the walked rows. Each lane arrives at a stage's
/// barrier.
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
        const uint32_t to = at.facts + stage * Facts::kBytes;
        facts.store_statistics(to);
        facts.store_keys(p, walk, item.tile.end, to);
        // Every lane tells of its own stores.
        mbarrier_arrive(at.full + 8 * stage);
      }
    }
  }
}

}  // namespace cpscope::kernels::device
