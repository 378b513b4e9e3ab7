#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/softcap.h"
#include "kernels/device/hopper.h"
#include "kernels/tiles/tile_list.h"

#include <cstddef>
#include <cstdint>

/// What the Hopper kernels share: one warpgroup fetches (the producer), the others compute (the
/// consumers); both draw the same work items and walk the same tiles.
namespace cpscope::kernels::device {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWarpgroupRows = 64;  // rows that a warpgroup's products have
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kMaxSharedBytes = 232'448;  // that a CTA of sm_90 may have
inline constexpr int kRegistersPerSm = 65'536;

/// Registers that a thread has at the launch, with so many threads on a multiprocessor; claimed and
/// yielded ones together may not be more, or the claim waits for ever.
constexpr int launch_registers(int threads) { return kRegistersPerSm / threads / 8 * 8; }

/// That each of so many CTAs of a multiprocessor may have, which keeps 1024 bytes for each.
constexpr int max_shared_bytes(int ctas) { return (kMaxSharedBytes + 1024) / ctas - 1024; }

__device__ __forceinline__ uint32_t align_to_swizzle(uint32_t address) {
  return (address + 1023u) & ~1023u;
}

/// Goes around kStages stages, whose barriers end a phase each time around.
template <int kStages>
class NextStage {
 public:
  __device__ __forceinline__ int stage() const { return packed_ >> 1; }
  /// Of the phase that ends when the stage is full; the one that freed it had the other one.
  __device__ __forceinline__ uint32_t parity() const { return packed_ & 1; }
  __device__ __forceinline__ void advance() {
    packed_ += 2;
    if (packed_ >= 2 * kStages) packed_ = (packed_ & 1) ^ 1;
  }
  /// Tells the compiler that all lanes of the warp are at the same stage.
  __device__ __forceinline__ void share_in_warp() { packed_ = shared_by_warp(packed_); }

 private:
  int packed_ = 0;  // twice the stage, and the parity: one number, so that one shuffle shares it
};

/// Runs of a work item that its workers find in shared memory; further ones are read from the list.
inline constexpr int kDealtRuns = 8;

/// A work item as its workers see it.
struct DealtItem {
  OwnedTile tile;
  int32_t head = -1;  // of the owned side; -1: there are no more items
  uint32_t runs = 0;  // in shared memory: the first kDealtRuns of the tile's runs

  __device__ __forceinline__ bool is_last() const { return head < 0; }
};

/// All CTAs have begun when the last one has: they do so in the order of their numbers. Thread 0.
__device__ __forceinline__ void tell_begun(const Begun& begun) {
  if (begun.flag != nullptr && blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
    publish_to_system(begun.flag, begun.value);
}

/// Hands work items to all warps of a CTA through two slots of shared memory. One warp, the dealer,
/// draws the next item while the one before is worked on, so that nobody waits for the counter or
/// for the tables. Items are drawn in order: an item is never drawn before an earlier one. A reader
/// holds the slot of its item until it asks for the next one.
struct WorkDeal {
  // A slot: the tile as it stands in the list, the head, the first runs.
  static constexpr int kTileInts = sizeof(OwnedTile) / sizeof(int32_t);
  static constexpr int kRunsOffset = 4 * (kTileInts + 1);
  static_assert(offsetof(OwnedTile, first_run) == 8 && offsetof(OwnedTile, num_runs) == 12 &&
                offsetof(OwnedTile, first_turn) == 16 && offsetof(OwnedTile, first_gap) == 20 &&
                offsetof(OwnedTile, num_tiles) == 24);
  static constexpr int kSlotBytes = kRunsOffset + 16 * kDealtRuns;
  static constexpr int kBytes = 32 + 2 * kSlotBytes;

  uint32_t full, free, slots;
  int32_t count = 0;  // items dealt or read

  /// address: on 16 bytes.
  __device__ explicit WorkDeal(uint32_t address)
      : full(address), free(address + 16), slots(address + 32) {}

  /// Warps of which every lane reads, and threads that read alone.
  __device__ void init(int warps, int threads) const {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 32);
      mbarrier_init(free + 8 * i, 32 * warps + threads);
    }
  }

  /// The dealer, a whole warp: all items, until there are none. kWaits: none before its piece of
  /// the inputs is there. kDrawsEarly: after an item of few tiles the next one is drawn, and its
  /// tables are fetched, before its slot is free, as there is not time enough afterwards. Where
  /// items wait for each other's turns, one that is held back would keep others waiting.
  template <bool kWaits = false, bool kDrawsEarly = false>
  __device__ __forceinline__ void deal(const DeviceTiles& tiles, int32_t* counter) {
    constexpr int32_t kFewTiles = 8;
    const int lane = threadIdx.x % 32;
    int32_t piece = 0;     // the next one to arrive
    int32_t num_here = 0;  // heads that have
    bool draws_now = false;
    for (;;) {
      const int which = count & 1;
      const auto wait_until_free = [&] {
        // Readers free slot 1 once before it is filled, when they come for their first item.
        mbarrier_wait(free + 8 * which, ((count / 2) & 1) ^ which ^ 1);
      };
      if (!draws_now) wait_until_free();
      const int32_t drawn = from_lane(lane == 0 ? atomic_add(counter, 1) : 0, 0);
      const bool is_there = drawn < tiles.num_work;
      const WorkItem work = is_there ? tiles.work[drawn] : WorkItem{.tile = 0, .head = -1};
      // A lane has one number of the slot and one run.
      int32_t number = work.head;
      if (is_there && lane < kTileInts)
        number = reinterpret_cast<const int32_t*>(tiles.tiles + work.tile)[lane];
      const int32_t first_run = from_lane(number, 2), num_runs = from_lane(number, 3);
      const int32_t num_tiles = from_lane(number, 6);
      const bool has_run = is_there && lane < kDealtRuns && lane < num_runs;
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
      mbarrier_arrive(full + 8 * which);  // every lane tells of what it has written
      ++count;
      if (!is_there) {
        // Every CTA draws once in vain; the last one leaves the counter to the next launch.
        if (lane == 0 && drawn == tiles.num_work + static_cast<int32_t>(gridDim.x) - 1)
          *counter = 0;
        return;
      }
      draws_now = kDrawsEarly && num_tiles <= kFewTiles;
    }
  }

  /// A warp's next item. The barrier is for the compiler, which spills where it must expect lanes
  /// that went apart in the wait.
  __device__ __forceinline__ DealtItem read() {
    __syncwarp();
    return read_alone();
  }

  /// A thread's next item; every thread tells of its own reads.
  __device__ __forceinline__ DealtItem read_alone() {
    mbarrier_arrive(free + 8 * ((count & 1) ^ 1));  // the slot of the item before
    return read_holding();
  }

  /// The same, but the item after it is not drawn before this thread lets go.
  __device__ __forceinline__ DealtItem read_holding() {
    const int which = count & 1;
    mbarrier_wait(full + 8 * which, (count / 2) & 1);
    ++count;
    const uint32_t slot = slots + which * kSlotBytes;
    DealtItem item;
    item.tile = {load_shared_int(slot), load_shared_int(slot + 4), load_shared_int(slot + 8),
                 load_shared_int(slot + 12)};
    item.tile.first_turn = load_shared_int(slot + 16);
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

/// Walks the tiles of kRows rows of an item's runs.
template <int kRows_>
struct RunWalk {
  static constexpr int kRows = kRows_;

  int32_t run;         // the one after the present
  int32_t last_run;    // the one after the tile's last
  int32_t last_dealt;  // the one after the last in shared memory
  uint32_t dealt;      // address where run 0 of the list would be there
  int32_t row = 0;     // first row of the tile
  int32_t end = 0;     // of the run: rows there and beyond are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;

  __device__ explicit RunWalk(const DealtItem& item)
      : run(item.tile.first_run),
        last_run(item.tile.first_run + item.tile.num_runs),
        last_dealt(item.tile.first_run + kDealtRuns),
        dealt(item.runs - 16 * static_cast<uint32_t>(item.tile.first_run)) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    return next_in_run() || next_run(runs);
  }
  /// The next tile of the present run.
  __device__ __forceinline__ bool next_in_run() {
    row += kRows;
    return row < end;
  }
  /// The first tile of the next run.
  __device__ __forceinline__ bool next_run(const TileRun* runs) {
    if (run >= last_run) return false;
    if (run < last_dealt) {
      const uint32_t at = dealt + 16 * static_cast<uint32_t>(run);
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
    ++run;
    return true;
  }
};

/// Walks the tiles of an item's runs by blocks of kRows rows (TileShape::by_blocks): the last one
/// first.
template <int kRows_>
struct BlockWalk {
  static constexpr int kRows = kRows_;

  int32_t first_run;
  int32_t num_left;  // runs
  uint32_t dealt;    // address of the first ones in shared memory
  int32_t run_begin = 0;
  int32_t row = 0;  // first row of the tile
  int32_t end = 0;  // of the tile: rows there and beyond are not read
  int32_t range_set = 0;
  int32_t is_masked = 0;
  int32_t closes = 0;

  __device__ explicit BlockWalk(const DealtItem& item)
      : first_run(item.tile.first_run), num_left(item.tile.num_runs), dealt(item.runs) {}

  __device__ __forceinline__ int32_t block() const { return row / kRows; }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    end = row;
    if (end <= run_begin) {
      if (num_left == 0) return false;
      --num_left;
      if (num_left < kDealtRuns) {
        const uint32_t at = dealt + 16 * static_cast<uint32_t>(num_left);
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

/// The same tiles, for who need not know their rows: fewer registers.
template <int kRows_>
struct BlockCount {
  static constexpr int kRows = kRows_;

  int32_t first_run;
  int32_t num_left;       // runs
  uint32_t dealt;         // as in BlockWalk
  int32_t num_tiles = 0;  // of the run, the present one too
  int32_t is_masked = 0;
  int32_t closes = 0;

  __device__ explicit BlockCount(const DealtItem& item)
      : first_run(item.tile.first_run), num_left(item.tile.num_runs), dealt(item.runs) {}

  __device__ __forceinline__ bool next(const TileRun* runs) {
    if (--num_tiles > 0) return true;
    if (num_left == 0) return false;
    --num_left;
    int32_t begin, end;
    if (num_left < kDealtRuns) {
      const uint32_t at = dealt + 16 * static_cast<uint32_t>(num_left);
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

/// Loads rows [row, row + kRows) of `head`, clipped at `end`, as kLanes / 64 panels. kHasHeads:
/// kRows rows of all heads side by side, as the map has them; from `head` on.
template <int kLanes, int kRows, bool kHasHeads = false>
__device__ __forceinline__ void load_panels(uint32_t to, const TensorMap* map, uint32_t barrier,
                                            int row, int end, int head) {
#pragma unroll
  for (int panel = 0; panel < kLanes / kBoxLanes; ++panel) {
    const int from_end = kMapRows - end + row;  // see kMapRows
    load_box(to + panel * kRows * kPanelRowBytes, map, barrier, panel * kBoxLanes,
             kHasHeads ? head : from_end, kHasHeads ? from_end : head, end, kMapRows);
  }
}

/// Writes rows as load_panels loads them, those of `num_lanes` lanes; the caller commits.
template <int kRows, bool kHasHeads = false>
__device__ __forceinline__ void send_panels(uint32_t from, const TensorMap* map, int row, int end,
                                            int head, int num_lanes) {
  for (int panel = 0; panel * kBoxLanes < num_lanes; ++panel) {
    const int from_end = kMapRows - end + row;
    store_box(map, from + panel * kRows * kPanelRowBytes, panel * kBoxLanes,
              kHasHeads ? head : from_end, kHasHeads ? from_end : head, end, kMapRows);
  }
}

/// Where the first 16 lanes of k-step `step` lie in an operand whose lanes are summed over.
template <int kRows>
__device__ __forceinline__ constexpr uint32_t lane_step(int step) {
  return (step / 4) * kRows * kPanelRowBytes + (step % 4) * 32;
}
/// The first of 16 rows of k-step `step`, where rows are.
__device__ __forceinline__ constexpr uint32_t row_step(int step) {
  return step * 16 * kPanelRowBytes;
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

/// What a thread's two query rows see in a run. Fetched when the run begins, and not looked at
/// before the first logits are there.
struct RowRanges {
  KeyRange range[2];

  /// row_step: from the first one to the second.
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

/// The nearest numbers of T.
template <class T>
__device__ __forceinline__ FloatPair round_pair(float x, float y) {
  const uint32_t words = pack<T>(x, y);
  return {to_float(T{static_cast<uint16_t>(words)}),
          to_float(T{static_cast<uint16_t>(words >> 16)})};
}

/// As store_row, rounded to T.
template <class T, int kLanes, bool kSecond>
__device__ __forceinline__ void store_rounded_row(float* to, int32_t num_lanes,
                                                  const float (&sums)[kLanes / 2]) {
  to += 2 * (threadIdx.x % 4);
#pragma unroll
  for (int group = 0; group < kLanes / 8; ++group) {
    const int at = 4 * group + (kSecond ? 2 : 0);
    const FloatPair pair = round_pair<T>(sums[at], sums[at + 1]);
    store_pair_if(8 * group < num_lanes, to + 8 * group, pair.x, pair.y);
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
