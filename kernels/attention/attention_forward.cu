#include "kernels/attention/attention_forward.h"
#include "kernels/attention/forward_tiles.h"
#include "kernels/attention/gradient_dims.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/device/launch.h"
#include "kernels/device/work_items.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

// Forward of one compute item, 16-bit inputs.
//
// Grid: as many CTAs as fit the device at once; each fetches work items (query tile x head) with a
// counter until none is left. 128 threads: each of the 4 warps computes 32 query rows (16 if
// head_dim_v exceeds 128) and streams all keys of the tile. K and V are read in tiles of 64 rows
// (32 above head_dim 128) by asynchronous copies into two buffers each, one tile ahead; the scores
// never leave registers.
//
// Shared memory: 48 KiB (head_dim 64), 96 KiB (128), 88 KiB (192 / 128), 96 KiB (256), so that two
// CTAs fit an SM of sm_90. Registers: at most 255, no spills up to head_dim_qk 192, head_dim_v 128.
// Numbers: products in T, sums in fp32, softmax in base 2 and fp32, weights rounded to T before the
// product with V. Accuracy: besides the rounding of inputs to T, that of the weights, 2^-9 (bf16)
// of a row's mean |v| (tests/kernels/attention/attention_forward_test.cpp). Source:
// FlashAttention-2, Dao 2023 (arXiv:2307.08691), alg. 1; fetching work with a counter and key
// ranges per row are our own.

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kThreads = 128;
constexpr int kCtasPerSm = 2;

/// Tiles and shared memory of a kernel that is compiled for a GradientInstance.
template <class Instance>
struct ForwardTiles {
  using T = typename Instance::T;
  static constexpr int kQk = Instance::kQk;
  static constexpr int kV = Instance::kV;
  static constexpr int kStacks = kV <= 128 ? 2 : 1;  // of 16 rows that a warp computes
  static constexpr int kOwnedRows = kThreads / 32 * 16 * kStacks;
  // The cap needs registers that head_dim 128 with 64 keys does not leave.
  static constexpr int kWalkedRows = kQk <= (Instance::kIsCapped ? 64 : 128) ? 64 : 32;

  // Byte offsets into the shared memory.
  static constexpr int kQueries = 128;  // the next work items come first
  static constexpr int kKeys = kQueries + kOwnedRows * kQk * 2;
  static constexpr int kKeyBytes = kWalkedRows * kQk * 2;
  static constexpr int kValues = kKeys + 2 * kKeyBytes;
  static constexpr int kValueBytes = kWalkedRows * kV * 2;
  static constexpr int kSharedBytes = kValues + 2 * kValueBytes;
  static_assert(kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have no more for a CTA");
};

/// One warp's part of a work item.
template <class Instance>
class ForwardWarp {
 public:
  using Tiles = ForwardTiles<Instance>;
  using T = typename Tiles::T;
  using Running = RunningRows<T, Tiles::kStacks, Tiles::kV>;

  __device__ __forceinline__ ForwardWarp(const ForwardLaunch& launch, uint32_t shared,
                                         const WorkItem& item)
      : launch_(launch),
        shared_(shared),
        head_(item.head),
        tile_(launch.query_tiles.tiles[item.tile]),
        logits_(launch.shape) {
    const AttentionShape& shape = launch.shape;
    const int32_t kv_head = (shape.first_head + head_) / shape.group - shape.first_kv_head;
    keys_ = rows_of_head<T>(launch.k, kv_head, shape.head_dim_qk);
    values_ = rows_of_head<T>(launch.v, kv_head, shape.head_dim_v);
    running_.clear();
  }

  /// All threads of the CTA call it together.
  __device__ __forceinline__ void run() {
    TileWalk<Tiles::kWalkedRows> walk(launch_.query_tiles.runs + tile_.first_run, tile_.num_runs,
                                      head_, head_ + 1);
    WalkedTile walked, following;
    bool goes_on = walk.next(walked);
    if (goes_on) {
      copy_queries();
      copy_keys_and_values(walked, 0);
    }
    copy_async_commit();
    for (int buffer = 0; goes_on; buffer ^= 1) {
      copy_async_wait<0>();
      // The tile has arrived for all warps, and all of them are done with the other buffer.
      __syncthreads();
      goes_on = walk.next(following);
      if (goes_on) copy_keys_and_values(following, buffer ^ 1);
      copy_async_commit();
      visit(walked, buffer);
      walked = following;
    }
    store();
  }

 private:
  /// Row of the item's query buffer for row r of this thread lane.
  __device__ __forceinline__ int32_t row_of(int r) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    return tile_.begin + thread / 32 * (16 * Tiles::kStacks) + r / 2 * 16 + r % 2 * 8 +
           thread % 32 / 4;
  }

  __device__ __forceinline__ void copy_queries() {
    copy_rows<Tiles::kOwnedRows, Tiles::kQk, kThreads>(
        shared_ + Tiles::kQueries, rows_of_head<T>(launch_.q, head_, launch_.shape.head_dim_qk),
        tile_.begin, tile_.end);
  }

  __device__ __forceinline__ void copy_keys_and_values(const WalkedTile& walked, int buffer) {
    copy_rows<Tiles::kWalkedRows, Tiles::kQk, kThreads>(
        shared_ + Tiles::kKeys + buffer * Tiles::kKeyBytes, keys_, walked.begin, walked.end);
    copy_rows<Tiles::kWalkedRows, Tiles::kV, kThreads>(
        shared_ + Tiles::kValues + buffer * Tiles::kValueBytes, values_, walked.begin, walked.end);
  }

  __device__ __forceinline__ void visit(const WalkedTile& walked, int buffer) {
    float scores[Tiles::kStacks][Tiles::kWalkedRows / 8][4];
    multiply_with_keys(scores, buffer);
    logits_.apply(scores);
    if (walked.is_masked) hide(scores, walked);
    running_.weigh(scores, logits_.unit_log2);
    running_.add_values(
        scores, along_rows<Tiles::kV>(shared_ + Tiles::kValues + buffer * Tiles::kValueBytes));
  }

  __device__ __forceinline__ void multiply_with_keys(
      float (&scores)[Tiles::kStacks][Tiles::kWalkedRows / 8][4], int buffer) {
    const auto queries = along_rows<Tiles::kQk>(
        shared_ + Tiles::kQueries + threadIdx.x / 32 * (16 * Tiles::kStacks) * Tiles::kQk * 2);
    const auto keys = along_lanes<Tiles::kQk>(shared_ + Tiles::kKeys + buffer * Tiles::kKeyBytes);
    set_to_zero(scores);
#pragma unroll
    for (int step = 0; step < Tiles::kQk / 16; ++step) {
      uint32_t a[Tiles::kStacks][4];
#pragma unroll
      for (int stack = 0; stack < Tiles::kStacks; ++stack)
        load_matrix_x4(a[stack], queries.at(16 * stack, step));
#pragma unroll
      for (int i = 0; i < Tiles::kWalkedRows / 16; ++i) {
        uint32_t b[4];
        load_matrix_x4(b, keys.at(16 * i, step));
#pragma unroll
        for (int stack = 0; stack < Tiles::kStacks; ++stack) {
          multiply_add<T>(scores[stack][2 * i], a[stack], b[0], b[1]);
          multiply_add<T>(scores[stack][2 * i + 1], a[stack], b[2], b[3]);
        }
      }
    }
  }

  /// Replaces the scores of invisible pairs, whatever they are, without arithmetic on them.
  __device__ __forceinline__ void hide(float (&scores)[Tiles::kStacks][Tiles::kWalkedRows / 8][4],
                                       const WalkedTile& walked) {
    const KeyRange* ranges =
        launch_.query_tiles.ranges + int64_t{walked.range_set} * launch_.shape.q_rows;
    const int32_t first_key = walked.begin + static_cast<int32_t>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int r = 0; r < Running::kRows; ++r) {
      const KeyRange seen = row_of(r) < tile_.end ? ranges[row_of(r)] : KeyRange{};
      hide_row(scores, r, seen, first_key, walked.end);
    }
  }

  /// Writes out and lse of the rows that exist, and raises max_logit.
  __device__ __forceinline__ void store() {
    constexpr float kLn2 = 0.693147181f;
    float largest = -kInfinity;
#pragma unroll
    for (int r = 0; r < Running::kRows; ++r) {
      const float sum = running_.whole_sum(r);
      const int32_t row = row_of(r);
      if (row >= tile_.end) continue;
      const bool is_empty = sum == 0.0f;
      float* out = static_cast<float*>(launch_.out.data) + row * launch_.out.row_stride +
                   head_ * launch_.out.head_stride;
      const float factor = is_empty ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int j = 0; j < Tiles::kV / 8; ++j) {
        if (8 * j >= launch_.shape.head_dim_v) break;
        const float(&four)[4] = running_.out[r / 2][j];
        store_pair(out + 8 * j + threadIdx.x % 4 * 2, four[r % 2 * 2] * factor,
                   four[r % 2 * 2 + 1] * factor);
      }
      if (threadIdx.x % 4 == 0)
        launch_.lse[row * launch_.lse_row_stride + head_] =
            is_empty ? -kInfinity : (running_.largest[r] + log2f(sum)) * kLn2;
      // A NaN in the sum shows a NaN among the scores; fmaxf would hide it.
      const bool is_number = sum == sum && largest == largest;
      largest = is_number ? fmaxf(largest, running_.largest[r] * kLn2) : sum + largest;
    }
    raise_max_logit(largest);
  }

  __device__ __forceinline__ void raise_max_logit(float largest) {
    const bool has_nan = any_in_warp(largest != largest);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
    if (threadIdx.x % 32 != 0 || (largest == -kInfinity && !has_nan)) return;
    atomic_max(launch_.max_logit + head_, has_nan ? NAN : largest);
  }

  const ForwardLaunch& launch_;
  uint32_t shared_;
  int32_t head_;
  OwnedTile tile_;
  Logits<Instance::kIsCapped> logits_;
  HeadRows<T> keys_, values_;
  Running running_;
};

template <class Instance>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    attention_forward(const __grid_constant__ ForwardLaunch launch) {
  auto* fetched = reinterpret_cast<int32_t*>(dynamic_shared());
  for_each_work_item(launch.counter, launch.query_tiles.num_work, fetched,
                     [&](int32_t work, const auto& draw) {
                       draw();
                       ForwardWarp<Instance>(launch, shared_address(dynamic_shared()),
                                             launch.query_tiles.work[work])
                           .run();
                     });
}

}  // namespace

TileShape portable_forward_tile(const AttentionShape& shape) {
  return with_gradient_instance(shape, [](auto instance) {
    using Tiles = ForwardTiles<decltype(instance)>;
    return TileShape{Tiles::kOwnedRows, Tiles::kWalkedRows};
  });
}

void launch_portable_forward(const ForwardLaunch& launch, Stream stream) {
  if (launch.query_tiles.num_work == 0) return;
  with_gradient_instance(launch.shape, [&](auto instance) {
    using Instance = decltype(instance);
    constexpr int32_t kSharedBytes = ForwardTiles<Instance>::kSharedBytes;
    const int32_t resident = resident_ctas(attention_forward<Instance>, kThreads, kSharedBytes);
    launch_kernel(attention_forward<Instance>, std::min(resident, launch.query_tiles.num_work),
                  kThreads, kSharedBytes, stream, launch);
  });
}

}  // namespace cpscope::kernels
