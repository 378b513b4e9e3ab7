#include "kernels/hopper_backward.h"
#include "kernels/hopper_row_facts.h"
#include "kernels/launch.h"

#include <algorithm>
#include <cmath>

// dk and dv of one compute item on sm_90a, heads of 65 to 128 lanes.
//
// A CTA owns 128 keys of a kv head and walks the query rows that see them, for every query head of
// the group: S' = K Q^T, dP' = V dO^T, dv += P' dO, dk += dS' Q (primes: transposed). P' and dS'
// stay in registers as operands, so nothing goes through shared memory between the products. What
// belongs to a walked row (lse, delta, the keys that it sees) belongs to a column here: the
// producer's second warp puts it into shared memory beside the tile.
//
// Ladder: v1 is the portable kernel (key_gradient.cu); this one is v2.
// Grid: one CTA per SM, work from a counter; 128 threads for the producer and for each consumer.
// Shared memory: K and V of the owner, kStages of Q and dO, panels with the 128-byte swizzle.
// Accuracy: as v1: fp32 sums, P and dS rounded to the dtype.
// Source: FlashAttention-3 (arXiv:2407.08608), the transposed products; one owner is our own.

namespace cpscope::kernels {
namespace device {
namespace {

constexpr int kWalkedRows = kWarpgroupRows;
using Facts = FactLayout<kWalkedRows>;

/// The producer's first thread: the tiles.
template <class B>
__device__ __forceinline__ void fetch_queries(const BackwardParams& p,
                                              const BackwardShared<B>& at) {
  WorkDeal deal(at.deal);
  int num_walked = 0, num_owned = 0;  // fetched
  for (;;) {
    const DealtItem item = deal.read_alone();
    if (item.is_last()) return;
    const OwnedTile& tile = item.tile;
    if (tile.num_runs == 0) continue;
    mbarrier_wait(at.owned_free, (num_owned & 1) ^ 1);
    ++num_owned;
    mbarrier_arrive_expecting(at.owned_full, B::kOwnedBytes);
    load_panels<B::kQk, B::kOwned>(at.owned, &p.k, at.owned_full, tile.begin, tile.end, item.head);
    load_panels<B::kV, B::kOwned>(at.owned + B::kOwnedFirstBytes, &p.v, at.owned_full, tile.begin,
                                  tile.end, item.head);
    const HeadRange heads(p, item.head);
    for (int32_t head = heads.first; head < heads.last; ++head) {
      for (RunWalk<B::kWalked> walk(item); walk.next(p.tiles.runs); ++num_walked) {
        const int stage = num_walked % B::kStages;
        const uint32_t q = at.walked + stage * B::kWalkedBytes;
        mbarrier_wait(at.walked_free + 8 * stage, ((num_walked / B::kStages) & 1) ^ 1);
        mbarrier_arrive_expecting(at.first_full + 8 * stage, B::kFirstBytes);
        load_panels<B::kQk, B::kWalked>(q, &p.q, at.first_full + 8 * stage, walk.row, walk.end,
                                        head);
        mbarrier_arrive_expecting(at.second_full + 8 * stage, B::kSecondBytes);
        load_panels<B::kV, B::kWalked>(q + B::kFirstBytes, &p.d_out, at.second_full + 8 * stage,
                                       walk.row, walk.end, head);
      }
    }
  }
}

/// A consumer warpgroup.
template <class B>
struct KeyGradientConsumer {
  const BackwardParams& p;
  const BackwardShared<B>& at;
  int group;  // which consumer
  uint32_t k, v;
  int num_walked = 0, num_owned = 0;  // taken
  float dk[B::kQk / 2];
  float dv[B::kV / 2];

  __device__ KeyGradientConsumer(const BackwardParams& params, const BackwardShared<B>& shared,
                                 int consumer)
      : p(params),
        at(shared),
        group(consumer),
        k(shared.owned + consumer * kWarpgroupRows * kPanelRowBytes),
        v(k + B::kOwnedFirstBytes) {}

  __device__ __forceinline__ static bool is_elected() { return threadIdx.x % 32 == 0; }

  /// sums = A B^T of kLanes lanes; a: this warpgroup's keys, b: the walked rows.
  template <int kLanes>
  __device__ __forceinline__ static void start_product(float (&sums)[B::kWalked / 2], uint32_t a,
                                                       uint32_t b) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kLanes / 16; ++step) {
      wgmma_ss<typename B::T>(sums, matrix_descriptor(step_address<B::kOwned>(a, step), 16),
                              matrix_descriptor(step_address<B::kWalked>(b, step), 16), step > 0);
    }
    wgmma_commit();
  }

  /// sums += weights B; b: the walked rows.
  template <int kSums>
  __device__ __forceinline__ static void start_sums(float (&sums)[kSums],
                                                    uint32_t (&weights)[B::kWalked / 4],
                                                    uint32_t b) {
    pin(sums);
    pin(weights);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      wgmma_rs<typename B::T>(
          sums, weights + 4 * step,
          matrix_descriptor(b + step * 16 * kPanelRowBytes, B::kWalked * kPanelRowBytes));
    }
    wgmma_commit();
  }

  /// logits -> P', in fp32 (times the cap's slope) and rounded. facts: of this thread's columns.
  template <bool kIsMasked>
  __device__ __forceinline__ void weigh_tile(float (&logits)[B::kWalked / 2],
                                             uint32_t (&weights)[B::kWalked / 4], uint32_t facts,
                                             int32_t key) const {
#pragma unroll
    for (int j = 0; j < B::kWalked / 8; ++j) {
      const FloatPair log2_lse = load_shared_pair(facts + 32 * j);
      float slope[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = logits[4 * j + i];
        value = weigh<B::kHasCap>(p, value, i % 2 == 0 ? log2_lse.x : log2_lse.y, slope[i]);
      }
      if constexpr (kIsMasked) {
        const IntPair lo = load_shared_int_pair(facts + Facts::kLo + 32 * j);
        const IntPair size = load_shared_int_pair(facts + Facts::kSize + 32 * j);
        const KeySpan even{lo.x, static_cast<uint32_t>(size.x)};
        const KeySpan odd{lo.y, static_cast<uint32_t>(size.y)};
        if (!even.has(key)) logits[4 * j] = 0.0f;
        if (!odd.has(key)) logits[4 * j + 1] = 0.0f;
        if (!even.has(key + 8)) logits[4 * j + 2] = 0.0f;
        if (!odd.has(key + 8)) logits[4 * j + 3] = 0.0f;
      }
      weights[2 * j] = pack<typename B::T>(logits[4 * j], logits[4 * j + 1]);
      weights[2 * j + 1] = pack<typename B::T>(logits[4 * j + 2], logits[4 * j + 3]);
      if constexpr (B::kHasCap) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // The slope of a hidden pair may be a NaN.
          float& value = logits[4 * j + i];
          value = value == 0.0f ? 0.0f : value * slope[i];
        }
      }
    }
  }

  /// dS' = P' (dP' - delta), rounded.
  __device__ __forceinline__ void differentiate(const float (&weights)[B::kWalked / 2],
                                                float (&dp)[B::kWalked / 2],
                                                uint32_t (&logit_grads)[B::kWalked / 4],
                                                uint32_t facts, bool is_masked) const {
    // A key that no row sees may hold a NaN, and so may its dP'.
    if (is_masked) {
#pragma unroll
      for (int i = 0; i < B::kWalked / 2; ++i) dp[i] = weights[i] == 0.0f ? 0.0f : dp[i];
    }
#pragma unroll
    for (int j = 0; j < B::kWalked / 8; ++j) {
      const FloatPair delta = load_shared_pair(facts + Facts::kDelta + 32 * j);
      logit_grads[2 * j] = pack<typename B::T>(weights[4 * j] * (dp[4 * j] - delta.x),
                                               weights[4 * j + 1] * (dp[4 * j + 1] - delta.y));
      logit_grads[2 * j + 1] = pack<typename B::T>(weights[4 * j + 2] * (dp[4 * j + 2] - delta.x),
                                                   weights[4 * j + 3] * (dp[4 * j + 3] - delta.y));
    }
  }

  __device__ __forceinline__ void take_tile(int32_t key, bool is_masked) {
    const int stage = num_walked % B::kStages;
    const uint32_t parity = (num_walked / B::kStages) & 1;
    const uint32_t q = at.walked + stage * B::kWalkedBytes, d_out = q + B::kFirstBytes;
    const uint32_t facts = at.row_facts + stage * B::kFactBytes + 8 * (threadIdx.x % 4);
    float logits[B::kWalked / 2], dp[B::kWalked / 2];
    uint32_t weights[B::kWalked / 4], logit_grads[B::kWalked / 4];
    mbarrier_wait(at.first_full + 8 * stage, parity);
    start_product<B::kQk>(logits, k, q);
    mbarrier_wait(at.second_full + 8 * stage, parity);
    start_product<B::kV>(dp, v, d_out);
    wgmma_wait<1>();
    pin(logits);
    if (is_masked) {
      weigh_tile<true>(logits, weights, facts, key);
    } else {
      weigh_tile<false>(logits, weights, facts, key);
    }
    start_sums(dv, weights, d_out);  // before dP' is used
    wgmma_wait<1>();
    pin(dp);
    differentiate(logits, dp, logit_grads, facts, is_masked);
    start_sums(dk, logit_grads, q);
    wgmma_wait<0>();
    pin(dk);
    pin(dv);
    // Every lane tells that it has read the facts.
    mbarrier_arrive(at.walked_free + 8 * stage);
    ++num_walked;
  }

  template <int kLanes>
  __device__ __forceinline__ static void store_rows(const DeviceRows& rows, int32_t head,
                                                    int32_t first_row, int32_t rows_end,
                                                    int32_t num_lanes,
                                                    const float (&sums)[kLanes / 2], float factor) {
    float* to = static_cast<float*>(rows.data) + head * rows.head_stride +
                static_cast<int64_t>(first_row) * rows.row_stride;
    if (first_row < rows_end) store_row<kLanes, false>(to, num_lanes, sums, factor);
    to += 8 * rows.row_stride;
    if (first_row + 8 < rows_end) store_row<kLanes, true>(to, num_lanes, sums, factor);
  }

  __device__ __forceinline__ void run() {
    WorkDeal deal(at.deal);
    const int32_t row_in_tile =
        group * kWarpgroupRows + (threadIdx.x / 32 % 4) * 16 + threadIdx.x % 32 / 4;
    for (;;) {
      const DealtItem item = deal.read();
      if (item.is_last()) return;
#pragma unroll
      for (int i = 0; i < B::kQk / 2; ++i) dk[i] = 0.0f;
#pragma unroll
      for (int i = 0; i < B::kV / 2; ++i) dv[i] = 0.0f;
      const int32_t key = item.tile.begin + row_in_tile;  // this thread's rows: key and key + 8
      if (item.tile.num_runs > 0) {
        mbarrier_wait(at.owned_full, num_owned & 1);
        ++num_owned;
        const HeadRange heads(p, item.head);
        for (int32_t head = heads.first; head < heads.last; ++head) {
          for (RunWalk<B::kWalked> walk(item); walk.next(p.tiles.runs);)
            take_tile(key, walk.is_masked != 0);
        }
        // Every lane has seen owned_full's phase: it waited for products since.
        if (is_elected()) mbarrier_arrive(at.owned_free);
      }
      store_rows<B::kV>(p.second, item.head, key, item.tile.end, p.lanes_v, dv, 1.0f);
      store_rows<B::kQk>(p.first, item.head, key, item.tile.end, p.lanes_qk, dk, p.scale);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    key_gradient_on_hopper(const __grid_constant__ BackwardParams p) {
  const BackwardShared<B> at;
  at.init(1 + 32, kWarpgroupThreads * B::kConsumers, 1);
  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  if (warpgroup == 0) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_queries<B>(p, at);
    if (threadIdx.x / 32 == 1)
      fetch_facts<B::kStages, RunWalk<kWalkedRows>>(p, WorkDeal(at.deal),
                                                    {at.row_facts, at.first_full, at.walked_free});
    if (threadIdx.x == 64) WorkDeal(at.deal).deal(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    KeyGradientConsumer<B>(p, at, warpgroup - 1).run();
  }
}

// Lanes, owned and walked rows, stages, registers.
template <class T, bool kHasCap>
using Budget128 = BackwardBudget<T, 128, 128, 128, kWalkedRows, 3, Facts::kBytes, 24, 240, kHasCap>;

template <class T, bool kHasCap>
void launch_budget(const BackwardLaunch& launch, Stream stream) {
  using B = Budget128<T, kHasCap>;
  static_assert(B::kWalked == kWarpgroupRows);
  BackwardParams p = make_backward_params(launch);
  make_backward_maps(launch, B::kWalked, B::kOwned, p);
  p.tiles = launch.key_tiles;
  p.counter = launch.counters + 1;
  p.first = launch.dk;
  p.second = launch.dv;
  const int32_t ctas = std::min(
      p.tiles.num_work, resident_ctas(key_gradient_on_hopper<B>, B::kThreads, B::kSharedBytes));
  launch_kernel(key_gradient_on_hopper<B>, Grid(ctas), B::kThreads, B::kSharedBytes, stream, p);
}

}  // namespace
}  // namespace device

TileShape hopper_key_gradient_tile_shape(const AttentionShape& shape) {
  if (device::is_wide(shape)) return hopper_wide_key_gradient_tile_shape();
  using Budget = device::Budget128<Bf16, false>;
  return {Budget::kOwned, Budget::kWalked};
}

void launch_hopper_key_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.key_tiles.num_work == 0) return;
  if (device::is_wide(launch.shape)) return launch_hopper_wide_key_gradient(launch, stream);
  const bool has_cap = launch.shape.softcap != 0.0f;
  if (launch.shape.dtype == Dtype::bf16) {
    has_cap ? device::launch_budget<Bf16, true>(launch, stream)
            : device::launch_budget<Bf16, false>(launch, stream);
  } else {
    has_cap ? device::launch_budget<Fp16, true>(launch, stream)
            : device::launch_budget<Fp16, false>(launch, stream);
  }
}

}  // namespace cpscope::kernels
