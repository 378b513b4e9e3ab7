// dk and dv of one compute item, inputs in bf16 or fp16.
//
// A CTA takes one work item: a stationary tile of key rows of one KV head. A warp has 16 of the
// rows. The query rows that see them are streamed tile by tile, for all query heads of the item
// that read the KV head; the next tile is copied while this one is used:
//   S^T = K Q^T, P^T = exp2(S^T scale log2(e) - log2_lse), dV += P^T dO,
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), dK += dS^T Q
// K's operands stay in registers if they fit, V's in shared memory. P and dS never leave registers;
// both are rounded to the inputs' type, all sums are fp32. The scale of dK is applied once at the
// end. Every stationary row is written by one CTA, in a fixed order. At head_dim 256 two CTAs share
// a work item, one makes dK and one dV, because both sums do not fit.
//
// Grid: one CTA per work item (head_dim 256: two), longest first. Block: 256 threads, 128 above
// head_dim 128. Shared memory: V, often K, and two stages of Q and dO, 50 to 99 KB. Registers: 255
// a thread. Source: FlashAttention-2 (arXiv:2307.08691), alg. 2.
#include "kernels/attention/gradient_dims.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/attention/key_gradient.h"
#include "kernels/device/launch.h"

#include <cstring>

namespace cpscope::kernels {
namespace device {
namespace {

template <class Instance>
struct KeyGradient : Instance {
  using Instance::kQk;
  using Instance::kV;
  static constexpr bool kIsWide = kQk > 192;
  static constexpr bool kHoldsKeys = kQk != 192;  // K's operands in registers
  static constexpr int kOwned = kQk > 128 ? 64 : 128;
  static constexpr int kWalked = kQk > 128 ? 32 : 64;
  static constexpr bool kIsTight = kIsWide || (Instance::kIsCapped && kQk > 64);
  static constexpr int kColumns = kIsTight ? 16 : 32;  // queries at a time
  static constexpr int kThreads = kOwned * 2;
  static constexpr int kCtasPerItem = kIsWide ? 2 : 1;
  static constexpr int kCtasPerSm = kQk > 128 ? 2 : 1;
  static constexpr int kValueBytes = kOwned * kV * 2;
  static constexpr int kOwnedBytes = kValueBytes + (kHoldsKeys ? 0 : kOwned * kQk * 2);
  static constexpr int kQueryBytes = kWalked * kQk * 2;
  static constexpr int kTileBytes = kQueryBytes + kWalked * kV * 2;
  // Four numbers for each query row; one thread fetches one.
  static constexpr int kStageBytes = kTileBytes + kWalked * 16;
  static constexpr int kSharedBytes = kOwnedBytes + 2 * kStageBytes;
  static_assert(kWalked * 4 == kThreads);
  static_assert(kSharedBytes <= 99 * 1024, "more than a CTA of sm_86 and sm_89 may have");
};

/// State of a thread lane for its two rows.
template <class Kernel>
struct OwnedKeys {
  uint32_t k[Kernel::kHoldsKeys ? Kernel::kQk / 16 : 1][4];
  FragmentAddress<Kernel::kQk> key_tile;  // of K in shared memory
  FragmentAddress<Kernel::kV> value_tile;
  int32_t rows[2];
};

/// Columns of a stage: the numbers of a query row besides q and d_out.
template <int kRows>
struct RowNumbers {
  float log2_lse[kRows];
  float delta[kRows];
  int32_t lo[kRows];  // keys that the row sees
  int32_t hi[kRows];
};

template <class Kernel>
__device__ __forceinline__ void load_keys(const BackwardLaunch& launch, const OwnedTile& tile,
                                          int32_t kv_head, uint32_t shared,
                                          OwnedKeys<Kernel>& own) {
  using T = typename Kernel::T;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const HeadRows<T> k = rows_of_head<T>(launch.k, kv_head, launch.shape.head_dim_qk);
  const HeadRows<T> v = rows_of_head<T>(launch.v, kv_head, launch.shape.head_dim_v);
  for (int i = 0; i < 2; ++i) own.rows[i] = tile.begin + warp * 16 + lane / 4 + 8 * i;
  copy_tile<Kernel::kOwned, Kernel::kV, Kernel::kThreads>(shared, v, tile.begin, tile.end);
  own.value_tile = along_rows<Kernel::kV>(shared + warp * 16 * Kernel::kV * 2);
  if constexpr (Kernel::kHoldsKeys) {
    load_operands<Kernel::kQk>(own.k, k, own.rows, tile.end);
  } else {
    const uint32_t keys = shared + Kernel::kValueBytes;
    copy_tile<Kernel::kOwned, Kernel::kQk, Kernel::kThreads>(keys, k, tile.begin, tile.end);
    own.key_tile = along_rows<Kernel::kQk>(keys + warp * 16 * Kernel::kQk * 2);
  }
}

template <class Kernel>
__device__ __forceinline__ void copy_queries(const BackwardLaunch& launch, const WalkedTile& tile,
                                             uint32_t stage) {
  using T = typename Kernel::T;
  copy_tile<Kernel::kWalked, Kernel::kQk, Kernel::kThreads>(
      stage, rows_of_head<T>(launch.q, tile.head, launch.shape.head_dim_qk), tile.begin, tile.end);
  copy_tile<Kernel::kWalked, Kernel::kV, Kernel::kThreads>(
      stage + Kernel::kQueryBytes,
      rows_of_head<T>(launch.d_out, tile.head, launch.shape.head_dim_v), tile.begin, tile.end);
}

/// The bits of the number that this thread fetches for its tile, in the order of RowNumbers. Rows
/// outside the tile get numbers that make their weight zero.
template <class Kernel>
__device__ __forceinline__ uint32_t load_row_number(const BackwardLaunch& launch,
                                                    const WalkedTile& tile) {
  const int32_t role = threadIdx.x / Kernel::kWalked;
  const int32_t row = tile.begin + static_cast<int32_t>(threadIdx.x) % Kernel::kWalked;
  const int64_t q_rows = launch.shape.q_rows;
  const KeyRange* range = launch.key_tiles.ranges + tile.range_set * q_rows + row;
  const float* statistic = (role == 0 ? launch.log2_lse : launch.delta) + tile.head * q_rows + row;
  const void* from =
      role >= 2 ? static_cast<const void*>(role == 2 ? &range->lo : &range->hi) : statistic;
  constexpr uint32_t kInfinityBits = 0x7f800000;
  uint32_t bits = role == 0 ? kInfinityBits : 0;
  if (row < tile.end) memcpy(&bits, from, sizeof bits);
  return bits;
}

/// P^T from S^T, times the cap's slope in `s`, and without it in `p` (rounded). first: first query
/// of these columns in the stage.
template <class Kernel, bool kIsMasked>
__device__ __forceinline__ uint32_t weigh_columns(const RowNumbers<Kernel::kWalked>& numbers,
                                                  const Softmax<Kernel::kIsCapped>& softmax,
                                                  const int32_t (&rows)[2], int first,
                                                  float (&s)[Kernel::kColumns / 8][4],
                                                  uint32_t (&p)[Kernel::kColumns / 16][4]) {
  uint32_t visible = ~0u;
  float slope[Kernel::kColumns / 8][4];
#pragma unroll
  for (int i = 0; i < Kernel::kColumns / 2; ++i) {
    const int column = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const int32_t key = rows[i % 4 / 2];
    const Weight weight = softmax.weigh(s[i / 4][i % 4], numbers.log2_lse[column]);
    const bool is_visible = !kIsMasked || (key >= numbers.lo[column] && key < numbers.hi[column]);
    if (!is_visible) visible &= ~(1u << i);
    // Selected, not multiplied: a row that no query sees may hold NaN.
    s[i / 4][i % 4] = is_visible ? weight.probability : 0.0f;
    slope[i / 4][i % 4] = weight.slope;
  }
  pack_operands<typename Kernel::T, Kernel::kColumns>(p, s);
#pragma unroll
  for (int i = 0; i < Kernel::kColumns / 2; ++i) s[i / 4][i % 4] *= slope[i / 4][i % 4];
  return visible;
}

/// Adds the contribution of kColumns queries, from row `first` of the stage on, to dk and dv.
template <class Kernel, bool kIsMasked, bool kMakesKeys, bool kMakesValues>
__device__ __forceinline__ void add_queries(const OwnedKeys<Kernel>& own,
                                            const Softmax<Kernel::kIsCapped>& softmax,
                                            const RowNumbers<Kernel::kWalked>& numbers,
                                            uint32_t stage, int first,
                                            float (&dk)[Kernel::kQk / 8][4],
                                            float (&dv)[Kernel::kV / 8][4]) {
  using T = typename Kernel::T;
  constexpr int kColumns = Kernel::kColumns;
  const uint32_t queries = stage + first * Kernel::kQk * 2;
  const uint32_t d_outs = stage + Kernel::kQueryBytes + first * Kernel::kV * 2;
  float s[kColumns / 8][4];
  if constexpr (Kernel::kHoldsKeys) {
    multiply<T, Kernel::kQk, kColumns>(s, own.k, along_lanes<Kernel::kQk>(queries));
  } else {
    multiply<T, Kernel::kQk, kColumns>(s, own.key_tile, along_lanes<Kernel::kQk>(queries));
  }
  uint32_t operands[kColumns / 16][4];
  const uint32_t visible =
      weigh_columns<Kernel, kIsMasked>(numbers, softmax, own.rows, first, s, operands);
  if constexpr (kMakesValues)
    accumulate<T, Kernel::kV, kColumns>(dv, operands, along_rows<Kernel::kV>(d_outs));
  if constexpr (kMakesKeys) {
    float d_p[kColumns / 8][4];
    multiply<T, Kernel::kV, kColumns>(d_p, own.value_tile, along_lanes<Kernel::kV>(d_outs));
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = first + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const float d_s = s[i / 4][i % 4] * (d_p[i / 4][i % 4] - numbers.delta[column]);
      s[i / 4][i % 4] = !kIsMasked || (visible >> i & 1) != 0 ? d_s : 0.0f;
    }
    pack_operands<T, kColumns>(operands, s);
    accumulate<T, Kernel::kQk, kColumns>(dk, operands, along_rows<Kernel::kQk>(queries));
  }
}

template <class Kernel, bool kMakesKeys, bool kMakesValues>
__device__ __forceinline__ void make_key_gradient(const BackwardLaunch& launch,
                                                  const WorkItem& work) {
  const AttentionShape& shape = launch.shape;
  const OwnedTile tile = launch.key_tiles.tiles[work.tile];
  uint8_t* const shared = dynamic_shared();
  // Query heads of the item that read this KV head.
  const int32_t group_begin = (shape.first_kv_head + work.head) * shape.group - shape.first_head;
  const int32_t group_end = group_begin + shape.group;
  TileWalk<Kernel::kWalked> walk(launch.key_tiles.runs + tile.first_run, tile.num_runs,
                                 group_begin < 0 ? 0 : group_begin,
                                 group_end < shape.num_heads ? group_end : shape.num_heads);
  OwnedKeys<Kernel> own;
  load_keys<Kernel>(launch, tile, work.head, shared_address(shared), own);
  WalkedTile now, next;
  bool has_tile = walk.next(now);
  int32_t stage = Kernel::kOwnedBytes;
  if (has_tile) {
    copy_queries<Kernel>(launch, now, shared_address(shared + stage));
    const uint32_t bits = load_row_number<Kernel>(launch, now);
    memcpy(shared + stage + Kernel::kTileBytes + threadIdx.x * 4, &bits, sizeof bits);
  }
  copy_async_commit();

  const Softmax<Kernel::kIsCapped> softmax(shape);
  float dk[Kernel::kQk / 8][4] = {}, dv[Kernel::kV / 8][4] = {};
  while (has_tile) {
    // This tile has arrived, and all threads have read the other stage.
    copy_async_wait<0>();
    __syncthreads();
    const bool has_next = walk.next(next);
    const int32_t other = 2 * Kernel::kOwnedBytes + Kernel::kStageBytes - stage;
    uint32_t bits = 0;
    if (has_next) {
      copy_queries<Kernel>(launch, next, shared_address(shared + other));
      bits = load_row_number<Kernel>(launch, next);
    }
    copy_async_commit();
    const auto& numbers =
        *reinterpret_cast<const RowNumbers<Kernel::kWalked>*>(shared + stage + Kernel::kTileBytes);
    const uint32_t address = shared_address(shared + stage);
#pragma unroll 1
    for (int first = 0; first < Kernel::kWalked; first += Kernel::kColumns) {
      if (now.begin + first >= now.end) break;
      if (now.is_masked) {
        add_queries<Kernel, true, kMakesKeys, kMakesValues>(own, softmax, numbers, address, first,
                                                            dk, dv);
      } else {
        add_queries<Kernel, false, kMakesKeys, kMakesValues>(own, softmax, numbers, address, first,
                                                             dk, dv);
      }
    }
    memcpy(shared + other + Kernel::kTileBytes + threadIdx.x * 4, &bits, sizeof bits);
    now = next;
    has_tile = has_next;
    stage = other;
  }
  copy_async_wait<0>();
  if constexpr (kMakesKeys) {
    store_rows<Kernel::kQk>(launch.dk, work.head, shape.head_dim_qk, dk, own.rows, tile.end,
                            shape.scale);
  }
  if constexpr (kMakesValues) {
    store_rows<Kernel::kV>(launch.dv, work.head, shape.head_dim_v, dv, own.rows, tile.end, 1.0f);
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kCtasPerSm)
    key_gradient(const __grid_constant__ BackwardLaunch launch) {
  const WorkItem work = launch.key_tiles.work[blockIdx.x / Kernel::kCtasPerItem];
  if constexpr (Kernel::kCtasPerItem == 1) {
    make_key_gradient<Kernel, true, true>(launch, work);
  } else if (blockIdx.x % 2 == 0) {
    make_key_gradient<Kernel, true, false>(launch, work);
  } else {
    make_key_gradient<Kernel, false, true>(launch, work);
  }
}

}  // namespace
}  // namespace device

TileShape portable_key_gradient_tile(const AttentionShape& shape) {
  return with_gradient_instance(shape, [](auto instance) {
    using Kernel = device::KeyGradient<decltype(instance)>;
    return TileShape{Kernel::kOwned, Kernel::kWalked};
  });
}

void launch_portable_key_gradient(const BackwardLaunch& launch, Stream stream) {
  if (launch.key_tiles.num_work == 0) return;
  with_gradient_instance(launch.shape, [&](auto instance) {
    using Kernel = device::KeyGradient<decltype(instance)>;
    launch_kernel(device::key_gradient<Kernel>, launch.key_tiles.num_work * Kernel::kCtasPerItem,
                  Kernel::kThreads, Kernel::kSharedBytes, stream, launch);
  });
}

}  // namespace cpscope::kernels
