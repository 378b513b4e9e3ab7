#pragma once

#include "kernels/hopper.h"
#include "kernels/softcap.h"
#include "kernels/tile_list.h"

#include <cstdint>

/// What the Hopper kernels share: one warpgroup fetches (the producer), the others compute (the
/// consumers); both draw the same work items and walk the same tiles.
namespace cpscope::kernels::device {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // rows that a warpgroup's products have
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kMaxSharedBytes = 232'448;  // that a CTA of sm_90 may have

/// Registers that a thread has at the launch; claimed and yielded ones together may not be more, or
/// the claim waits for ever.
constexpr int launch_registers(int threads) { return 65'536 / threads / 8 * 8; }

__device__ __forceinline__ uint32_t align_to_swizzle(uint32_t address) {
  return (address + 1023u) & ~1023u;
}

/// A work item as its workers see it. kv heads or query heads: those of the owned side.
struct DealtItem {
  OwnedTile tile;
  TileRun first_run;  // of the tile, where it has runs
  int32_t head = -1;  // -1: there are no more items

  __device__ __forceinline__ bool is_last() const { return head < 0; }
};

/// Hands work items to all warps of a CTA through shared memory. One thread, the dealer, draws the
/// next item while the one before is worked on, so that nobody waits for the counter or for the
/// tables. Items are drawn in order: an item is never drawn before an earlier one.
struct WorkDeal {
  static constexpr int kBytes = 56;

  uint32_t full, free, slot;
  int32_t count = 0;  // items dealt or read

  __device__ explicit WorkDeal(uint32_t address)
      : full(address), free(address + 8), slot(address + 16) {}

  /// readers: arrivals that free the slot, one for each call of read or read_alone.
  __device__ void init(int readers) const {
    mbarrier_init(full, 1);
    mbarrier_init(free, readers);
  }

  /// The dealer: all items, until there are none.
  __device__ __forceinline__ void deal(const DeviceTiles& tiles, int32_t* counter) {
    for (;;) {
      mbarrier_wait(free, (count & 1) ^ 1);
      const int32_t drawn = atomic_add(counter, 1);
      DealtItem item{};
      if (drawn < tiles.num_work) {
        const WorkItem work = tiles.work[drawn];
        item.head = work.head;
        item.tile = tiles.tiles[work.tile];
        if (item.tile.num_runs > 0) item.first_run = tiles.runs[item.tile.first_run];
      } else {
        item.head = -1;
      }
      write(item);
      mbarrier_arrive(full);
      ++count;
      if (item.is_last()) return;
    }
  }

  /// A whole warp, all its lanes together.
  __device__ __forceinline__ DealtItem read() {
    const DealtItem item = wait_and_load();
    __syncwarp();  // every lane has read it
    if (threadIdx.x % 32 == 0) mbarrier_arrive(free);
    return item;
  }

  /// One thread for itself.
  __device__ __forceinline__ DealtItem read_alone() {
    const DealtItem item = wait_and_load();
    mbarrier_arrive(free);
    return item;
  }

 private:
  __device__ __forceinline__ void write(const DealtItem& item) const {
    const int32_t words[] = {item.tile.begin,
                             item.tile.end,
                             item.tile.first_run,
                             item.tile.num_runs,
                             item.first_run.begin,
                             item.first_run.end,
                             item.first_run.range_set,
                             item.first_run.is_masked | item.first_run.idle_groups << 16,
                             item.head};
#pragma unroll
    for (int i = 0; i < 9; ++i) store_shared_int(slot + 4 * i, words[i]);
  }

  __device__ __forceinline__ DealtItem wait_and_load() {
    mbarrier_wait(full, count & 1);
    ++count;
    int32_t words[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) words[i] = load_shared_int(slot + 4 * i);
    return {{words[0], words[1], words[2], words[3]},
            {words[4], words[5], words[6], static_cast<int16_t>(words[7] & 0xffff),
             static_cast<int16_t>(words[7] >> 16)},
            words[8]};
  }
};

/// Walks the tiles of kRows rows of an item's runs.
template <int kRows>
struct RunWalk {
  int32_t run;       // the one after the present
  int32_t last_run;  // the one after the tile's last
  int32_t row = 0;   // first row of the tile
  int32_t end = 0;   // of the run: rows there and beyond are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;
  int32_t idle_groups = 0;
  bool begins_run = false;
  TileRun upcoming;  // fetched a run ahead

  __device__ explicit RunWalk(const DealtItem& item)
      : run(item.tile.first_run),
        last_run(item.tile.first_run + item.tile.num_runs),
        upcoming(item.first_run) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    row += kRows;
    begins_run = row >= end;
    if (!begins_run) return true;
    if (run == last_run) return false;
    row = upcoming.begin;
    end = upcoming.end;
    range_set = upcoming.range_set;
    is_masked = upcoming.is_masked;
    idle_groups = upcoming.idle_groups;
    ++run;
    if (run < last_run) upcoming = runs[run];
    return true;
  }

  /// Has this group of owned rows nothing to do with the tile?
  __device__ __forceinline__ bool is_idle(int group) const {
    return ((idle_groups >> group) & 1) != 0;
  }
};

/// Loads rows [row, row + kRows) of `head`, clipped at `end`, as kLanes / 64 panels.
template <int kLanes, int kRows>
__device__ __forceinline__ void load_panels(uint32_t to, const TensorMap* map, uint32_t barrier,
                                            int row, int end, int head) {
#pragma unroll
  for (int panel = 0; panel < kLanes / kBoxLanes; ++panel) {
    // Rows count from the map's end: see kMapRows.
    load_box(to + panel * kRows * kPanelRowBytes, map, barrier, panel * kBoxLanes,
             kMapRows - end + row, head, end, kMapRows);
  }
}

/// Address of the first 16 lanes of k-step `step` of an operand whose lanes are summed over.
template <int kRows>
__device__ __forceinline__ uint32_t step_address(uint32_t tile, int step) {
  return tile + (step / 4) * kRows * kPanelRowBytes + (step % 4) * 32;
}

/// The keys that a query row sees in a run, as the test of a masked tile wants them.
struct KeySpan {
  int32_t lo = 0;
  uint32_t size = 0;

  __device__ __forceinline__ bool has(int32_t key) const {
    return static_cast<uint32_t>(key - lo) < size;
  }
};

/// What a query row with this range sees in a run that ends at `run_end`: the last tile reaches
/// beyond, where the row may see keys that another run brings.
__device__ __forceinline__ KeySpan clip_to_run(KeyRange range, int32_t run_end) {
  const int32_t hi = range.hi < run_end ? range.hi : run_end;
  return {range.lo, hi > range.lo ? static_cast<uint32_t>(hi - range.lo) : 0u};
}

/// The same of row `row`. Rows that do not exist see nothing.
__device__ __forceinline__ KeySpan span_of_row(const DeviceTiles& tiles, int32_t q_rows,
                                               int32_t range_set, int32_t row, int32_t run_end) {
  if (row >= q_rows) return {};
  return clip_to_run(tiles.ranges[static_cast<int64_t>(range_set) * q_rows + row], run_end);
}

/// What a thread's two query rows see in a run. Fetched when the run begins, and not looked at
/// before the first logits are there.
struct RowRanges {
  KeyRange range[2];

  __device__ __forceinline__ void fetch(const DeviceTiles& tiles, int32_t q_rows, int32_t range_set,
                                        int32_t first_row) {
    const KeyRange* rows = tiles.ranges + static_cast<int64_t>(range_set) * q_rows + first_row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      range[r] = {};
      if (first_row + 8 * r < q_rows) range[r] = rows[8 * r];
    }
  }

  __device__ __forceinline__ KeySpan span(int r, int32_t run_end) const {
    return clip_to_run(range[r], run_end);
  }
};

/// Writes one of a thread's two rows of a 64 x kLanes sum, times `factor`. `to`: the row's lane 0;
/// kSecond: the row 8 further down. num_lanes: lanes that the row holds, in groups of 8; 0: nothing
/// is written. There is no branch, so products may be under way.
template <int kLanes, bool kSecond>
__device__ __forceinline__ void store_row(float* to, int32_t num_lanes,
                                          const float (&sums)[kLanes / 2], float factor) {
  to += 2 * (threadIdx.x % 4);
#pragma unroll
  for (int group = 0; group < kLanes / 8; ++group) {
    const int at = 4 * group + (kSecond ? 2 : 0);
    store_pair_if(8 * group < num_lanes, to + 8 * group, sums[at] * factor, sums[at + 1] * factor);
  }
}

/// Every thread of a quad of lanes has words 0 to 3; thread t gets word t of all four.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool is_upper = (threadIdx.x & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t passed = is_upper ? words[i] : words[i + step];
      const uint32_t got = shuffle_xor(passed, step);
      words[i] = is_upper ? got : words[i];
      words[i + step] = is_upper ? words[i + step] : got;
    }
  }
}

/// The same, as numbers of T. Lanes of a quad exchange their pairs, so that each writes 8 lanes of
/// a row at once. All lanes of the warp call it together.
template <class T, int kLanes, bool kSecond>
__device__ __forceinline__ void store_narrow_row(T* to, int32_t num_lanes,
                                                 const float (&sums)[kLanes / 2]) {
#pragma unroll
  for (int first = 0; first < kLanes / 8; first += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (first + i) + (kSecond ? 2 : 0);
      words[i] = pack<T>(sums[at], sums[at + 1]);
    }
    transpose_in_quad(words);
    const int32_t lane = 8 * (first + static_cast<int32_t>(threadIdx.x % 4));
    store_four_if(lane < num_lanes, to + lane, words);
  }
}

}  // namespace cpscope::kernels::device
