#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_row_metadata.h"
#include "kernels/hopper/hopper_split_stages.h"

#include <algorithm>
#include <cstdint>

// dk and dv of one compute item on sm_90a, for head_dims above 128 that hopper_gradients.cu does
// not take.
//
// A CTA holds 64 stationary keys of a KV head; dk and dv of more keys do not fit in its registers
// at head_dim 256. It streams the query rows that see the keys, for every query head of the group,
// or of a part of it (TileList::group_parts). The two consumers have roles (primes: transposed):
//   weights S' = K Q^T, P' = exp2(S' scale log2(e) - log2_lse), dv += P' dO
//   gradients dP' = V dO^T, dS' = P' (dP' - delta), dk += dS' Q
// Each product is made once, two by each. Only P' is exchanged, in fp32 through shared memory: a
// thread reads the values of the thread with the same index in the other warpgroup, so P' is laid
// out by threads, and warps wait only for their partners. With four stages of Q and dO (head_dim
// 192) the sum of a tile runs under the next one's softmax; with two (256) it runs before the next
// product, since its stage is needed again.
//
// Ladder: v1 is the portable kernel (key_gradient.cu); this one is v2.
// Grid: one CTA per SM, work fetched with a counter; 128 threads for the producer and for each
// consumer. Shared memory: stationary K and V, stages of Q and of dO, panels with the 128-byte
// swizzle, P'. Limit: shared memory. A tile of 64 x 64 at head_dim 256 takes 2048 clocks of
// products, and at 128 bytes a clock 2304 of shared memory: 1536 of operands, 512 of copies, 256 of
// P' (192/128: 1280 and 1536). The copies alone are 28 bytes a clock from L2, close to its limit
// for all SMs at once. Accuracy as v1: fp32 sums, P and dS rounded to the dtype. Source:
// FlashAttention-3 (arXiv:2407.08608), the transposed products; roles are our own.

namespace cpscope::kernels {
namespace device {
namespace {

constexpr int kWalkedRows = kWarpgroupRows;
template <LogitForm kForm>
using Facts = FactLayout<kWalkedRows, kForm == LogitForm::alibi>;
constexpr int kExchangedBytes = kWarpgroupRows * kWalkedRows * 4;

/// The producer's first thread: loads the tiles.
template <class B>
__device__ __forceinline__ void fetch_queries(const SplitParams<B>& p, const SplitShared<B>& at) {
  TileScheduler scheduler(at.scheduler);
  int num_walked = 0, num_owned = 0;  // loaded
  for (;;) {
    const ScheduledItem item = scheduler.read_alone();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    const HeadRange heads(p, item.head);
    if (tile.num_runs == 0 || heads.first >= heads.last) continue;
    mbarrier_wait(at.owned_free, (num_owned & 1) ^ 1);
    ++num_owned;
    mbarrier_arrive_expecting(at.owned_full, B::kOwnedBytes);
    const int32_t kv_head = item.head / p.group_parts;
    load_panels<B::kQk, B::kOwned>(at.owned, &p.k, at.owned_full, tile.begin, tile.end, kv_head);
    load_panels<B::kV, B::kOwned>(at.owned + B::kOwnedFirstBytes, &p.v, at.owned_full, tile.begin,
                                  tile.end, kv_head);
    for (int32_t head = heads.first; head < heads.last; ++head) {
      for (RunWalk<B::kWalked> walk(item); walk.next(p.tiles.runs); ++num_walked) {
        const uint32_t q_full = at.first_full_at(num_walked);
        const uint32_t d_out_full = at.second_full_at(num_walked);
        // dO is free sooner: of a tile, dk is made last.
        mbarrier_wait(at.second_free_at(num_walked), at.second_parity(num_walked) ^ 1);
        mbarrier_arrive_expecting(d_out_full, B::kSecondBytes);
        load_panels<B::kV, B::kWalked>(at.second_at(num_walked), &p.d_out, d_out_full, walk.row,
                                       walk.end, head);
        if constexpr (B::kIsMx)
          load_panels<B::kV, B::kWalked>(at.turned_second_at(num_walked), &p.turned_second,
                                         d_out_full, walk.row, walk.end, head);
        mbarrier_wait(at.first_free_at(num_walked), at.first_parity(num_walked) ^ 1);
        mbarrier_arrive_expecting(q_full, B::kFirstBytes);
        load_panels<B::kQk, B::kWalked>(at.first_at(num_walked), &p.q, q_full, walk.row, walk.end,
                                        head);
        if constexpr (B::kIsMx)
          load_panels<B::kQk, B::kWalked>(at.turned_first_at(num_walked), &p.turned_first, q_full,
                                          walk.row, walk.end, head);
      }
    }
  }
}

/// Iterates over the query rows of an item, once for each query head.
template <int kRows>
struct GroupWalk {
  const ScheduledItem& item;
  int32_t last_head, heads_left;
  RunWalk<kRows> rows;

  __device__ GroupWalk(const ScheduledItem& scheduled, const HeadRange& heads)
      : item(scheduled),
        last_head(heads.last),
        heads_left(heads.last - heads.first),
        rows(scheduled) {}

  __device__ __forceinline__ int32_t head() const { return last_head - heads_left; }

  __device__ __forceinline__ bool next(const TileRun* runs) {
    for (; heads_left > 0; --heads_left) {
      if (rows.next(runs)) return true;
      rows = RunWalk<kRows>(item);
    }
    return false;
  }
};

/// A consumer warpgroup: makes the weights and dv, or the gradients and dk.
template <class B, bool kMakesValues>
struct RoleConsumer {
  static constexpr int kTileHeadDim =
      kMakesValues ? B::kQk : B::kV;  // elements summed over by a tile's product
  static constexpr int kSumHeadDim = kMakesValues ? B::kV : B::kQk;
  // True if the sums add the previous tile before this tile's product: with few stages they must be
  // freed soon; with more the sums run under the softmax. With a single stage this tile arrives
  // only after they have ended.
  using Facts = device::Facts<B::kForm>;
  static constexpr bool kSumsFirst = B::kFirstStages < 3, kSumsAlone = B::kFirstStages == 1;

  const SplitParams<B>& p;
  const SplitShared<B>& at;
  uint32_t exchange;                  // of this thread and its partner
  int num_walked = 0, num_owned = 0;  // taken
  uint32_t operands[B::kWalked / 4];  // P' or dS' of the previous tile, in pairs
  float sums[kSumHeadDim / 2];        // dv or dk

  __device__ RoleConsumer(const SplitParams<B>& params, const SplitShared<B>& shared)
      : p(params), at(shared), exchange(shared.exchange + threadIdx.x % kWarpgroupThreads * 16) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  // Barriers of a warp and its partner: P' has been written, P' has been read. Every lane signals
  // its own accesses.
  __device__ __forceinline__ uint32_t written_barrier() const {
    return at.partners + 16 * (threadIdx.x / 32 % 4);
  }
  __device__ __forceinline__ uint32_t read_barrier() const { return written_barrier() + 8; }

  __device__ __forceinline__ uint32_t facts() const {
    return at.row_facts + num_walked % B::kFirstStages * B::kFactBytes + 8 * (threadIdx.x % 4);
  }

  __device__ __forceinline__ void wait_for_queries(int number) const {
    mbarrier_wait(at.first_full_at(number), at.first_parity(number));
  }
  __device__ __forceinline__ void wait_for_d_out(int number) const {
    mbarrier_wait(at.second_full_at(number), at.second_parity(number));
  }
  /// Every lane also signals that it has read the row metadata.
  __device__ __forceinline__ void release_queries(int number) const {
    mbarrier_arrive(at.first_free_at(number));
  }
  __device__ __forceinline__ void release_d_out(int number) const {
    if (is_elected()) mbarrier_arrive(at.second_free_at(number));
  }

  /// Starts S' or dP' of the tile.
  __device__ __forceinline__ void start_tile(float (&tile)[B::kWalked / 2]) const {
    const uint32_t a = kMakesValues ? at.owned : at.owned + B::kOwnedFirstBytes;
    const uint32_t b = kMakesValues ? at.first_at(num_walked) : at.second_at(num_walked);
    if constexpr (kMakesValues) {
      wait_for_queries(num_walked);
    } else {
      wait_for_d_out(num_walked);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileHeadDim / 16; ++step) {
      wgmma_ss<typename B::T>(tile, matrix_descriptor(a + head_dim_step<B::kOwned>(step), 16),
                              matrix_descriptor(b + head_dim_step<B::kWalked>(step), 16), step > 0);
    }
    wgmma_commit();
  }

  /// Starts dv or dk += the operands of a tile times its rows.
  __device__ __forceinline__ void start_sums(int number) {
    if constexpr (kMakesValues) wait_for_d_out(number);
    const uint32_t b = kMakesValues ? at.turned_second_at(number) : at.turned_first_at(number);
    pin(sums);
    pin(operands);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      wgmma_rs<typename B::T>(sums, operands + 4 * step,
                              matrix_descriptor(b + row_step(step), B::kWalked * kPanelRowBytes));
    }
    wgmma_commit();
  }

  /// Waits until at most kLater products after the sums are in flight.
  template <int kLater>
  __device__ __forceinline__ void finish_sums(int number) {
    wgmma_wait<kLater>();
    pin(sums);
    if constexpr (kMakesValues) {
      release_d_out(number);
    } else {
      release_queries(number);
    }
  }

  /// Sets the weights of invisible pairs of columns [8 j, 8 j + 8) to zero, whatever their logits
  /// are.
  __device__ __forceinline__ void hide(float (&weights)[B::kWalked / 2], int j, int32_t key) const {
    hide_columns<Facts>(facts() + 32 * j, key, weights + 4 * j);
  }

  /// Turns S' into P', and passes P' times the cap's slope to the partner. With a cap in small
  /// pieces: there are no registers for the slopes of a whole tile.
  __device__ __forceinline__ void weigh_tile(float (&logits)[B::kWalked / 2], int32_t key,
                                             int32_t head, bool is_masked) const {
    constexpr bool kIsCapped = B::kForm == LogitForm::capped;
    constexpr int kPiece = kIsCapped ? 2 : B::kWalked / 8;  // groups of 8 columns
    float slopes[4 * kPiece];
    AlibiOfTwo alibi;
    if constexpr (B::kForm == LogitForm::alibi)
      alibi = alibi_log2(p, p.alibi.key_positions, key, head);
#pragma unroll
    for (int first = 0; first < B::kWalked / 8; first += kPiece) {
#pragma unroll
      for (int j = first; j < first + kPiece; ++j) {
        const FloatPair log2_lse = load_shared_pair(facts() + 32 * j);
        FloatPair positions{0.0f, 0.0f};
        if constexpr (B::kForm == LogitForm::alibi)
          positions = load_shared_pair(facts() + Facts::kPosition + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) {
          float subtracted = i % 2 == 0 ? log2_lse.x : log2_lse.y;
          if constexpr (B::kForm == LogitForm::alibi)
            subtracted += alibi.of(i / 2 % 2, i % 2 == 0 ? positions.x : positions.y);
          logits[i] = weigh<B::kForm>(p, logits[i], subtracted, slopes[i - 4 * first]);
        }
      }
      if (is_masked) {
#pragma unroll
        for (int j = first; j < first + kPiece; ++j) hide(logits, j, key);
      }
      if (first == 0) mbarrier_wait(read_barrier(), (num_walked & 1) ^ 1);
#pragma unroll
      for (int j = first; j < first + kPiece; ++j) {
        // The slope of an invisible pair may be a NaN.
        const auto crossing = [&](int i) {
          const float weight = logits[4 * j + i];
          return !kIsCapped || weight == 0.0f ? weight : weight * slopes[4 * (j - first) + i];
        };
        store_shared_four(exchange + j * kWarpgroupThreads * 16,
                          {crossing(0), crossing(1), crossing(2), crossing(3)});
      }
    }
    mbarrier_arrive(written_barrier());
    release_queries(num_walked);
  }

  /// dP' -> dS' = P' (dP' - delta).
  __device__ __forceinline__ void differentiate(float (&dp)[B::kWalked / 2], bool is_masked) const {
    wait_for_queries(num_walked);
    mbarrier_wait(written_barrier(), num_walked & 1);
#pragma unroll
    for (int i = 0; i < B::kWalked / 2; i += 4) {
      const FloatPair delta = load_shared_pair(facts() + Facts::kDelta + 8 * i);
      const FloatFour weights = load_shared_four(exchange + i / 4 * kWarpgroupThreads * 16);
      // A key that no row sees may hold a NaN, and so may its dP'.
      const auto slope = [&](float weight, float product, float row_delta) {
        return is_masked && weight == 0.0f ? 0.0f : slope_of<B>(p, weight, product, row_delta);
      };
      dp[i] = slope(weights.x, dp[i], delta.x);
      dp[i + 1] = slope(weights.y, dp[i + 1], delta.y);
      dp[i + 2] = slope(weights.z, dp[i + 2], delta.x);
      dp[i + 3] = slope(weights.w, dp[i + 3], delta.y);
    }
    mbarrier_arrive(read_barrier());
  }

  /// A tile, with the sums of the previous one at the same time or after.
  template <bool kIsFirst>
  __device__ __forceinline__ void take_tile(int32_t key, const GroupWalk<B::kWalked>& walk) {
    const RunWalk<B::kWalked>& rows = walk.rows;
    const bool is_masked = rows.is_masked != 0;
    float tile[B::kWalked / 2];
    if constexpr (kIsFirst || kSumsAlone) {
      if constexpr (!kIsFirst) {
        start_sums(num_walked - 1);
        finish_sums<0>(num_walked - 1);
      }
      start_tile(tile);
      wgmma_wait<0>();
    } else if constexpr (kSumsFirst) {
      start_sums(num_walked - 1);
      start_tile(tile);
      finish_sums<1>(num_walked - 1);
      wgmma_wait<0>();
    } else {
      start_tile(tile);
      start_sums(num_walked - 1);
      wgmma_wait<1>();
    }
    pin(tile);
    if constexpr (kMakesValues) {
      weigh_tile(tile, key, walk.head(), is_masked);
    } else {
      release_d_out(num_walked);
      differentiate(tile, is_masked);
      if constexpr (B::kIsMx) cast_in_blocks<B::kWalked>(tile, p.blocks, rows.row, rows.end);
    }
    if constexpr (!kIsFirst && !kSumsFirst) finish_sums<0>(num_walked - 1);
#pragma unroll
    for (int i = 0; i < B::kWalked / 4; ++i) {
      operands[i] = kMakesValues ? round_weights<B>(p, tile[2 * i], tile[2 * i + 1])
                                 : round_grads<B>(p, tile[2 * i], tile[2 * i + 1]);
    }
    ++num_walked;
  }

  __device__ __forceinline__ void store_sums(const ScheduledItem& item, int32_t row) const {
    const DeviceRows& rows = kMakesValues ? p.second : p.first;
    const int32_t elements = kMakesValues ? p.head_dim_v : p.head_dim_qk;
    const float factor = kMakesValues ? dv_scale<B>(p) : p.scale;
    float* to = static_cast<float*>(rows.data) + item.head * rows.head_stride +
                static_cast<int64_t>(row) * rows.row_stride;
    if (row < item.tile.end) store_row<kSumHeadDim, false>(to, elements, sums, factor);
    to += 8 * rows.row_stride;
    if (row + 8 < item.tile.end) store_row<kSumHeadDim, true>(to, elements, sums, factor);
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    for (;;) {
      const ScheduledItem item = scheduler.read();
      if (item.is_last()) return;
#pragma unroll
      for (int i = 0; i < kSumHeadDim / 2; ++i) sums[i] = 0.0f;
      // This thread's rows: key and key + 8.
      const int32_t key = item.tile.begin + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
      GroupWalk<B::kWalked> walk(item, HeadRange(p, item.head));
      if (walk.next(p.tiles.runs)) {
        mbarrier_wait(at.owned_full, num_owned & 1);
        ++num_owned;
        take_tile<true>(key, walk);
        while (walk.next(p.tiles.runs)) take_tile<false>(key, walk);
        // No more reads of K and V; the waits above were those of whole warps.
        if (is_elected()) mbarrier_arrive(at.owned_free);
        start_sums(num_walked - 1);
        finish_sums<0>(num_walked - 1);
      }
      store_sums(item, key);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    wide_key_gradient_on_hopper(const __grid_constant__ SplitParams<B> p) {
  const SplitShared<B> at;
  at.init(1 + 32, kWarpgroupThreads * B::kConsumers, 1);
  const int warpgroup = shared_by_warp(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_queries<B>(p, at);
    if (threadIdx.x / 32 == 1) {
      fetch_facts<B::kFirstStages, RunWalk<kWalkedRows>, B::kForm == LogitForm::alibi>(
          p, TileScheduler(at.scheduler), {at.row_facts, at.first_full, at.first_free});
    }
    if (threadIdx.x / 32 == 2) TileScheduler(at.scheduler).schedule(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    if (warpgroup == 1) {
      RoleConsumer<B, true>(p, at).run();
    } else {
      RoleConsumer<B, false>(p, at).run();
    }
  }
}

// head_dims, stationary and streamed rows, stages of Q and dO, registers.
template <class T, LogitForm kForm>
using Budget192 = SplitBudget<T, 192, 128, kWarpgroupRows, kWalkedRows, 4, 4, Facts<kForm>::kBytes,
                              kExchangedBytes, 40, 232, kForm>;
template <class T, LogitForm kForm>
using Budget256 = SplitBudget<T, 256, 256, kWarpgroupRows, kWalkedRows, 2, 2, Facts<kForm>::kBytes,
                              kExchangedBytes, 40, 232, kForm>;
// mxfp8: Q and dO twice.
using Blocks128 = SplitBudget<MxAsBf16, 128, 128, kWarpgroupRows, kWalkedRows, 2, 2,
                              Facts<LogitForm::plain>::kBytes, kExchangedBytes, 40, 232>;
using Blocks256 = SplitBudget<MxAsBf16, 256, 256, kWarpgroupRows, kWalkedRows, 1, 1,
                              Facts<LogitForm::plain>::kBytes, kExchangedBytes, 40, 232>;

template <class B>
void launch_budget(const BackwardLaunch& launch, Stream stream) {
  SplitParams<B> p{};
  static_cast<BackwardParams&>(p) = make_backward_params(launch);
  if constexpr (B::kIsMx) {
    const AttentionShape& shape = launch.shape;
    const Fp8Numbers& fp8 = *launch.fp8;
    make_backward_maps(with_rows_of(launch, fp8), B::kWalked, B::kOwned, p);
    make_row_map(p.turned_first, fp8.turned_q, shape.dtype, shape.num_heads, p.head_dim_qk,
                 {B::kWalked});
    make_row_map(p.turned_second, fp8.turned_d_out, shape.dtype, shape.num_heads, p.head_dim_v,
                 {B::kWalked});
    p.blocks = fp8.q_blocks;
  } else {
    make_backward_maps(launch, B::kWalked, B::kOwned, p);
  }
  p.tiles = launch.key_tiles;
  p.counter = launch.counters + 1;
  set_key_results(launch, p);
  if constexpr (B::kIsFp8) set_fp8_factors(launch, p);
  const int32_t ctas = std::min(p.tiles.num_work, resident_ctas(wide_key_gradient_on_hopper<B>,
                                                                B::kThreads, B::kSharedBytes));
  launch_kernel(wide_key_gradient_on_hopper<B>, Grid(ctas), B::kThreads, B::kSharedBytes, stream,
                p);
}

template <class T, LogitForm kForm>
void launch_head_dim(const BackwardLaunch& launch, Stream stream) {
  if constexpr (kForm != LogitForm::plain) {
    if (launch.shape.head_dim_qk <= 192 && launch.shape.head_dim_v <= 128)
      return launch_budget<Budget192<T, kForm>>(launch, stream);
  }
  launch_budget<Budget256<T, kForm>>(launch, stream);
}

}  // namespace
}  // namespace device

TileShape hopper_wide_key_gradient_tile_shape() {
  return {device::kWarpgroupRows, device::kWalkedRows};
}

void launch_hopper_wide_key_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.key_tiles.num_work == 0) return;
  if (launch.shape.is_mx) {
    return is_up_to_128(launch.shape) ? device::launch_budget<device::Blocks128>(launch, stream)
                                      : device::launch_budget<device::Blocks256>(launch, stream);
  }
  if (launch.shape.is_fp8)
    return device::launch_budget<device::Budget256<Fp8AsBf16, LogitForm::plain>>(launch, stream);
  with_logit_form(launch.shape, [&](auto form) {
    launch.shape.dtype == Dtype::bf16 ? device::launch_head_dim<Bf16, form()>(launch, stream)
                                      : device::launch_head_dim<Fp16, form()>(launch, stream);
  });
}

}  // namespace cpscope::kernels
