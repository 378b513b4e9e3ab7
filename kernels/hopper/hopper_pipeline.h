#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/softcap.h"
#include "kernels/device/hopper.h"
#include "kernels/device/work_items.h"
#include "kernels/tiles/tile_list.h"

#include <cstddef>
#include <cstdint>

/// Code that the Hopper kernels share: one warpgroup loads (the producer), the others compute (the
/// consumers); all take the same work items and the same tiles.
namespace cpscope::kernels::device {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // rows of a warpgroup's products
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kMaxSharedBytes = 232'448;  // that a CTA of sm_90 may have
inline constexpr int kRegistersPerSm = 65'536;

/// Registers of a thread at launch, with this number of threads on a multiprocessor. Claimed and
/// yielded registers together must not exceed it, or the claim never returns.
constexpr int launch_registers(int threads) { return kRegistersPerSm / threads / 8 * 8; }

/// Shared memory that each of `ctas` CTAs of a multiprocessor may have. The multiprocessor reserves
/// 1024 bytes for each.
constexpr int max_shared_bytes(int ctas) { return (kMaxSharedBytes + 1024) / ctas - 1024; }

__device__ __forceinline__ uint32_t align_to_swizzle(uint32_t address) {
  return (address + 1023u) & ~1023u;
}

/// Cycles through kStages stages, whose barriers end a phase in each cycle.
template <int kStages>
class NextStage {
 public:
  __device__ __forceinline__ int stage() const { return packed_ >> 1; }
  /// Parity of the phase that ends when the stage is full; the phase that freed it had the opposite
  /// parity.
  __device__ __forceinline__ uint32_t parity() const { return packed_ & 1; }
  __device__ __forceinline__ void advance() {
    packed_ += 2;
    if (packed_ >= 2 * kStages) packed_ = (packed_ & 1) ^ 1;
  }
  /// Shows the compiler that all lanes of the warp are at the same stage.
  __device__ __forceinline__ void share_in_warp() { packed_ = shared_by_warp(packed_); }

 private:
  int packed_ = 0;  // twice the stage, and the parity: one number, so that one shuffle shares it
};

/// Runs of a work item that are copied to shared memory; further ones are read from the list.
inline constexpr int kSharedRuns = 8;

/// A work item as the warps of a CTA read it.
struct ScheduledItem {
  OwnedTile tile;
  int32_t head = -1;  // of the stationary side; -1: there are no more items
  uint32_t runs = 0;  // address in shared memory of the first kSharedRuns of the tile's runs

  __device__ __forceinline__ bool is_last() const { return head < 0; }
};

/// Tile scheduler: passes work items to all warps of a CTA through two slots of shared memory. One
/// warp, the scheduler, fetches the next item while the current one is computed, so that no warp
/// waits for the counter or for the tables. Items are fetched in order: an item is never fetched
/// before an earlier one. A reader holds the slot of its item until it reads the next one.
struct TileScheduler {
  // A slot: the tile as in the list, the head, the first runs.
  static constexpr int kTileInts = sizeof(OwnedTile) / sizeof(int32_t);
  static constexpr int kRunsOffset = 4 * (kTileInts + 1);
  static_assert(offsetof(OwnedTile, first_run) == 8 && offsetof(OwnedTile, num_runs) == 12 &&
                offsetof(OwnedTile, first_turn) == 16 && offsetof(OwnedTile, first_gap) == 20 &&
                offsetof(OwnedTile, unseen) == 16 && offsetof(OwnedTile, num_tiles) == 24);
  static constexpr int kSlotBytes = kRunsOffset + 16 * kSharedRuns;
  static constexpr int kBytes = 32 + 2 * kSlotBytes;

  uint32_t full, free, slots;
  int32_t count = 0;  // items written or read

  /// address: aligned to 16 bytes.
  __device__ explicit TileScheduler(uint32_t address)
      : full(address), free(address + 16), slots(address + 32) {}

  /// warps: those of which every lane reads; threads: those that read alone.
  __device__ void init(int warps, int threads) const {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 32);
      mbarrier_init(free + 8 * i, 32 * warps + threads);
    }
  }

  /// The scheduler, a whole warp: passes on all items until there are none. kWaits: an item waits
  /// until its piece of the inputs has arrived. kDrawsEarly: after an item of few tiles the next
  /// one is fetched, with its tables, before its slot is free, because there is not enough time
  /// afterwards. Not for items that wait for each other's turns: an item that is held back would
  /// delay others.
  template <bool kWaits = false, bool kDrawsEarly = false>
  __device__ __forceinline__ void schedule(const DeviceTiles& tiles, int32_t* counter) {
    constexpr int32_t kFewTiles = 8;
    const int lane = threadIdx.x % 32;
    int32_t piece = 0;     // the next one to arrive
    int32_t num_here = 0;  // heads that have arrived
    bool draws_now = false;
    for (;;) {
      const int which = count & 1;
      const auto wait_until_free = [&] {
        // Readers free slot 1 once before it is filled, when they wait for their first item.
        mbarrier_wait(free + 8 * which, ((count / 2) & 1) ^ which ^ 1);
      };
      if (!draws_now) wait_until_free();
      const int32_t drawn = from_lane(lane == 0 ? atomic_add(counter, 1) : 0, 0);
      const bool is_there = drawn < tiles.num_work;
      const WorkItem work = is_there ? tiles.work[drawn] : WorkItem{.tile = 0, .head = -1};
      // A lane holds one number of the slot and one run.
      int32_t number = work.head;
      if (is_there && lane < kTileInts)
        number = reinterpret_cast<const int32_t*>(tiles.tiles + work.tile)[lane];
      const int32_t first_run = from_lane(number, 2), num_runs = from_lane(number, 3);
      const int32_t num_tiles = from_lane(number, 6);
      const bool has_run = is_there && lane < kSharedRuns && lane < num_runs;
      TileRun run;
      if (has_run) run = tiles.runs[first_run + lane];
      if (draws_now) wait_until_free();
      while (kWaits && tiles.arrivals.flags != nullptr && work.head >= num_here) {
        if (lane == 0) wait_for_piece(tiles.arrivals, piece);
        num_here = tiles.arrivals.ends[piece];
        ++piece;
      }
      const uint32_t slot = slots + which * kSlotBytes;
      if (lane <= kTileInts) store_shared_int(slot + 4 * lane, number);
      if (has_run) write(slot + kRunsOffset + 16 * lane, run);
      mbarrier_arrive(full + 8 * which);  // every lane signals its own stores
      ++count;
      if (!is_there) {
        // Every CTA ends with one fetch beyond the last item; the last one resets the counter for
        // the next launch.
        if (lane == 0 && drawn == tiles.num_work + static_cast<int32_t>(gridDim.x) - 1)
          *counter = 0;
        return;
      }
      draws_now = kDrawsEarly && num_tiles <= kFewTiles;
    }
  }

  /// Reads a warp's next item. The barrier is for the compiler: without it, it assumes that lanes
  /// diverge in the wait, and spills.
  __device__ __forceinline__ ScheduledItem read() {
    __syncwarp();
    return read_alone();
  }

  /// Reads a thread's next item; every thread signals its own reads.
  __device__ __forceinline__ ScheduledItem read_alone() {
    mbarrier_arrive(free + 8 * ((count & 1) ^ 1));  // the slot of the previous item
    return read_holding();
  }

  /// Same as read_alone, but the item after it is not fetched before this thread calls let_go.
  __device__ __forceinline__ ScheduledItem read_holding() {
    const int which = count & 1;
    mbarrier_wait(full + 8 * which, (count / 2) & 1);
    ++count;
    const uint32_t slot = slots + which * kSlotBytes;
    ScheduledItem item;
    item.tile.begin = load_shared_int(slot);
    item.tile.end = load_shared_int(slot + 4);
    item.tile.first_run = load_shared_int(slot + 8);
    item.tile.num_runs = load_shared_int(slot + 12);
    item.tile.unseen = static_cast<uint32_t>(load_shared_int(slot + 16));  // or first_turn
    item.tile.first_gap = load_shared_int(slot + 20);
    item.tile.num_tiles = load_shared_int(slot + 24);
    item.head = load_shared_int(slot + 4 * kTileInts);
    item.runs = slot + kRunsOffset;
    return item;
  }
  __device__ __forceinline__ void let_go() const { mbarrier_arrive(free + 8 * (count & 1)); }

 private:
  __device__ __forceinline__ static void wait_for_piece(const Arrivals& arrivals, int32_t piece) {
    const int32_t* flag = arrivals.flags + piece * arrivals.num_sources;
    for (int32_t left = arrivals.num_sources; left > 0; --left)
      wait_for_arrival(flag++, arrivals.expected);
  }

  __device__ __forceinline__ static void write(uint32_t to, const TileRun& run) {
    store_shared_int(to, run.begin);
    store_shared_int(to + 4, run.end);
    store_shared_int(to + 8, run.range_set);
    store_shared_int(to + 12, run.is_masked | run.closes << 8);
  }
};

/// Iterates over the tiles of kRows rows of an item's runs. kAlign: tiles begin on so many rows; a
/// run that does not is masked, and its first tile holds rows before `first`.
template <int kRows_, int kAlign = 1>
struct RunWalk {
  static constexpr int kRows = kRows_;

  int32_t run;           // the one after the current run
  int32_t last_run;      // the one after the tile's last
  int32_t end_shared;    // the one after the last in shared memory
  uint32_t shared_runs;  // address that run 0 of the list would have there
  int32_t row = 0;       // first row of the tile
  int32_t first = 0;     // of the run, where kAlign is above 1
  int32_t end = 0;       // of the run: rows from here on are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;

  __device__ explicit RunWalk(const ScheduledItem& item)
      : run(item.tile.first_run),
        last_run(item.tile.first_run + item.tile.num_runs),
        end_shared(item.tile.first_run + kSharedRuns),
        shared_runs(item.runs - 16 * static_cast<uint32_t>(item.tile.first_run)) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    return next_in_run() || next_run(runs);
  }
  /// The next tile of the current run.
  __device__ __forceinline__ bool next_in_run() {
    row += kRows;
    return row < end;
  }
  /// Leaves out all further tiles.
  __device__ __forceinline__ void stop() {
    run = last_run;
    end = 0;
  }
  /// Leaves out the last tiles of a run that has just begun, but not its first one.
  __device__ __forceinline__ void leave_out(int32_t num_tiles) {
    if (num_tiles > 0) end = row + ((end - row - 1) / kRows + 1 - num_tiles) * kRows;
  }
  /// OwnedTile::unseen, from the item's slot.
  __device__ __forceinline__ uint32_t unseen() const {
    const uint32_t runs = shared_runs + 16 * static_cast<uint32_t>(end_shared - kSharedRuns);
    return load_shared_int(runs - TileScheduler::kRunsOffset + offsetof(OwnedTile, unseen));
  }
  /// The first tile of the next run.
  __device__ __forceinline__ bool next_run(const TileRun* runs) {
    if (run >= last_run) return false;
    if (run < end_shared) {
      const uint32_t at = shared_runs + 16 * static_cast<uint32_t>(run);
      row = load_shared_int(at);
      end = load_shared_int(at + 4);
      range_set = load_shared_int(at + 8);
      is_masked = load_shared_int(at + 12) & 0xff;
    } else {
      const TileRun next_run = runs[run];
      row = next_run.begin;
      end = next_run.end;
      range_set = next_run.range_set;
      is_masked = next_run.is_masked;
    }
    if constexpr (kAlign > 1) {
      first = row;
      row &= ~(kAlign - 1);
      if (row != first) is_masked = 1;
    }
    ++run;
    return true;
  }
};

/// The same tiles, the last one first.
template <int kRows>
struct ReversedRunWalk : RunWalk<kRows> {
  using Forwards = RunWalk<kRows>;
  using Forwards::run, Forwards::row, Forwards::end;

  int32_t first_run;
  int32_t begin = 0;  // of the run

  __device__ explicit ReversedRunWalk(const ScheduledItem& item)
      : Forwards(item), first_run(item.tile.first_run) {
    run = Forwards::last_run;
  }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    return next_in_run() || next_run(runs);
  }
  __device__ __forceinline__ bool next_in_run() {
    row -= kRows;
    return row >= begin;
  }
  /// Leaves out all further tiles.
  __device__ __forceinline__ void stop() {
    run = first_run;
    begin = row;
  }
  __device__ __forceinline__ bool next_run(const TileRun* runs) {
    if (run <= first_run) return false;
    --run;
    Forwards::next_run(runs);
    --run;
    begin = row;
    row += (end - 1 - begin) / kRows * kRows;
    return true;
  }
};

/// Iterates over the tiles of an item's runs by blocks of kRows rows (TileShape::by_blocks), the
/// last one first.
template <int kRows_>
struct BlockWalk {
  static constexpr int kRows = kRows_;

  int32_t first_run;
  int32_t num_left;      // runs
  uint32_t shared_runs;  // address of the first ones in shared memory
  int32_t run_begin = 0;
  int32_t row = 0;  // first row of the tile
  int32_t end = 0;  // of the tile: rows from here on are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;
  int32_t closes = 0;

  __device__ explicit BlockWalk(const ScheduledItem& item)
      : first_run(item.tile.first_run), num_left(item.tile.num_runs), shared_runs(item.runs) {}

  __device__ __forceinline__ int32_t block() const { return row / kRows; }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    end = row;
    if (end <= run_begin) {
      if (num_left == 0) return false;
      --num_left;
      if (num_left < kSharedRuns) {
        const uint32_t at = shared_runs + 16 * static_cast<uint32_t>(num_left);
        run_begin = load_shared_int(at);
        end = load_shared_int(at + 4);
        range_set = load_shared_int(at + 8);
        const int32_t flags = load_shared_int(at + 12);
        is_masked = flags & 0xff;
        closes = flags >> 8 & 0xff;
      } else {
        const TileRun present = runs[first_run + num_left];
        run_begin = present.begin;
        end = present.end;
        range_set = present.range_set;
        is_masked = present.is_masked;
        closes = present.closes;
      }
    }
    const int32_t block_row = (end - 1) / kRows * kRows;
    row = block_row > run_begin ? block_row : run_begin;
    return true;
  }
};

/// The same tiles, for threads that need no rows of them: takes fewer registers.
template <int kRows_>
struct BlockCount {
  static constexpr int kRows = kRows_;

  int32_t first_run;
  int32_t num_left;       // runs
  uint32_t shared_runs;   // as in BlockWalk
  int32_t num_tiles = 0;  // left in the run, including the current one
  int32_t is_masked = 0;
  int32_t closes = 0;

  __device__ explicit BlockCount(const ScheduledItem& item)
      : first_run(item.tile.first_run), num_left(item.tile.num_runs), shared_runs(item.runs) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    if (--num_tiles > 0) return true;
    if (num_left == 0) return false;
    --num_left;
    int32_t begin, end;
    if (num_left < kSharedRuns) {
      const uint32_t at = shared_runs + 16 * static_cast<uint32_t>(num_left);
      begin = load_shared_int(at);
      end = load_shared_int(at + 4);
      const int32_t flags = load_shared_int(at + 12);
      is_masked = flags & 0xff;
      closes = flags >> 8 & 0xff;
    } else {
      const TileRun present = runs[first_run + num_left];
      begin = present.begin;
      end = present.end;
      is_masked = present.is_masked;
      closes = present.closes;
    }
    num_tiles = (end - 1) / kRows - begin / kRows + 1;
    return true;
  }
};

/// Loads rows [row, row + kRows) of `head`, clipped at `end`, as kHeadDim / 64 panels. kHasHeads:
/// kRows rows of all heads in the box of the map, from `head` on.
template <int kHeadDim, int kRows, bool kHasHeads = false>
__device__ __forceinline__ void load_panels(uint32_t to, const TensorMap* map, uint32_t barrier,
                                            int row, int end, int head) {
#pragma unroll
  for (int panel = 0; panel < kHeadDim / kBoxLanes; ++panel) {
    const int from_end = kMapRows - end + row;  // see kMapRows
    load_box(to + panel * kRows * kPanelRowBytes, map, barrier, panel * kBoxLanes,
             kHasHeads ? head : from_end, kHasHeads ? from_end : head, end, kMapRows);
  }
}

/// Writes rows in the layout of load_panels, `elements` of each; the caller commits.
template <int kRows, bool kHasHeads = false>
__device__ __forceinline__ void send_panels(uint32_t from, const TensorMap* map, int row, int end,
                                            int head, int elements) {
  for (int panel = 0; panel * kBoxLanes < elements; ++panel) {
    const int from_end = kMapRows - end + row;
    store_box(map, from + panel * kRows * kPanelRowBytes, panel * kBoxLanes,
              kHasHeads ? head : from_end, kHasHeads ? from_end : head, end, kMapRows);
  }
}

/// Offset of the first 16 elements of k-step `step` in an operand that is summed along head_dim.
template <int kRows>
__device__ __forceinline__ constexpr uint32_t head_dim_step(int step) {
  return (step / 4) * kRows * kPanelRowBytes + (step % 4) * 32;
}
/// Offset of the first of 16 rows of k-step `step` in an operand that is summed along rows.
__device__ __forceinline__ constexpr uint32_t row_step(int step) {
  return step * 16 * kPanelRowBytes;
}

/// The keys that a query row sees in a run, in the form that the test of a masked tile needs.
struct KeySpan {
  int32_t lo = 0;
  uint32_t size = 0;

  __device__ __forceinline__ bool has(int32_t key) const {
    return static_cast<uint32_t>(key - lo) < size;
  }
};

/// The keys that a query row with this range sees in a run that ends at `run_end`. The last tile
/// extends past the run, where the row may see keys that belong to another run.
__device__ __forceinline__ KeySpan clip_to_run(KeyRange range, int32_t run_end) {
  const int32_t hi = range.hi < run_end ? range.hi : run_end;
  return {range.lo, hi > range.lo ? static_cast<uint32_t>(hi - range.lo) : 0u};
}

/// The keys that a thread's two query rows see in a run. Fetched when the run begins, and not used
/// before the first logits are ready.
struct RowRanges {
  KeyRange range[2];

  /// row_step: distance from the first row to the second.
  __device__ __forceinline__ void fetch(const DeviceTiles& tiles, int32_t q_rows, int32_t range_set,
                                        int32_t first_row, int32_t row_step = 8) {
    const KeyRange* rows = tiles.ranges + static_cast<int64_t>(range_set) * q_rows + first_row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      range[r] = {};
      if (first_row + row_step * r < q_rows) range[r] = rows[row_step * r];
    }
  }

  __device__ __forceinline__ KeySpan span(int r, int32_t run_end) const {
    return clip_to_run(range[r], run_end);
  }
};

/// Writes one of a thread's two rows of a 64 x kHeadDim sum, times `factor`. `to`: element 0 of the
/// row; kSecond: the row 8 further down. elements: how many the row has, in groups of 8; 0: nothing
/// is written. There is no branch, so products may be in flight.
template <int kHeadDim, bool kSecond>
__device__ __forceinline__ void store_row(float* to, int32_t elements,
                                          const float (&sums)[kHeadDim / 2], float factor) {
  to += 2 * (threadIdx.x % 4);
#pragma unroll
  for (int group = 0; group < kHeadDim / 8; ++group) {
    const int at = 4 * group + (kSecond ? 2 : 0);
    store_pair_if(8 * group < elements, to + 8 * group, sums[at] * factor, sums[at + 1] * factor);
  }
}

/// The two numbers that `pack` has put in one word.
template <class T>
__device__ __forceinline__ FloatPair unpack(uint32_t words) {
  return {to_float(T{static_cast<uint16_t>(words)}),
          to_float(T{static_cast<uint16_t>(words >> 16)})};
}

/// Two numbers rounded to T.
template <class T>
__device__ __forceinline__ FloatPair round_pair(float x, float y) {
  return unpack<T>(pack<T>(x, y));
}

/// Same as store_row, rounded to T.
template <class T, int kHeadDim, bool kSecond>
__device__ __forceinline__ void store_rounded_row(float* to, int32_t elements,
                                                  const float (&sums)[kHeadDim / 2]) {
  to += 2 * (threadIdx.x % 4);
#pragma unroll
  for (int group = 0; group < kHeadDim / 8; ++group) {
    const int at = 4 * group + (kSecond ? 2 : 0);
    const FloatPair pair = round_pair<T>(sums[at], sums[at + 1]);
    store_pair_if(8 * group < elements, to + 8 * group, pair.x, pair.y);
  }
}

/// Every thread of a quad has words 0 to 3; thread t gets word t of all four.
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

/// Same as store_row, rounded to T. The lanes of a quad exchange their pairs, so that each writes 8
/// elements of a row at once. All lanes of the warp call it together.
template <class T, int kHeadDim, bool kSecond>
__device__ __forceinline__ void store_narrow_row(T* to, int32_t elements,
                                                 const float (&sums)[kHeadDim / 2]) {
#pragma unroll
  for (int first = 0; first < kHeadDim / 8; first += 4) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (first + i) + (kSecond ? 2 : 0);
      words[i] = pack<T>(sums[at], sums[at + 1]);
    }
    transpose_in_quad(words);
    const int32_t element = 8 * (first + static_cast<int32_t>(threadIdx.x % 4));
    store_four_if(element < elements, to + element, words);
  }
}

}  // namespace cpscope::kernels::device
