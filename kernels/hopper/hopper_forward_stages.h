#pragma once

#include "kernels/hopper/hopper_softmax.h"

#include <cstdint>
#include <type_traits>

/// The Hopper forward without its products: a configuration, its shared memory, and the thread that
/// loads Q, K and V.
namespace cpscope::kernels::device {

/// One configuration of the kernel. kQk, kV: the head_dims that it is built for.
template <class Operand, int kQk_, int kV_, int kConsumers_, int kWalked_, int kKStages_,
          int kVStages_, int kQStages_, bool kTakesTurns_, bool kHasHeads_, int kProducerRegisters_,
          int kConsumerRegisters_, LogitForm kForm_ = LogitForm::plain>
struct ForwardBudget {
  static constexpr bool kHasCodes = std::is_same_v<Operand, E4m3>;  // operands of one byte
  static constexpr bool kIsFp8 = kHasCodes || std::is_same_v<Operand, Fp8AsBf16>;
  using T = std::conditional_t<kIsFp8 && !kHasCodes, Bf16, Operand>;
  using Out = std::conditional_t<kHasCodes, Bf16, T>;  // of results in the dtype
  // V of E4m3 is stored by groups of keys (CodeColumns in kernels/rows/fp8_rows.h).
  static constexpr int kAlign = kHasCodes ? 16 : 1;
  // Codes: the largest weight becomes 2 to this, 448.
  static constexpr float kWeightLog2 = 8.80735492f;
  static constexpr int kQk = kQk_, kV = kV_, kConsumers = kConsumers_, kWalked = kWalked_;
  static constexpr int kOwned = kWarpgroupRows * kConsumers;
  static constexpr LogitForm kForm = kForm_;
  // ALiBi: from the nearest keys on under a causal mask, so that later logits are seldom larger.
  // Of few keys there are few tiles, and three CTAs on a multiprocessor have no registers for it.
  using Walk = std::conditional_t<kForm == LogitForm::alibi && !kHasHeads_,
                                  ReversedRunWalk<kWalked>, RunWalk<kWalked, kAlign>>;
  static constexpr bool kTakesTurns = kTakesTurns_;
  // A warpgroup leaves out last tiles that it sees nothing of (OwnedTile::unseen). With two there
  // are hardly any under a causal mask.
  static constexpr bool kTrims = kConsumers > 2 && !kHasCodes && kForm != LogitForm::alibi;
  static constexpr bool kHasHeads = kHasHeads_;  // several heads in a tile: rows see few keys
  static constexpr int kKStages = kKStages_, kVStages = kVStages_, kQStages = kQStages_;
  // From the stage of Q, under the next Q.
  static constexpr bool kSendsRows = kQStages == 2 && kV <= kQk && !kIsFp8;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kProducerRegisters = kProducerRegisters_;
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr int kCtasPerSm =
      kRegistersPerSm /
      (kWarpgroupThreads * (kProducerRegisters + kConsumers * kConsumerRegisters));
  // Elements of V that one product takes. ptxas requires the registers of an instruction to be
  // among those that a warp is launched with, however many it claims later.
  static constexpr int kValueElements = kCtasPerSm == 3 ? kBoxLanes : kV;
  static constexpr int kBytes = sizeof(T);
  // Of Q K^T, 32 bytes of a row each. Rows of codes are padded to 128; where V has up to 64
  // elements, so has Q.
  static constexpr int kQkSteps = kHasCodes ? kV / 32 : kQk * kBytes / 32;
  static constexpr int kQBytes = kOwned * kQk * kBytes;
  static constexpr int kKBytes = kWalked * kQk * kBytes;
  static constexpr int kVBytes = kHasCodes ? kV * kPanelRowBytes : kWalked * kV * kBytes;
  static constexpr int kKeptBytes = kHasCodes ? kOwned * (kV * 4 + 32) : 0;  // KeptSums
  static constexpr int kSharedBytes = 1024 + kQStages * kQBytes + kKStages * kKBytes +
                                      kVStages * kVBytes + 256 + TileScheduler::kBytes + kKeptBytes;

  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * launch_registers(kCtasPerSm * kThreads));
  static_assert(kProducerRegisters % 8 == 0 && kConsumerRegisters % 8 == 0);
  static_assert(kQk % kBoxLanes == 0 && kV % kBoxLanes == 0 && kWalked % 16 == 0);
  static_assert(!kHasCodes || (kQk == 128 && (kV == 128 || kV == 64) && kWalked % 32 == 0 &&
                               kWalked <= kPanelRowBytes && kForm == LogitForm::plain));
  static_assert(kSharedBytes <= max_shared_bytes(kCtasPerSm));
  static_assert(kForm != LogitForm::alibi ||
                (kOwned <= AlibiRows::kPositionPadding && kWalked <= AlibiRows::kPositionPadding));
};

/// Addresses in shared memory.
template <class B>
struct ForwardShared {
  uint32_t q, k, v;
  uint32_t q_full, q_free, out_full, k_full, k_free, v_full, v_free, scheduler, kept;

  __device__ ForwardShared() {
    q = align_to_swizzle(shared_address(dynamic_shared()));
    k = q + B::kQStages * B::kQBytes;
    v = k + B::kKStages * B::kKBytes;
    q_full = v + B::kVStages * B::kVBytes;
    q_free = q_full + 8 * B::kQStages;
    out_full = q_free + 8;
    k_full = out_full + 8;
    k_free = k_full + 8 * B::kKStages;
    v_full = k_free + 8 * B::kKStages;
    v_free = v_full + 8 * B::kVStages;
    scheduler = v_free + 8 * B::kVStages;
    kept = (scheduler + TileScheduler::kBytes + 15) & ~15u;
  }

  __device__ void init() const {
    constexpr int kConsumerWarps = 4 * B::kConsumers;
    if (threadIdx.x == 0) {
      for (int i = 0; i < B::kQStages; ++i) mbarrier_init(q_full + 8 * i, 1);
      mbarrier_init(q_free, B::kSendsRows ? 1 : kConsumerWarps);
      if (B::kSendsRows) mbarrier_init(out_full, 32 * kConsumerWarps);
      for (int i = 0; i < B::kKStages; ++i) {
        mbarrier_init(k_full + 8 * i, 1);
        mbarrier_init(k_free + 8 * i, kConsumerWarps);
      }
      for (int i = 0; i < B::kVStages; ++i) {
        mbarrier_init(v_full + 8 * i, 1);
        mbarrier_init(v_free + 8 * i, kConsumerWarps);
      }
      TileScheduler(scheduler).init(kConsumerWarps, B::kSendsRows ? 2 : 1);
      mbarrier_init_fence();
    }
    __syncthreads();
  }
};

/// Number of tiles of an item, including the one just loaded, that are left when the next item is
/// fetched: enough time to fetch it, but not so much that a CTA holds an item while others have
/// none.
inline constexpr int kDrawAhead = 4;
// A consumer reads the next item before it passes by the last tiles of its own, which are loaded
// only afterwards.
static_assert(kMostUnseen < kDrawAhead);

/// The producer's thread. Shared: ForwardShared, or the same names for other barriers.
template <class B, class Shared>
__device__ __forceinline__ void fetch_forward(const ForwardParams& p, const Shared& at) {
  for (const TensorMap* map : {&p.q, &p.k, &p.v}) prefetch_map(map);
  TileScheduler scheduler(at.scheduler);
  NextStage<B::kKStages> next_k;
  NextStage<B::kVStages> next_v;
  int num_q = 0;  // tiles fetched
  const auto fetch_k = [&](int row, int end, int head) {
    const int stage = next_k.stage();
    mbarrier_wait(at.k_free + 8 * stage, next_k.parity() ^ 1);
    mbarrier_arrive_expecting(at.k_full + 8 * stage, B::kKBytes);
    load_panels<B::kQk * B::kBytes / 2, B::kWalked>(at.k + stage * B::kKBytes, &p.k,
                                                    at.k_full + 8 * stage, row, end, head);
    next_k.advance();
  };
  const auto fetch_v = [&](int row, int end, int head) {
    const int stage = next_v.stage();
    mbarrier_wait(at.v_free + 8 * stage, next_v.parity() ^ 1);
    mbarrier_arrive_expecting(at.v_full + 8 * stage, B::kVBytes);
    if constexpr (B::kHasCodes) {
      // Rows of the map are elements of v, and two keys are one of its numbers. A row has 128 keys
      // here, more than a tile.
      load_box(at.v + stage * B::kVBytes, &p.v, at.v_full + 8 * stage, row / 2, kMapRows - B::kV,
               head, B::kV, kMapRows);
    } else {
      load_panels<B::kV, B::kWalked>(at.v + stage * B::kVBytes, &p.v, at.v_full + 8 * stage, row,
                                     end, head);
    }
    next_v.advance();
  };

  for (;;) {
    const ScheduledItem item = scheduler.read_holding();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    int32_t left = tile.num_tiles;
    if (left <= kDrawAhead) scheduler.let_go();
    if (left == 0) continue;
    const int stage = num_q % B::kQStages;
    // With two stages: no reads of the Q of the item before the previous one are left, and its rows
    // have been written.
    mbarrier_wait(at.q_free, (num_q & 1) ^ 1);
    ++num_q;
    const TileRows<B::kHasHeads> rows(p);
    const int32_t head = rows.head_of(0, item.head);
    const int32_t kv_head = (p.first_head + head) / p.group - p.first_kv_head;
    mbarrier_arrive_expecting(at.q_full + 8 * stage, B::kQBytes);
    load_panels<B::kQk * B::kBytes / 2, B::kOwned, B::kHasHeads>(
        at.q + stage * B::kQBytes, &p.q, at.q_full + 8 * stage, tile.begin, tile.end, head);
    typename B::Walk walk(item);
    walk.next(p.tiles.runs);
    fetch_k(walk.row, walk.end, kv_head);
    // Consumers need the next K before this V.
    int32_t row = walk.row, end = walk.end;
    while (walk.next(p.tiles.runs)) {
      fetch_k(walk.row, walk.end, kv_head);
      fetch_v(row, end, kv_head);
      row = walk.row;
      end = walk.end;
      if (--left == kDrawAhead) scheduler.let_go();
    }
    fetch_v(row, end, kv_head);
  }
}

}  // namespace cpscope::kernels::device
