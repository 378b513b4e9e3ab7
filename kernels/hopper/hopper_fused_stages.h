#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_row_metadata.h"

#include <cstdint>
#include <optional>
#include <type_traits>

/// The fused backward of sm_90a without its products: shared memory, the order of tiles for every
/// role, and the loads and stores of the producer's threads.
namespace cpscope::kernels::device {

/// Rows of a streamed tile whose logits a consumer holds at a time.
inline constexpr int kPartRows = 64;
inline constexpr int kDqPanelElements = kPanelRowBytes / 4;
/// Named barriers: dS of both consumers is in shared memory.
inline constexpr int kGradsBarrier = 1;
/// Threads that send dq, tile by tile alternately: each takes the tiles of one TileBarrier.
inline constexpr int kSenders = 2;

/// Stages of turned streamed rows.
inline constexpr int kTurnedStages = 2;
/// Bytes of an operand of 64 rows that each are one half for each part of an offset.
inline constexpr int kHalvesBytes = kWarpgroupRows * 2 * kOffsetLanes;

template <class B>
struct GradientConsumer;
template <class B>
struct CodeConsumer;
template <class B>
struct WideGradientConsumer;

/// The format of dO and dS in a product of codes; none elsewhere.
template <class Operand>
inline constexpr std::optional<Fp8Type> kGradientCodes = std::nullopt;
template <Fp8Type kGradients>
inline constexpr std::optional<Fp8Type> kGradientCodes<Fp8Codes<kGradients>> = kGradients;

/// One configuration. kWalked: 64, where consumers make dq of tiles alternately, each a tile later,
/// or 128, where each makes half of dq's rows. kByTile: as TileList::walks_by_tile; checked at run
/// time for each tile, it would cost all other cases 4 %. Operand: Bf16, Fp16, Fp8AsBf16, or
/// Fp8Codes with head_dim 128. Products of codes take both operands along the summed dimension, so
/// K, Q and dO are needed turned too: consumers turn K, and a warpgroup more Q and dO. kQk above
/// 128: memory suffices for one stage of dO and two of dS, and for no offsets.
template <class Operand, int kQk_, int kWalked_, bool kByTile_, LogitForm kForm_ = LogitForm::plain,
          int kV_ = kQk_>
struct FusedBudget {
  static constexpr bool kHasCodes = kGradientCodes<Operand>.has_value();
  static constexpr Fp8Type kGradients = kGradientCodes<Operand>.value_or(Fp8Type::e5m2);
  static constexpr bool kIsFp8 = kHasCodes || std::is_same_v<Operand, Fp8AsBf16>;
  static constexpr bool kIsMx = false;
  static constexpr bool kIsWide = kQk_ > 128;
  using Consumer = std::conditional_t<kHasCodes, CodeConsumer<FusedBudget>,
                                      std::conditional_t<kIsWide, WideGradientConsumer<FusedBudget>,
                                                         GradientConsumer<FusedBudget>>>;
  using T = std::conditional_t<kIsFp8, Bf16, Operand>;  // also of results
  static constexpr bool kByTile = kByTile_;
  static constexpr int kQk = kQk_, kV = kV_, kWalked = kWalked_;
  // Numbers of 16 bits of a row in memory.
  static constexpr int kQkLanes = kHasCodes ? kCodeLanes / 2 : kQk;
  static constexpr int kVLanes = kHasCodes ? kCodeLanes / 2 : kV;
  static constexpr LogitForm kForm = kForm_;
  static constexpr bool kHasOffsets = takes_hopper_offsets(kForm, kQk);
  static constexpr int kOwned = 128, kStages = 2, kConsumers = 2;
  static constexpr int kSecondStages = kIsWide ? 1 : kStages;  // of dO
  static constexpr int kOthers = kHasCodes ? 2 : 1;            // warpgroups that are not consumers
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + kOthers);
  static constexpr int kConsumerRegisters = kHasCodes ? 232 : kQk > 64 ? 240 : 224;
  static constexpr int kProducerRegisters = kQk > 64 ? 24 : 56;
  using Facts = FactLayout<kWalked, kForm == LogitForm::alibi>;
  using Walk = BlockWalk<kWalked>;
  using Count = BlockCount<kWalked>;

  static constexpr int kParts = kWalked / kPartRows;
  static constexpr bool kAlternates = kParts == 1;
  static constexpr bool kSharesDq = kIsWide || !kAlternates;  // both consumers make dq of a tile
  static constexpr int kDqWarps = 4 * (kSharesDq ? kConsumers : 1);
  static constexpr int kGradStages = kSharesDq ? 2 : 3;
  /// Elements of dq that a consumer makes at a time.
  static constexpr int kDqElements = kIsWide ? 64 : kQk;
  static_assert(kAlternates || kWalked == 2 * kWarpgroupRows);
  static_assert(!kIsWide || (kQk == 192 && kAlternates && kForm == LogitForm::plain));
  static_assert(!kHasCodes || (kQk == kCodeLanes && kAlternates && kHasOffsets));

  static constexpr int kOwnedFirstBytes = kOwned * kQkLanes * 2;
  static constexpr int kOwnedBytes = kOwnedFirstBytes + kOwned * kVLanes * 2;
  static constexpr int kFirstBytes = kWalked * kQkLanes * 2;
  static constexpr int kSecondBytes = kWalked * kVLanes * 2;
  static constexpr int kWalkedBytes = kStages * kFirstBytes + kSecondStages * kSecondBytes;
  /// From one stage of Q to the next. Of as many stages of dO, each follows one of Q.
  static constexpr int kStageBytes = kFirstBytes + (kSecondStages == kStages ? kSecondBytes : 0);
  static constexpr int kOffsetRowBytes = 2 * kOffsetLanes;
  static constexpr int kOffsetBytes = kHasOffsets ? kWalked * kOffsetRowBytes : 0;  // lse; delta
  static constexpr int kGradBytes = kWalked * kOwned * (kHasCodes ? 1 : 2);         // dS
  static constexpr int kDqPanelBytes = kWalked * kPanelRowBytes;
  static constexpr int kDqBytes = kWalked * kQk * 4;
  static constexpr int kTurnedKeyBytes = kHasCodes ? kQk * kOwned : 0;  // [element][key]
  // [element][row of Q; row of dO]
  static constexpr int kTurnedBytes = kHasCodes ? kQk * 2 * kWalked : 0;
  static constexpr int kTurnBarrierBytes = kHasCodes ? 48 + kHalvesBytes : 0;
  static constexpr int kBarrierBytes = 160 + (kIsWide ? 32 : 0);
  static constexpr int kSmallBytes = kStages * (2 * kOffsetBytes + Facts::kBytes) + kBarrierBytes +
                                     TileScheduler::kBytes + kTurnBarrierBytes;
  static constexpr int kLargeBytes = kOwnedBytes + kTurnedKeyBytes + kTurnedStages * kTurnedBytes +
                                     kWalkedBytes + kGradStages * kGradBytes + kDqBytes;
  /// Where memory is short this relies on what Hopper does: the memory begins at 1024 bytes.
  static constexpr int kSharedBytes =
      kLargeBytes + (kIsWide ? (kSmallBytes + 1023) / 1024 * 1024 : kSmallBytes + 1024);
  /// Bytes of lse of a streamed tile's rows; delta has as many.
  __device__ static uint32_t offset_bytes(const Walk& walk) {
    const int32_t rows = walk.end - walk.row;
    return kHasOffsets ? (rows < kWalked ? rows : kWalked) * kOffsetRowBytes : 0;
  }
  static_assert(kOthers * kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + kOthers) * launch_registers(kThreads));
  static_assert(kSmallBytes % 16 == 0 && kSharedBytes <= kMaxSharedBytes);
};

struct FusedParams {
  BackwardParams base;
  TensorMap dq;
  const Bf16* offsets;   // [local query head], see row_offsets.h
  int32_t* turns_taken;  // [local query head][counter]
  int32_t is_narrow;     // dk and dv hold the dtype, else fp32
  WireRows wire;
  DeviceRows narrow_dq;  // dq in the dtype, unless data is null
  int32_t merges_dq;     // dq holds sums of other keys: the first turn adds too

  /// True if the current tile writes the rows of dq. Its sender and its consumers check it.
  template <class Walk>
  __device__ __forceinline__ bool closes(const Walk& walk) const {
    return walk.closes != 0 && narrow_dq.data != nullptr;
  }
};

/// Data for the consumers about the rows of a tile that closes, in shared memory: the first row,
/// the one after the last, the local query head, and whether other tiles have added sums.
struct ClosedRows {
  static constexpr int kEnd = 4, kHead = 8, kHasSums = 12;
};

/// One of two barriers that streamed tiles take alternately, and the phase that belongs to tile
/// `number`. The waiting thread may be one tile behind the arriving ones.
struct TileBarrier {
  uint32_t address;
  int phase;

  __device__ __forceinline__ TileBarrier(uint32_t pair, int number)
      : address(pair + 8 * (number & 1)), phase(number >> 1 & 1) {}
  __device__ __forceinline__ void wait() const { mbarrier_wait(address, phase); }
  __device__ __forceinline__ void arrive() const { mbarrier_arrive(address); }
};

/// Addresses in shared memory.
template <class B>
struct FusedShared {
  uint32_t owned, walked, grads, dq, turned_keys, turned, offsets, facts;
  uint32_t owned_full, owned_free, first_full, second_full, walked_free;
  uint32_t grads_full, dq_full, dq_free, sums_full;  // TileBarriers; of dS for each consumer
  // Where the budget is wide: of dO; TileBarriers of dS.
  uint32_t second_free, grads_free;
  // Where the budget has codes: TileBarriers; for each stage, 1 instead of a tile after the last
  // one; halves, the other operand of offsets.
  uint32_t turned_full, turned_free, ends, halves;
  uint32_t closed, scheduler;

  __device__ FusedShared() {
    owned = align_to_swizzle(shared_address(dynamic_shared()) + B::kSmallBytes);
    offsets = owned - B::kSmallBytes;
    walked = owned + B::kOwnedBytes;
    grads = walked + B::kWalkedBytes;
    dq = grads + B::kGradStages * B::kGradBytes;
    turned_keys = dq + B::kDqBytes;
    turned = turned_keys + B::kTurnedKeyBytes;
    facts = offsets + B::kStages * 2 * B::kOffsetBytes;
    owned_full = facts + B::kStages * B::Facts::kBytes;
    owned_free = owned_full + 8;
    first_full = owned_free + 8;
    second_full = first_full + 8 * B::kStages;
    walked_free = second_full + 8 * B::kStages;
    grads_full = walked_free + 8 * B::kStages;
    dq_full = grads_full + 16 * B::kConsumers;
    dq_free = dq_full + 8 * kSenders;
    sums_full = dq_free + 8 * kSenders;
    closed = sums_full + 8 * kSenders;
    second_free = closed + 16;
    grads_free = second_free + 16;
    scheduler = closed + 16 + B::kBarrierBytes - 160;
    turned_full = scheduler + TileScheduler::kBytes;
    turned_free = turned_full + 16;
    ends = turned_free + 16;
    halves = ends + 16;
  }

  /// Addresses of Q and dO of tile `number`.
  __device__ __forceinline__ uint32_t q_of(int number) const {
    return walked + number % B::kStages * B::kStageBytes;
  }
  __device__ __forceinline__ uint32_t d_out_of(int number) const {
    return B::kSecondStages == B::kStages ? q_of(number) + B::kFirstBytes
                                          : walked + B::kStages * B::kFirstBytes;
  }

  /// Address of dS of tile `number`.
  __device__ __forceinline__ uint32_t grads_of(int number) const {
    return grads + number % B::kGradStages * B::kGradBytes;
  }

  /// Address of Q and dO of tile `number`, turned.
  __device__ __forceinline__ uint32_t turned_of(int number) const {
    return turned + number % kTurnedStages * B::kTurnedBytes;
  }

  __device__ void init() const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      mbarrier_init(owned_full, 1);
      mbarrier_init(owned_free, kConsumerWarps);
      for (int i = 0; i < B::kStages; ++i) {
        mbarrier_init(first_full + 8 * i, 1 + 32);  // the loading thread, and every lane of its
                                                    // warp
        mbarrier_init(second_full + 8 * i, 1);
        mbarrier_init(walked_free + 8 * i,
                      32 * kConsumerWarps + (B::kHasCodes ? kWarpgroupThreads : 0));
      }
      for (int i = 0; i < 2 * B::kConsumers; ++i)
        mbarrier_init(grads_full + 8 * i, kWarpgroupThreads);
      for (int i = 0; i < kSenders; ++i) {
        mbarrier_init(dq_full + 8 * i, 32 * B::kDqWarps);
        mbarrier_init(dq_free + 8 * i, 1);
        mbarrier_init(sums_full + 8 * i, 1);
      }
      if constexpr (B::kIsWide) {
        static_assert(B::kSecondStages == 1 && B::kGradStages == 2);
        mbarrier_init(second_free, kConsumerWarps);
        for (int i = 0; i < B::kGradStages; ++i) mbarrier_init(grads_free + 8 * i, kConsumerWarps);
      }
      if constexpr (B::kHasCodes) {
        for (int i = 0; i < kTurnedStages; ++i) {
          mbarrier_init(turned_full + 8 * i, kWarpgroupThreads);
          mbarrier_init(turned_free + 8 * i, 32 * kConsumerWarps);
        }
        for (int i = 0; i < B::kStages; ++i) store_shared_int(ends + 4 * i, 0);
      }
      TileScheduler(scheduler).init(kConsumerWarps + 1, kSenders);
      mbarrier_init_fence();
    }
    if constexpr (B::kHasCodes) {
      const float both = from_bits(0x3F003F00), first = from_bits(0x3F00);  // of bf16
      if (threadIdx.x < kWarpgroupRows)
        store_shared_four(halves + 16 * threadIdx.x, {both, first, 0.0f, 0.0f});
      publish_shared_writes();
    }
    __syncthreads();
  }
};

/// The streamed tiles of an item, for one query head of its KV head after another.
template <class Walk>
struct HeadByHead {
  const ScheduledItem& item;
  Walk walk;
  int32_t present, last_head;

  __device__ __forceinline__ HeadByHead(const BackwardParams& p, const ScheduledItem& scheduled)
      : item(scheduled), walk(scheduled) {
    const HeadRange heads(p, scheduled.head);
    present = heads.first;
    last_head = heads.last;
  }

  __device__ __forceinline__ int32_t head() const { return present; }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    if (present >= last_head || item.tile.num_runs == 0) return false;
    if (walk.next(runs)) return true;
    if (++present >= last_head) return false;
    walk = Walk(item);
    return walk.next(runs);
  }
};

/// Takes each streamed tile for all heads before the next tile.
template <class Walk>
struct TileByTile {
  Walk walk;
  int32_t num_heads, last_head;
  int32_t left = 1;  // heads, for the current tile

  __device__ __forceinline__ TileByTile(const BackwardParams& p, const ScheduledItem& scheduled)
      : walk(scheduled) {
    const HeadRange heads(p, scheduled.head);
    num_heads = heads.last - heads.first;
    last_head = heads.last;
    if (num_heads <= 0) walk.num_left = 0;  // no query head reads the KV head
  }

  __device__ __forceinline__ int32_t head() const { return last_head - left; }
  __device__ __forceinline__ bool is_first_head() const { return left == num_heads; }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    if (--left > 0) return true;
    left = num_heads;
    return walk.next(runs);
  }
};

/// The order in which every role takes an item's tiles (TileList::walks_by_tile).
template <class B, class Walk = typename B::Walk>
using HeadWalk = std::conditional_t<B::kByTile, TileByTile<Walk>, HeadByHead<Walk>>;

/// Loads -lse (0) or -delta (1) of a streamed tile's rows. Places after the last row keep their old
/// content, which is never visible: such a tile has a mask.
template <class B>
__device__ __forceinline__ void load_offsets(const FusedParams& fused, uint32_t to,
                                             uint32_t barrier, int which,
                                             const typename B::Walk& walk, int32_t head) {
  const int64_t row = (int64_t{2} * head + which) * fused.base.q_rows + walk.row;
  load_bytes(to + which * B::kOffsetBytes, fused.offsets + row * kOffsetLanes,
             B::offset_bytes(walk), barrier);
}

/// A warp of the producer: its first lane loads the tiles, all lanes the metadata of their rows.
/// The next item is fetched only when the last tile is in flight: an item that was fetched and is
/// not worked on would delay every tile with a later turn. Returns the number of
/// tiles.
template <class B>
__device__ __forceinline__ int fetch_tiles(const FusedParams& fused, const FusedShared<B>& at) {
  const BackwardParams& p = fused.base;
  const bool is_first = threadIdx.x % 32 == 0;
  if (is_first) {
    for (const TensorMap* map : {&p.k, &p.v, &p.q, &p.d_out}) prefetch_map(map);
  }
  TileScheduler scheduler(at.scheduler);
  int num_walked = 0, num_owned = 0;  // loaded
  for (;;) {
    __syncwarp();
    const ScheduledItem item = scheduler.read_holding();
    if (item.is_last()) break;
    const OwnedTile& tile = item.tile;
    HeadWalk<B> tiles(p, item);
    if (!tiles.next(p.tiles.runs)) {
      scheduler.let_go();
      continue;
    }
    if (is_first) {
      mbarrier_wait(at.owned_free, (num_owned & 1) ^ 1);
      mbarrier_arrive_expecting(at.owned_full, B::kOwnedBytes);
      const int32_t kv_head = item.head / p.group_parts;
      load_panels<B::kQkLanes, B::kOwned>(at.owned, &p.k, at.owned_full, tile.begin, tile.end,
                                          kv_head);
      load_panels<B::kVLanes, B::kOwned>(at.owned + B::kOwnedFirstBytes, &p.v, at.owned_full,
                                         tile.begin, tile.end, kv_head);
    }
    ++num_owned;
    do {
      const int stage = num_walked % B::kStages;
      const uint32_t first_full = at.first_full + 8 * stage,
                     second_full = at.second_full + 8 * (num_walked % B::kSecondStages);
      const uint32_t offsets = at.offsets + stage * 2 * B::kOffsetBytes,
                     offset_bytes = B::offset_bytes(tiles.walk);
      const auto load_d_out = [&] {
        mbarrier_arrive_expecting(second_full, B::kSecondBytes + offset_bytes);
        load_panels<B::kVLanes, B::kWalked>(at.d_out_of(num_walked), &p.d_out, second_full,
                                            tiles.walk.row, tiles.walk.end, tiles.head());
        if constexpr (B::kHasOffsets)
          load_offsets<B>(fused, offsets, second_full, 1, tiles.walk, tiles.head());
      };
      RowFacts<typename B::Walk, B::kForm == LogitForm::alibi> facts;
      if constexpr (!B::kHasOffsets) facts.fetch(p, tiles.walk, tiles.head());
      mbarrier_wait(at.walked_free + 8 * stage, ((num_walked / B::kStages) & 1) ^ 1);
      if (is_first) {
        mbarrier_arrive_expecting(first_full, B::kFirstBytes + offset_bytes);
        load_panels<B::kQkLanes, B::kWalked>(at.q_of(num_walked), &p.q, first_full, tiles.walk.row,
                                             tiles.walk.end, tiles.head());
        if constexpr (B::kHasOffsets)
          load_offsets<B>(fused, offsets, first_full, 0, tiles.walk, tiles.head());
        if constexpr (!B::kIsWide) load_d_out();
      }
      __syncwarp();
      const uint32_t to = at.facts + stage * B::Facts::kBytes;
      if constexpr (!B::kHasOffsets) facts.store_statistics(to);
      facts.store_keys(p, tiles.walk, tile.end, to);
      mbarrier_arrive(first_full);  // every lane signals its own stores
      if constexpr (B::kIsWide) {
        // Its only stage is free late: Q and the metadata do not wait for it.
        if (is_first) {
          mbarrier_wait(at.second_free, (num_walked & 1) ^ 1);
          load_d_out();
        }
      }
      ++num_walked;
    } while (tiles.next(p.tiles.runs));
    scheduler.let_go();
  }
  return num_walked;
}

/// The turns of an item's streamed tiles, tile by tile; they are the same for all heads.
struct TurnWalk {
  int32_t next_run;  // index into the list
  TurnRun run;       // num_tiles: those not yet taken

  __device__ explicit TurnWalk(int32_t first) : next_run(first) {}

  __device__ __forceinline__ void next(const TurnRun* runs) {
    if (run.num_tiles == 0) {
      run = runs[next_run++];
    } else {
      --run.counter;
    }
    --run.num_tiles;
  }
  __device__ __forceinline__ bool opens() const { return run.turn == kOpeningTurn; }
  /// Number of turns that must have been taken before.
  __device__ __forceinline__ int32_t turn() const { return opens() ? 0 : run.turn; }
};

/// Waits until dq of tile `number` has been sent or written from shared memory.
template <class B>
__device__ __forceinline__ void wait_until_dq_left(const FusedShared<B>& at, int number) {
  TileBarrier(at.dq_free, number).wait();
}

/// Loads the sums of all tiles before the one that closes, which has the last turn; its consumers
/// write the rows.
template <class B>
__device__ __forceinline__ void close_dq(const FusedParams& fused, const FusedShared<B>& at,
                                         const typename B::Walk& walk, int32_t head,
                                         const TurnWalk& turns, const int32_t* taken, int number) {
  const int32_t head_dim = fused.base.head_dim_qk;
  const TileBarrier sums_full(at.sums_full, number);
  wait_until_dq_left(at, number - 1);
  store_shared_int(at.closed, walk.row);
  store_shared_int(at.closed + ClosedRows::kEnd, walk.end);
  store_shared_int(at.closed + ClosedRows::kHead, head);
  store_shared_int(at.closed + ClosedRows::kHasSums, turns.opens() ? 0 : 1);
  if (turns.opens()) {
    sums_full.arrive();
  } else {
    wait_for_turn(taken, turns.turn());
    const int num_panels = (head_dim + kDqPanelElements - 1) / kDqPanelElements;
    mbarrier_arrive_expecting(sums_full.address, num_panels * B::kDqPanelBytes);
    for (int panel = 0; panel < num_panels; ++panel) {
      load_box(at.dq + panel * B::kDqPanelBytes, &fused.dq, sums_full.address,
               panel * kDqPanelElements, kMapRows - walk.end + walk.row, head, walk.end, kMapRows);
    }
  }
}

/// Sends dq of tile `number`, of one head, to global memory when it is its turn.
template <class B>
__device__ __forceinline__ void send_tile(const FusedParams& fused, const FusedShared<B>& at,
                                          const typename B::Walk& walk, int32_t head,
                                          const TurnWalk& turns, int number) {
  const BackwardParams& p = fused.base;
  int32_t* const taken = fused.turns_taken + head * p.tiles.num_counters + turns.run.counter;
  const TileBarrier dq_full(at.dq_full, number), dq_free(at.dq_free, number);
  // Has ended long ago. Consumers wait for a tile's sums where it closes, or with the next tile if
  // that one does not: without this nobody might have waited for the phase.
  TileBarrier(at.sums_full, number - kSenders).wait();
  if (fused.closes(walk)) {
    close_dq<B>(fused, at, walk, head, turns, taken, number);
    dq_full.wait();
    dq_free.arrive();
    return;
  }
  const int32_t turn = turns.turn();
  wait_for_turn(taken, turn);
  dq_full.wait();
  for (int panel = 0; panel * kDqPanelElements < p.head_dim_qk; ++panel) {
    const uint32_t from = at.dq + panel * B::kDqPanelBytes;
    const int row = kMapRows - walk.end + walk.row;  // see kMapRows
    const int element = panel * kDqPanelElements;
    if (turns.opens() && fused.merges_dq == 0) {
      store_box(&fused.dq, from, element, row, head, walk.end, kMapRows);
    } else {
      add_box(&fused.dq, from, element, row, head, walk.end, kMapRows);
    }
  }
  commit_boxes();
  wait_for_boxes_read();
  TileBarrier(at.sums_full, number).arrive();  // tiles that close do not get here
  dq_free.arrive();
  wait_for_boxes();
  pass_turn(taken, turn + 1);
}

/// One of kSenders threads of the producer, `sender`: sends dq of every kSenders-th tile to global
/// memory when it is its turn. A turn is passed once the sums are written, which takes about as
/// long as a tile does; with a single thread the next tile's dq would wait for that.
template <class B>
__device__ __forceinline__ void send_dq(const FusedParams& fused, const FusedShared<B>& at,
                                        int sender) {
  const BackwardParams& p = fused.base;
  tell_begun(p.tiles.begun);  // in other places it costs registers at head_dim 128
  TileScheduler scheduler(at.scheduler);
  int num_walked = 0;  // of all senders
  for (;;) {
    const ScheduledItem item = scheduler.read_holding();
    if (item.is_last()) return;
    if (!p.tiles.draws_late) scheduler.let_go();
    const auto send = [&](const typename B::Walk& walk, int32_t head, const TurnWalk& turns) {
      const int number = num_walked++;
      if (number % kSenders == sender) send_tile<B>(fused, at, walk, head, turns, number);
    };
    if constexpr (B::kByTile) {
      TurnWalk turns(item.tile.first_turn);
      for (HeadWalk<B> tiles(p, item); tiles.next(p.tiles.runs);) {
        if (tiles.is_first_head()) turns.next(p.tiles.turns);
        send(tiles.walk, tiles.head(), turns);
      }
    } else {
      const HeadRange heads(p, item.head);
      for (int32_t head = heads.first; head < heads.last; ++head) {
        TurnWalk turns(item.tile.first_turn);
        for (typename B::Walk walk(item); walk.next(p.tiles.runs);) {
          turns.next(p.tiles.turns);
          send(walk, head, turns);
        }
      }
    }
    if (p.tiles.draws_late) scheduler.let_go();
  }
}

}  // namespace cpscope::kernels::device
