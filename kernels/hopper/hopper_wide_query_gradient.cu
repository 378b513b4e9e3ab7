#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_backward.h"
#include "kernels/hopper/hopper_split_stages.h"

#include <algorithm>
#include <cmath>

// dq of one compute item on sm_90a, for head_dims above 128 that hopper_gradients.cu does not take.
//
// A CTA holds 128 stationary query rows of a head and streams the keys that they see: S = Q K^T, dP
// = dO V^T, dS = P (dP - delta), dq += dS K. K and V have stages and barriers of their own here,
// since shared memory is short. At head_dim 256 shared memory holds two tiles of K and one of V
// besides Q and dO; there dS K runs before the next tile's products, since its stage of K is needed
// again.
//
// Ladder: v1 is the portable kernel (query_gradient.cu); this one is v2.
// Grid: one CTA per SM, work fetched with a counter; 128 threads for the producer and for each
// consumer. Shared memory: stationary Q and dO, stages of K and of V, panels with the 128-byte
// swizzle. Limit: shared memory. A tile of 128 x 64 at head_dim 256 takes 3072 clocks of products,
// and at 128 bytes a clock as many of shared memory: 2560 of operands, 512 of copies.
// Accuracy as v1: fp32 sums, dS rounded to the dtype.
// Source: FlashAttention-2 (arXiv:2307.08691), alg. 2, with the loops exchanged.

namespace cpscope::kernels {
namespace device {
namespace {

/// True if dq adds the previous tile before this tile's products: its stage of keys is free sooner,
/// but its product no longer runs under the softmax.
template <class B>
inline constexpr bool kSumsFirst = B::kFirstStages < 3;

/// The producer's thread.
template <class B>
__device__ __forceinline__ void fetch_keys(const SplitParams<B>& p, const SplitShared<B>& at) {
  TileScheduler scheduler(at.scheduler);
  int num_walked = 0, num_owned = 0;  // loaded
  for (;;) {
    const ScheduledItem item = scheduler.read_alone();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    if (tile.num_runs == 0) continue;
    mbarrier_wait(at.owned_free, (num_owned & 1) ^ 1);
    ++num_owned;
    const int32_t kv_head = (p.first_head + item.head) / p.group - p.first_kv_head;
    mbarrier_arrive_expecting(at.owned_full, B::kOwnedBytes);
    load_panels<B::kQk, B::kOwned>(at.owned, &p.q, at.owned_full, tile.begin, tile.end, item.head);
    load_panels<B::kV, B::kOwned>(at.owned + B::kOwnedFirstBytes, &p.d_out, at.owned_full,
                                  tile.begin, tile.end, item.head);
    for (RunWalk<B::kWalked> walk(item); walk.next(p.tiles.runs); ++num_walked) {
      const uint32_t k_full = at.first_full_at(num_walked), v_full = at.second_full_at(num_walked);
      mbarrier_wait(at.first_free_at(num_walked), at.first_parity(num_walked) ^ 1);
      mbarrier_arrive_expecting(k_full, B::kFirstBytes);
      load_panels<B::kQk, B::kWalked>(at.first_at(num_walked), &p.k, k_full, walk.row, walk.end,
                                      kv_head);
      if constexpr (B::kIsMx)
        load_panels<B::kQk, B::kWalked>(at.turned_first_at(num_walked), &p.turned_first, k_full,
                                        walk.row, walk.end, kv_head);
      mbarrier_wait(at.second_free_at(num_walked), at.second_parity(num_walked) ^ 1);
      mbarrier_arrive_expecting(v_full, B::kSecondBytes);
      load_panels<B::kV, B::kWalked>(at.second_at(num_walked), &p.v, v_full, walk.row, walk.end,
                                     kv_head);
    }
  }
}

/// A value that is the same in all lanes of a warp. Same as shared_by_warp, where the compiler does
/// not spill because of it.
template <class B>
__device__ __forceinline__ int32_t shared_if_cheap(int32_t value) {
  if constexpr (B::kQk <= 192 && B::kForm == LogitForm::plain) {
    return shared_by_warp(value);
  } else {
    return value;
  }
}

/// A consumer warpgroup.
template <class B>
struct QueryGradientConsumer {
  const SplitParams<B>& p;
  const SplitShared<B>& at;
  int group;  // index of the consumer
  uint32_t q, d_out;
  int num_walked = 0, num_owned = 0;     // taken
  uint32_t logit_grads[B::kWalked / 4];  // dS of the previous tile, in pairs
  float dq[B::kQk / 2];
  AlibiOfTwo alibi;

  __device__ QueryGradientConsumer(const SplitParams<B>& params, const SplitShared<B>& shared,
                                   int consumer)
      : p(params),
        at(shared),
        group(consumer),
        q(shared.owned + consumer * kWarpgroupRows * kPanelRowBytes),
        d_out(q + B::kOwnedFirstBytes) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  /// Starts sums = A B^T over kHeadDim elements; a: this warpgroup's queries, b: the streamed keys.
  template <int kHeadDim>
  __device__ __forceinline__ static void start_product(float (&sums)[B::kWalked / 2], uint32_t a,
                                                       uint32_t b) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      wgmma_ss<typename B::T>(sums, matrix_descriptor(a + head_dim_step<B::kOwned>(step), 16),
                              matrix_descriptor(b + head_dim_step<B::kWalked>(step), 16), step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void wait_for_keys() const {
    mbarrier_wait(at.first_full_at(num_walked), at.first_parity(num_walked));
  }
  __device__ __forceinline__ void wait_for_values() const {
    mbarrier_wait(at.second_full_at(num_walked), at.second_parity(num_walked));
  }

  __device__ __forceinline__ void start_logits(float (&logits)[B::kWalked / 2]) const {
    start_product<B::kQk>(logits, q, at.first_at(num_walked));
  }

  __device__ __forceinline__ void start_dp(float (&dp)[B::kWalked / 2]) const {
    start_product<B::kV>(dp, d_out, at.second_at(num_walked));
  }

  /// Starts dq += dS K of a tile whose dS is in logit_grads.
  __device__ __forceinline__ void start_dq(int number) {
    pin(dq);
    pin(logit_grads);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      wgmma_rs<typename B::T>(dq, logit_grads + 4 * step,
                              matrix_descriptor(at.turned_first_at(number) + row_step(step),
                                                B::kWalked * kPanelRowBytes));
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void release_keys(int number) const {
    if (is_elected()) mbarrier_arrive(at.first_free_at(number));
  }
  __device__ __forceinline__ void release_values() const {
    if (is_elected()) mbarrier_arrive(at.second_free_at(num_walked));
  }

  /// Positions of this thread's keys of a tile, from its first one on, with ALiBi.
  __device__ __forceinline__ const float* key_positions(const RunWalk<B::kWalked>& walk) const {
    if constexpr (B::kForm != LogitForm::alibi) return nullptr;
    return p.alibi.key_positions + walk.row + 2 * (threadIdx.x % 4);
  }

  /// What is subtracted from logit i of a tile. keys: positions of this thread's keys.
  __device__ __forceinline__ float subtracted(const QueryRows& rows, int i,
                                              const float* keys) const {
    const int r = (i / 2) & 1;
    if constexpr (B::kForm == LogitForm::alibi)
      return rows.log2_lse[r] + alibi.of(r, keys[i / 4 * 8 + i % 2]);
    return rows.log2_lse[r];
  }

  /// Turns logits into P times the cap's slope.
  __device__ __forceinline__ void weigh_tile(const QueryRows& rows, const RunWalk<B::kWalked>& walk,
                                             float (&logits)[B::kWalked / 2]) const {
    const float* const keys = key_positions(walk);
#pragma unroll
    for (int i = 0; i < B::kWalked / 2; ++i) {
      float slope;
      const float weight = weigh<B::kForm>(p, logits[i], subtracted(rows, i, keys), slope);
      logits[i] = B::kForm == LogitForm::capped ? weight * slope : weight;
    }
  }

  /// Turns logits, or weights, into dS. Invisible pairs are selected away at the end: there even dP
  /// may be a NaN.
  template <bool kAreWeights>
  __device__ __forceinline__ void differentiate(const QueryRows& rows,
                                                float (&logits)[B::kWalked / 2],
                                                const float (&dp)[B::kWalked / 2],
                                                const RunWalk<B::kWalked>& walk) const {
    const float* const keys = key_positions(walk);
#pragma unroll
    for (int i = 0; i < B::kWalked / 2; ++i) {
      float slope = 1.0f;
      if (!kAreWeights) logits[i] = weigh<B::kForm>(p, logits[i], subtracted(rows, i, keys), slope);
      logits[i] = slope_of<B>(p, logits[i], dp[i], rows.delta[(i / 2) & 1]);
      if (B::kForm == LogitForm::capped && !kAreWeights) logits[i] *= slope;
    }
    if (walk.is_masked != 0) {
      const int32_t key = walk.row + 2 * (threadIdx.x % 4);
      const KeySpan span[2] = {rows.ranges.span(0, walk.end), rows.ranges.span(1, walk.end)};
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i) {
        if (!span[(i / 2) & 1].has(key + (i / 4) * 8 + (i & 1))) logits[i] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void round_tile(float (&logits)[B::kWalked / 2],
                                             const RunWalk<B::kWalked>& walk) {
    if constexpr (B::kIsMx) cast_in_blocks<B::kWalked>(logits, p.blocks, walk.row, walk.end);
#pragma unroll
    for (int i = 0; i < B::kWalked / 4; ++i)
      logit_grads[i] = round_grads<B>(p, logits[2 * i], logits[2 * i + 1]);
  }

  /// The first tile of an item.
  __device__ __forceinline__ void take_first(const QueryRows& rows,
                                             const RunWalk<B::kWalked>& walk) {
    float logits[B::kWalked / 2], dp[B::kWalked / 2];
    wait_for_keys();
    start_logits(logits);
    wait_for_values();
    start_dp(dp);
    wgmma_wait<0>();
    pin(logits);
    pin(dp);
    release_values();
    differentiate<false>(rows, logits, dp, walk);
    round_tile(logits, walk);
    ++num_walked;
  }

  /// A tile, while dq adds the previous one.
  __device__ __forceinline__ void take_next(const QueryRows& rows,
                                            const RunWalk<B::kWalked>& walk) {
    float logits[B::kWalked / 2], dp[B::kWalked / 2];
    num_walked = shared_if_cheap<B>(num_walked);
    if constexpr (kSumsFirst<B>) {
      named_barrier_sync(1 + group, 2 * kWarpgroupThreads);
      start_dq(num_walked - 1);
      wait_for_keys();
      start_logits(logits);
      // V arrives late: no warpgroup waits for it during its turn.
      named_barrier_arrive(2 - group, 2 * kWarpgroupThreads);
      wait_for_values();
      start_dp(dp);
      wgmma_wait<1>();
      pin(dq);
      pin(logits);
      release_keys(num_walked - 1);
      weigh_tile(rows, walk, logits);
      wgmma_wait<0>();
      pin(dp);
      release_values();
      differentiate<true>(rows, logits, dp, walk);
    } else {
      // A turn covers products: tiles are waited for before it.
      wait_for_keys();
      wait_for_values();
      named_barrier_sync(1 + group, 2 * kWarpgroupThreads);
      start_logits(logits);
      start_dp(dp);
      start_dq(num_walked - 1);
      named_barrier_arrive(2 - group, 2 * kWarpgroupThreads);
      wgmma_wait<1>();
      pin(logits);
      pin(dp);
      release_values();
      differentiate<false>(rows, logits, dp, walk);  // dS K runs meanwhile
      wgmma_wait<0>();
      pin(dq);
      release_keys(num_walked - 1);
    }
    round_tile(logits, walk);
    ++num_walked;
  }

  /// Computes all streamed tiles of an item.
  __device__ __forceinline__ void walk_tiles(const ScheduledItem& item, QueryRows& rows,
                                             int32_t first_row) {
    RunWalk<B::kWalked> walk(item);
    const auto step = [&] {
      const bool goes_on = walk.next_in_run();
      const bool has_tile = goes_on || walk.next_run(p.tiles.runs);
      if (has_tile && !goes_on && walk.is_masked != 0)
        rows.ranges.fetch(p.tiles, p.q_rows, walk.range_set, first_row);
      return has_tile;
    };
    step();
    take_first(rows, walk);
    while (step()) take_next(rows, walk);
    // No more reads of Q and dO; the waits above were those of whole warps.
    if (is_elected()) mbarrier_arrive(at.owned_free);
    start_dq(num_walked - 1);
    wgmma_wait<0>();
    pin(dq);
    release_keys(num_walked - 1);
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    if (group == 1) named_barrier_arrive(1, 2 * kWarpgroupThreads);  // the first one may begin
    for (;;) {
      const ScheduledItem item = scheduler.read();
      if (item.is_last()) return;
      const OwnedTile& tile = item.tile;
      const int32_t first_row =
          tile.begin + group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < B::kQk / 2; ++i) dq[i] = 0.0f;
      if (tile.num_runs > 0) {
        QueryRows rows(p, first_row, item.head);
        if constexpr (B::kForm == LogitForm::alibi)
          alibi = alibi_log2(p, p.alibi.query_positions, first_row, item.head);
        mbarrier_wait(at.owned_full, num_owned & 1);
        ++num_owned;
        walk_tiles(item, rows, first_row);
      }
      float* to = static_cast<float*>(p.first.data) + item.head * p.first.head_stride +
                  static_cast<int64_t>(first_row) * p.first.row_stride;
      if (first_row < tile.end) store_row<B::kQk, false>(to, p.head_dim_qk, dq, p.scale);
      to += 8 * p.first.row_stride;
      if (first_row + 8 < tile.end) store_row<B::kQk, true>(to, p.head_dim_qk, dq, p.scale);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    wide_query_gradient_on_hopper(const __grid_constant__ SplitParams<B> p) {
  const SplitShared<B> at;
  at.init(1, 4 * B::kConsumers, 0);
  const int warpgroup = shared_if_cheap<B>(threadIdx.x / kWarpgroupThreads);
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_keys<B>(p, at);
    if (threadIdx.x / 32 == 1) TileScheduler(at.scheduler).schedule(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    QueryGradientConsumer<B>(p, at, warpgroup - 1).run();
  }
}

// head_dims, stationary and streamed rows, stages of K and V, registers. Shared memory holds Q and
// dO of head_dim 256 and three tiles of 64 keys besides: two of K, which dq reads last, and one of
// V.
template <class T, LogitForm kForm>
using Budget192 = SplitBudget<T, 192, 128, 128, 80, 3, 2, 0, 0, 24, 240, kForm>;
template <class T, LogitForm kForm>
using Budget256 = SplitBudget<T, 256, 256, 128, 64, 2, 1, 0, 0, 24, 240, kForm>;
// mxfp8: K twice.
using Blocks128 = SplitBudget<MxAsBf16, 128, 128, 128, 64, 3, 2, 0, 0, 24, 240>;
using Blocks256 = SplitBudget<MxAsBf16, 256, 256, 128, 32, 2, 1, 0, 0, 24, 240>;

template <class B>
void launch_budget(const BackwardLaunch& launch, Stream stream) {
  SplitParams<B> p{};
  static_cast<BackwardParams&>(p) = make_backward_params(launch);
  if constexpr (B::kIsMx) {
    const Fp8Numbers& fp8 = *launch.fp8;
    make_backward_maps(with_rows_of(launch, fp8), B::kOwned, B::kWalked, p);
    make_row_map(p.turned_first, fp8.turned_k, launch.shape.dtype, launch.shape.num_kv_heads,
                 p.head_dim_qk, {B::kWalked});
    p.blocks = fp8.kv_blocks;
  } else {
    make_backward_maps(launch, B::kOwned, B::kWalked, p);
  }
  p.tiles = launch.query_tiles;
  p.counter = launch.counters;
  p.first = launch.dq;
  if constexpr (B::kIsFp8) set_fp8_factors(launch, p);
  const int32_t ctas = std::min(p.tiles.num_work, resident_ctas(wide_query_gradient_on_hopper<B>,
                                                                B::kThreads, B::kSharedBytes));
  launch_kernel(wide_query_gradient_on_hopper<B>, Grid(ctas), B::kThreads, B::kSharedBytes, stream,
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

TileShape hopper_wide_query_gradient_tile_shape(const AttentionShape& shape) {
  using device::Budget192, device::Budget256;
  if (shape.is_mx)
    return {device::Blocks128::kOwned,
            is_up_to_128(shape) ? device::Blocks128::kWalked : device::Blocks256::kWalked};
  const bool is_192 = !shape.is_fp8 && shape.head_dim_qk <= 192 && shape.head_dim_v <= 128;
  return {Budget256<Bf16, LogitForm::plain>::kOwned,
          is_192 ? Budget192<Bf16, LogitForm::capped>::kWalked
                 : Budget256<Bf16, LogitForm::plain>::kWalked};
}

void launch_hopper_wide_query_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
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
