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

/// Walks the tiles of kRows rows of an owned tile's runs.
template <int kRows>
struct RunWalk {
  int32_t run;
  int32_t last_run;  // the one after the tile's last
  int32_t row = 0;   // first row of the tile
  int32_t end = 0;   // of the run: rows there and beyond are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;
  bool begins_run = false;

  __device__ explicit RunWalk(const OwnedTile& tile)
      : run(tile.first_run), last_run(tile.first_run + tile.num_runs) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    row += kRows;
    begins_run = row >= end;
    if (!begins_run) return true;
    if (run == last_run) return false;
    const TileRun next_run = runs[run];
    row = next_run.begin;
    end = next_run.end;
    range_set = next_run.range_set;
    is_masked = next_run.is_masked;
    ++run;
    return true;
  }
};

/// Hands work items from the producer to its readers through two slots of shared memory. The first
/// item comes from the counter too: an item is then never drawn before an earlier one.
struct WorkSlots {
  static constexpr int kBytes = 40;

  uint32_t full, free, slot;
  int32_t count = 0;  // items drawn or read

  __device__ explicit WorkSlots(uint32_t address)
      : full(address), free(address + 16), slot(address + 32) {}

  /// readers: arrivals that free a slot.
  __device__ void init(int readers) const {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(free + 8 * i, readers);
    }
  }

  /// Producer's thread: draws the next item; -1 when there is none.
  __device__ __forceinline__ int32_t draw(int32_t* counter, int32_t num_work) {
    int32_t item = atomic_add(counter, 1);
    if (item >= num_work) item = -1;
    const int which = count & 1;
    mbarrier_wait(free + 8 * which, ((count / 2) & 1) ^ 1);
    store_shared_int(slot + 4 * which, item);
    mbarrier_arrive(full + 8 * which);
    ++count;
    return item;
  }

  /// A warp of a reader, all its lanes together.
  __device__ __forceinline__ int32_t read() {
    const int which = count & 1;
    int32_t item = 0;
    // One lane reads, and frees what it has read.
    if (threadIdx.x % 32 == 0) {
      mbarrier_wait(full + 8 * which, (count / 2) & 1);
      item = load_shared_int(slot + 4 * which);
      mbarrier_arrive(free + 8 * which);
    }
    ++count;
    return from_first_lane(item);
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

/// What a query row sees in a run that ends at `run_end`: the last tile reaches beyond, where the
/// row may see keys that another run brings. Rows that do not exist see nothing.
__device__ __forceinline__ KeySpan span_of_row(const DeviceTiles& tiles, int32_t q_rows,
                                               int32_t range_set, int32_t row, int32_t run_end) {
  if (row >= q_rows) return {};
  const KeyRange range = tiles.ranges[static_cast<int64_t>(range_set) * q_rows + row];
  const int32_t hi = range.hi < run_end ? range.hi : run_end;
  return {range.lo, hi > range.lo ? static_cast<uint32_t>(hi - range.lo) : 0u};
}

/// Writes one of a thread's two rows of a 64 x kLanes sum, times `factor`. `to`: the row's lane 0;
/// kSecond: the row 8 further down. num_lanes: lanes that the row holds, in groups of 8.
template <int kLanes, bool kSecond>
__device__ __forceinline__ void store_row(float* to, int32_t num_lanes,
                                          const float (&sums)[kLanes / 2], float factor) {
  to += 2 * (threadIdx.x % 4);
#pragma unroll
  for (int group = 0; group < kLanes / 8; ++group) {
    const int at = 4 * group + (kSecond ? 2 : 0);
    if (8 * group < num_lanes) {
      store_pair(to + 8 * group, sums[at] * factor, sums[at + 1] * factor);
    }
  }
}

}  // namespace cpscope::kernels::device
