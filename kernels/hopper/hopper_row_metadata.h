#pragma once

#include "kernels/attention/row_offsets.h"
#include "kernels/hopper/hopper_backward_kernel.h"

#include <cmath>
#include <cstdint>

/// Row metadata of every streamed query row, for kernels with stationary keys. Keys are rows of
/// their products, so the metadata of a query belongs to a column. A warp of the producer stores it
/// in shared memory next to the tile.
namespace cpscope::kernels::device {

/// Offsets of the metadata of a stage's streamed rows: log2_lse and delta (unless the product
/// subtracts them), then lo and size of the range of visible keys, then positions (AlibiRows).
template <int kRows, bool kHasPositions = false>
struct FactLayout {
  static constexpr int kDelta = 4 * kRows;
  static constexpr int kLo = 8 * kRows;
  static constexpr int kSize = 12 * kRows;
  static constexpr int kPosition = 16 * kRows;
  static constexpr int kBytes = (kHasPositions ? 20 : 16) * kRows;
};

/// Zeroes those of four numbers of a sum that belong to keys which their query row does not see: of
/// keys `key` and key + 8, two rows each. facts: address of the metadata of the first row.
template <class Facts>
__device__ __forceinline__ void hide_columns(uint32_t facts, int32_t key, float* values) {
  const IntPair lo = load_shared_int_pair(facts + Facts::kLo);
  const IntPair size = load_shared_int_pair(facts + Facts::kSize);
  const KeySpan even{lo.x, static_cast<uint32_t>(size.x)};
  const KeySpan odd{lo.y, static_cast<uint32_t>(size.y)};
  if (!even.has(key)) values[0] = 0.0f;
  if (!odd.has(key)) values[1] = 0.0f;
  if (!even.has(key + 8)) values[2] = 0.0f;
  if (!odd.has(key + 8)) values[3] = 0.0f;
}

/// Addresses of the stages of row metadata and of their barriers.
struct FactStages {
  uint32_t facts, full, free;
};

/// Offsets of 64 streamed rows (row_offsets.h) as an operand of 16 elements: their 8 elements
/// twice.
__device__ __forceinline__ uint64_t offset_descriptor(uint32_t rows) {
  return plain_descriptor(rows);
}

/// The other operand, the same for every key: one half for each part, twice.
struct OffsetHalves {
  uint32_t pairs[4];

  __device__ OffsetHalves() {
    constexpr uint32_t kHalf = 0x3F00;  // bf16
    const int lane = threadIdx.x % 4;
    for (uint32_t& pair : pairs) pair = lane == 0 ? kHalf | kHalf << 16 : lane == 1 ? kHalf : 0;
  }
};

/// A thread lane's part of a streamed tile's row metadata, in registers between load and store to
/// shared memory: rows 2 * lane and the next one of every 64. Plain loads, because rows begin
/// anywhere and rows past the run's end may not be read; all at once. All tiles need lse and delta,
/// so they are loaded before the stage is free.
template <class Walk, bool kHasPositions>
struct RowFacts {
  using Facts = FactLayout<Walk::kRows, kHasPositions>;
  static constexpr int kPerLane = Walk::kRows / 32;
  static constexpr int kPairs = kPerLane / 2;
  float log2_lse[kPerLane], delta[kPerLane];
  float position[kHasPositions ? kPerLane : 1];

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  /// Row of the i-th number, in the tile.
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
    if constexpr (kHasPositions) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        position[i] = p.alibi.query_positions[walk.row + row_of(i)];  // with padding
    }
  }

  __device__ __forceinline__ void store_statistics(uint32_t facts) const {
    const uint32_t to = facts + 8 * lane();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      store_shared_pair(to + 256 * i, {log2_lse[2 * i], log2_lse[2 * i + 1]});
      store_shared_pair(to + Facts::kDelta + 256 * i, {delta[2 * i], delta[2 * i + 1]});
    }
    if constexpr (kHasPositions) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        store_shared_pair(to + Facts::kPosition + 256 * i, {position[2 * i], position[2 * i + 1]});
    }
  }

  /// Stores the keys that each row sees, if the tile has a mask. keys_end: end of the stationary
  /// keys.
  __device__ __forceinline__ void store_keys(const BackwardParams& p, const Walk& walk,
                                             int32_t keys_end, uint32_t facts) const {
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
};

/// The producer's second warp: stores the metadata of the streamed rows. Each lane arrives at a
/// stage's barrier.
template <int kStages, class Walk, bool kHasPositions = false>
__device__ __forceinline__ void fetch_facts(const BackwardParams& p, TileScheduler scheduler,
                                            const FactStages& at) {
  using Facts = FactLayout<Walk::kRows, kHasPositions>;
  int num_walked = 0;
  for (;;) {
    const ScheduledItem item = scheduler.read();
    if (item.is_last()) return;
    const HeadRange heads(p, item.head);
    for (int32_t head = heads.first; head < heads.last; ++head) {
      for (Walk walk(item); walk.next(p.tiles.runs); ++num_walked) {
        const int stage = num_walked % kStages;
        RowFacts<Walk, kHasPositions> facts;
        facts.fetch(p, walk, head);
        mbarrier_wait(at.free + 8 * stage, ((num_walked / kStages) & 1) ^ 1);
        const uint32_t to = at.facts + stage * Facts::kBytes;
        facts.store_statistics(to);
        facts.store_keys(p, walk, item.tile.end, to);
        // Every lane signals its own stores.
        mbarrier_arrive(at.full + 8 * stage);
      }
    }
  }
}

}  // namespace cpscope::kernels::device
