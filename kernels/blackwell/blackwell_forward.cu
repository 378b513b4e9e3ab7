// Forward attention of sm_100a: out and lse of one compute item.
//
// Not measured: no machine with Blackwell has run it. The emulator has (blackwell_emulated.h).
//
// The form is that of the Hopper forward (hopper_forward_kernel.h): a persistent kernel, a warp
// that fetches items with a counter, a thread that loads tiles by TMA. What differs: products are
// started by one thread, and their sums are in tensor memory. Two warpgroups have 128 query rows
// each, a thread one row. In turns S = Q K^T of one is multiplied while the other one makes the
// softmax of its S: it reads a row of S, and writes P over it, which is then an operand in tensor
// memory. So the products of a warpgroup are S of tile 0, P V of tile 0, S of tile 1, and so on, in
// this order; when S of a tile is there, P V of the tile before is done, and its sums may be
// rescaled. Earlier sums are rescaled only when a logit exceeds a limit, as on Hopper.
//
// Grid: one CTA per SM. 384 threads: the producer's warps (0: loads, 1: products, 2: scheduler, 3:
// tensor memory), and two warpgroups for softmax and results. Tensor memory, columns: S of both,
// 128 each, with P in the first 64; sums of both, head_dim each. Shared memory: Q of 256 rows,
// kStages of K and of V of 128. Accuracy: fp32 sums, P rounded to the dtype. Source:
// FlashAttention-4's description of its pipeline (flash-attn, 2025); PTX ISA 9.0, tcgen05;
// CUTLASS's names for the bits of the descriptors.
#include "kernels/blackwell/blackwell_forward.h"
#include "kernels/device/blackwell.h"
#include "kernels/device/launch.h"
#include "kernels/hopper/hopper_forward_params.h"
#include "kernels/hopper/hopper_forward_stages.h"
#include "sim/base/check.h"

#include <algorithm>
#include <cmath>

namespace cpscope::kernels {
namespace device {
namespace {

/// One configuration, head_dim of up to kHeadDim. Names as in ForwardBudget.
template <class Operand, int kHeadDim>
struct TensorBudget {
  using T = Operand;
  static constexpr bool kHasCodes = false, kHasHeads = false;
  static constexpr int kBytes = 2;
  static constexpr int kQk = kHeadDim, kV = kHeadDim;
  static constexpr int kHalves = 2, kHalfRows = kTensorLanes;
  static constexpr int kOwned = kHalves * kHalfRows, kWalked = 128;
  using Walk = RunWalk<kWalked>;
  static constexpr int kQStages = 1, kKStages = kHeadDim > 64 ? 2 : 3, kVStages = kKStages;
  static constexpr int kThreads = kWarpgroupThreads * (1 + kHalves);
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kQBytes = kOwned * kQk * 2;
  static constexpr int kKBytes = kWalked * kQk * 2;
  static constexpr int kVBytes = kWalked * kV * 2;
  static constexpr int kSharedBytes =
      1024 + kQBytes + kKStages * kKBytes + kVStages * kVBytes + 256 + TileScheduler::kBytes;
  static_assert(kProducerRegisters + kHalves * kConsumerRegisters <=
                (1 + kHalves) * launch_registers(kThreads));
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kHalves * (kWalked + kV) <= kTensorColumns);
};

/// Addresses in shared memory; barriers of a half are 8 bytes apart.
template <class B>
struct TensorShared {
  uint32_t q, k, v;
  uint32_t q_full, q_free, k_full, k_free, v_full, v_free;
  uint32_t logits_full, weights_full, out_full;  // of each half
  uint32_t memory, scheduler;

  __device__ TensorShared() {
    q = align_to_swizzle(shared_address(dynamic_shared()));
    k = q + B::kQBytes;
    v = k + B::kKStages * B::kKBytes;
    q_full = v + B::kVStages * B::kVBytes;
    q_free = q_full + 8;
    k_full = q_free + 8;
    k_free = k_full + 8 * B::kKStages;
    v_full = k_free + 8 * B::kKStages;
    v_free = v_full + 8 * B::kVStages;
    logits_full = v_free + 8 * B::kVStages;
    weights_full = logits_full + 8 * B::kHalves;
    out_full = weights_full + 8 * B::kHalves;
    memory = out_full + 8 * B::kHalves;
    scheduler = (memory + 4 + 15) & ~15u;
  }

  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (const uint32_t barrier : {q_full, q_free}) mbarrier_init(barrier, 1);
      for (int i = 0; i < B::kKStages; ++i) {
        for (const uint32_t barriers : {k_full, k_free, v_full, v_free})
          mbarrier_init(barriers + 8 * i, 1);
      }
      for (int i = 0; i < B::kHalves; ++i) {
        mbarrier_init(logits_full + 8 * i, 1);
        mbarrier_init(weights_full + 8 * i, kWarpgroupThreads);
        mbarrier_init(out_full + 8 * i, 1);
      }
      TileScheduler(scheduler).init(4 * B::kHalves, 2);
      mbarrier_init_fence();
    }
    if (threadIdx.x / 32 == 3) tcgen05_alloc(memory);
    tcgen05_fence_before();
    __syncthreads();
    tcgen05_fence_after();
  }
};

/// Columns of tensor memory.
template <class B>
struct TensorPlaces {
  uint32_t memory;  // what was allocated

  __device__ explicit TensorPlaces(const TensorShared<B>& at)
      : memory(static_cast<uint32_t>(load_shared_int(at.memory))) {}
  __device__ __forceinline__ uint32_t logits(int half) const { return memory + half * B::kWalked; }
  __device__ __forceinline__ uint32_t out(int half) const {
    return memory + B::kHalves * B::kWalked + half * B::kV;
  }
};

/// The thread that starts all products.
template <class B>
struct ProductStarter {
  const TensorShared<B>& at;
  TensorPlaces<B> places;
  NextStage<B::kKStages> next_k;
  NextStage<B::kVStages> next_v;
  uint32_t last_free = 0, last_parity = 0;  // of the last tile's V

  __device__ explicit ProductStarter(const TensorShared<B>& shared) : at(shared), places(shared) {}

  template <int kStages>
  __device__ __forceinline__ static int take(NextStage<kStages>& next, uint32_t full) {
    const int stage = next.stage();
    mbarrier_wait(full + 8 * stage, next.parity());
    next.advance();
    return stage;
  }

  /// S = Q K^T.
  __device__ __forceinline__ void start_logits(int half, int stage) const {
    constexpr uint32_t kKind = product_kind<typename B::T, B::kWalked, false>();
    const uint64_t q = tensor_descriptor(at.q + half * B::kHalfRows * kPanelRowBytes, 16);
    const uint64_t k = tensor_descriptor(at.k + stage * B::kKBytes, 16);
#pragma unroll
    for (int step = 0; step < B::kQk / 16; ++step) {
      tcgen05_mma_ss(places.logits(half), q + head_dim_step<B::kOwned>(step) / 16,
                     k + head_dim_step<B::kWalked>(step) / 16, kKind, step > 0);
    }
    tcgen05_commit(at.logits_full + 8 * half);
  }

  /// out (+)= P V; 16 weights of a row are 8 columns.
  __device__ __forceinline__ void start_values(int half, int stage, bool accumulates) const {
    constexpr uint32_t kKind = product_kind<typename B::T, B::kV, true>();
    const uint64_t v = tensor_descriptor(at.v + stage * B::kVBytes, B::kWalked * kPanelRowBytes);
#pragma unroll
    for (int step = 0; step < B::kWalked / 16; ++step) {
      tcgen05_mma_ts(places.out(half), places.logits(half) + 8 * step, v + row_step(step) / 16,
                     kKind, accumulates || step > 0);
    }
  }

  /// Starts all products of an item. num_before: items with tiles before; num_weights: tiles.
  __device__ __forceinline__ void multiply(int32_t num_tiles, int num_before, int& num_weights) {
    mbarrier_wait(at.q_full, num_before & 1);
    int k_stage = take(next_k, at.k_full);
    for (int half = 0; half < B::kHalves; ++half) start_logits(half, k_stage);
    tcgen05_commit(at.k_free + 8 * k_stage);
    for (int32_t tile = 0; tile < num_tiles; ++tile, ++num_weights) {
      const bool has_next = tile + 1 < num_tiles;
      last_parity = next_v.parity();
      const int v_stage = take(next_v, at.v_full);
      last_free = at.v_free + 8 * v_stage;
      if (has_next) k_stage = take(next_k, at.k_full);
      for (int half = 0; half < B::kHalves; ++half) {
        // Whoever has stored weights has also read the sums of the item before.
        mbarrier_wait(at.weights_full + 8 * half, num_weights & 1);
        tcgen05_fence_after();
        start_values(half, v_stage, tile > 0);
        if (has_next) {
          start_logits(half, k_stage);
        } else {
          tcgen05_commit(at.out_full + 8 * half);
        }
      }
      tcgen05_commit(last_free);
      tcgen05_commit(has_next ? at.k_free + 8 * k_stage : at.q_free);
    }
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    int num_items = 0, num_weights = 0;
    for (;;) {
      const ScheduledItem item = scheduler.read_alone();
      if (item.is_last()) break;
      if (item.tile.num_tiles > 0) multiply(item.tile.num_tiles, num_items++, num_weights);
    }
    // The CTA must not end before its last arrivals.
    if (num_items == 0) return;
    const uint32_t last[2] = {at.q_free, last_free};
    const uint32_t parities[2] = {static_cast<uint32_t>(num_items - 1) & 1, last_parity};
    for (int i = 0; i < 2; ++i) mbarrier_wait(last[i], parities[i]);
  }
};

/// A warpgroup that makes the softmax of 128 rows; each thread has one.
template <class B>
struct TensorConsumer {
  static constexpr int kParts = B::kWalked / 32;

  const ForwardParams& p;
  const TensorShared<B>& at;
  int half;
  uint32_t logits_at, out_at;                        // of this warp's lanes
  int num_tiles = 0, num_items = 0;                  // taken; items with tiles
  float largest, reference, limit, subtracted, sum;  // as in RowState

  __device__ TensorConsumer(const ForwardParams& params, const TensorShared<B>& shared, int of_half)
      : p(params), at(shared), half(of_half) {
    const TensorPlaces<B> places(shared);
    const uint32_t lanes = tensor_place(threadIdx.x / 32 % 4 * 32, 0);
    logits_at = places.logits(half) + lanes;
    out_at = places.out(half) + lanes;
  }

  __device__ __forceinline__ void hide(float (&logits)[kParts][32], const typename B::Walk& walk,
                                       int32_t row) const {
    KeyRange range{};
    if (row < p.q_rows)
      range = p.tiles.ranges[static_cast<int64_t>(walk.range_set) * p.q_rows + row];
    const KeySpan span = clip_to_run(range, walk.end);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (!span.has(walk.row + 32 * part + i)) logits[part][i] = -INFINITY;
      }
    }
  }

  /// logits -> exp2(logit - reference). Returns whether a row of the warp has a new reference.
  /// shrink: factor for earlier results then.
  __device__ __forceinline__ bool take(float (&logits)[kParts][32], float& shrink) {
    const float to_log2 = p.logit_scale * kLog2E;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 32; ++i) largest = fmaxf(largest, logits[part][i]);
    }
    const bool outgrown = any_in_warp(largest > limit);
    if (outgrown) {
      const float growth = (largest - reference) * to_log2;  // a NaN while nothing is visible
      shrink = growth > 0.0f ? exp2_approx(-growth) : 1.0f;
      reference = limit = largest;
      subtracted = largest == -INFINITY ? 0.0f : largest * to_log2;
      sum *= shrink;
    }
    float parts[kParts] = {};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        logits[part][i] = exp2_approx(logits[part][i] * to_log2 - subtracted);
        parts[part] += logits[part][i];
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) sum += parts[part];
    if (outgrown) {
      const float slack = slack_of_sum(sum, RowState<B>::kMostSlack);
      limit = reference + slack * reciprocal_approx(to_log2);
    }
    return outgrown;
  }

  __device__ __forceinline__ void store_weights(const float (&weights)[kParts][32]) const {
#pragma unroll
    for (int first = 0; first < kParts; first += 2) {
      uint32_t words[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float(&of)[32] = weights[first + i / 16];
        words[i] = pack<typename B::T>(of[i % 16 * 2], of[i % 16 * 2 + 1]);
      }
      tcgen05_st32(logits_at + 16 * first, words);
    }
  }

  __device__ __forceinline__ void multiply_sums(float factor) const {
#pragma unroll
    for (int first = 0; first < B::kV; first += 32) {
      float sums[1][32];
      tcgen05_ld32(sums[0], out_at + first);
      tcgen05_wait_ld(sums);
      uint32_t words[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) words[i] = to_bits(sums[0][i] * factor);
      tcgen05_st32(out_at + first, words);
    }
  }

  __device__ __forceinline__ void take_tile(const typename B::Walk& walk, int32_t row,
                                            bool is_first) {
    mbarrier_wait(at.logits_full + 8 * half, num_tiles & 1);
    tcgen05_fence_after();
    float logits[kParts][32];
#pragma unroll
    for (int part = 0; part < kParts; ++part) tcgen05_ld32(logits[part], logits_at + 32 * part);
    tcgen05_wait_ld(logits);
    if (walk.is_masked != 0) hide(logits, walk, row);
    float shrink = 1.0f;
    const bool outgrown = take(logits, shrink);
    if (outgrown && !is_first) multiply_sums(shrink);
    store_weights(logits);
    tcgen05_wait_st();
    tcgen05_fence_before();
    mbarrier_arrive(at.weights_full + 8 * half);
    ++num_tiles;
  }

  /// Writes the row's results, whose sums are in tensor memory if it has any.
  __device__ __forceinline__ void write_row(const OwnedTile& tile, int32_t row, int32_t head,
                                            bool has_sums) const {
    const bool is_there = row < tile.end, is_empty = sum == 0.0f;
    const float factor = is_empty ? 0.0f : reciprocal_approx(sum);
    float* const to =
        static_cast<float*>(p.out) + row * p.out_row_stride + head * p.out_head_stride;
#pragma unroll
    for (int first = 0; first < B::kV; first += 32) {
      float sums[1][32] = {};
      if (has_sums) {
        tcgen05_ld32(sums[0], out_at + first);
        tcgen05_wait_ld(sums);
      }
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const uint32_t words[4] = {to_bits(sums[0][i] * factor), to_bits(sums[0][i + 1] * factor),
                                   to_bits(sums[0][i + 2] * factor),
                                   to_bits(sums[0][i + 3] * factor)};
        store_four_if(is_there && first + i < p.out_head_dim, to + first + i, words);
      }
    }
    store_if(is_there, p.lse + row * p.lse_row_stride + head,
             is_empty ? -INFINITY : reference * p.logit_scale + logf(sum));
    // The running maximum ignores NaNs, so the sum is checked.
    float most = is_there ? (sum != sum ? NAN : largest) : -INFINITY;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) most = max_or_nan(most, shuffle_xor(most, step));
    if (threadIdx.x % 32 == 0 && most != -INFINITY && p.max_logit != nullptr)
      atomic_max(p.max_logit + head, most * p.logit_scale);
  }

  __device__ __forceinline__ void run() {
    TileScheduler scheduler(at.scheduler);
    for (;;) {
      const ScheduledItem item = scheduler.read();
      if (item.is_last()) return;
      const int32_t row =
          item.tile.begin + half * B::kHalfRows + static_cast<int32_t>(threadIdx.x % kTensorLanes);
      largest = reference = limit = -INFINITY;
      subtracted = sum = 0.0f;
      const bool has_tiles = item.tile.num_tiles > 0;
      typename B::Walk walk(item);
      for (bool is_first = true; walk.next(p.tiles.runs); is_first = false)
        take_tile(walk, row, is_first);
      if (has_tiles) {
        mbarrier_wait(at.out_full + 8 * half, num_items & 1);
        ++num_items;
        tcgen05_fence_after();
      }
      write_row(item.tile, row, item.head, has_tiles);
    }
  }
};

template <class B>
__global__ void __launch_bounds__(B::kThreads, 1)
    attend_on_blackwell(const __grid_constant__ ForwardParams p) {
  const TensorShared<B> at;
  at.init();
  const int warp = shared_by_warp(threadIdx.x / 32);
  if (warp < 4) {
    yield_registers<B::kProducerRegisters>();
    if (threadIdx.x == 0) fetch_forward<B>(p, at);
    if (threadIdx.x == 32) ProductStarter<B>(at).run();
    if (warp == 2) TileScheduler(at.scheduler).schedule(p.tiles, p.counter);
  } else {
    claim_registers<B::kConsumerRegisters>();
    TensorConsumer<B>(p, at, warp / 4 - 1).run();
  }
  __syncwarp();  // single threads have loaded and multiplied
  __syncthreads();
  if (warp == 3) tcgen05_dealloc(TensorPlaces<B>(at).memory);
}

template <class T, int kHeadDim>
void launch_tensor_budget(const ForwardLaunch& launch, Stream stream) {
  using B = TensorBudget<T, kHeadDim>;
  const AttentionShape& shape = launch.shape;
  ForwardParams p = forward_params(launch);
  const int32_t qk = padded_lanes(shape.head_dim_qk), v = padded_lanes(shape.head_dim_v);
  make_row_map(p.q, launch.q, shape.dtype, shape.num_heads, qk, {B::kOwned});
  make_row_map(p.k, launch.k, shape.dtype, shape.num_kv_heads, qk, {B::kWalked});
  make_row_map(p.v, launch.v, shape.dtype, shape.num_kv_heads, v, {B::kWalked});
  p.logit_scale = shape.scale;
  constexpr auto kKernel = attend_on_blackwell<B>;
  const Grid grid(std::min(p.tiles.num_work, resident_ctas(kKernel, B::kThreads, B::kSharedBytes)));
  launch_kernel(kKernel, grid, B::kThreads, B::kSharedBytes, stream, p);
}

bool is_small_on_blackwell(const AttentionShape& shape) {
  return shape.head_dim_qk <= 64 && shape.head_dim_v <= 64;
}

template <class T>
void launch_tensor_head_dim(const ForwardLaunch& launch, Stream stream) {
  is_small_on_blackwell(launch.shape) ? launch_tensor_budget<T, 64>(launch, stream)
                                      : launch_tensor_budget<T, 128>(launch, stream);
}

}  // namespace
}  // namespace device

std::string why_not_blackwell_forward(const AttentionShape& shape) {
  if (shape.is_fp8 || (shape.dtype != Dtype::bf16 && shape.dtype != Dtype::fp16))
    return "the Blackwell forward takes bf16 and fp16 only";
  if (shape.is_latent) return "the Blackwell forward has no latent attention";
  if (shape.head_dim_qk > 128 || shape.head_dim_v > 128)
    return "the Blackwell forward supports head_dim up to 128";
  if (shape.softcap != 0.0f) return "the Blackwell forward has no softcap";
  if (!(shape.scale > 0.0f)) return "the Blackwell forward needs a scale above 0";
  return "";
}

TileShape blackwell_forward_tile_shape(const AttentionShape& /*shape*/) {
  using B = device::TensorBudget<Bf16, 128>;
  return {.owned_rows = B::kOwned, .walked_rows = B::kWalked};
}

void launch_blackwell_forward(const ForwardLaunch& launch, Stream stream) {
  CPSCOPE_CHECK(launch.out_element == Dtype::fp32 && launch.query_tiles.arrivals.flags == nullptr,
                "the Blackwell forward writes fp32 and takes whole inputs",
                static_cast<int>(launch.out_element), launch.query_tiles.arrivals.num_pieces);
  if (launch.query_tiles.num_work == 0) return;
  launch.shape.dtype == Dtype::bf16 ? device::launch_tensor_head_dim<Bf16>(launch, stream)
                                    : device::launch_tensor_head_dim<Fp16>(launch, stream);
}

}  // namespace cpscope::kernels
