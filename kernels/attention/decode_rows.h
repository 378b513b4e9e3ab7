#pragma once

#include "kernels/attention/forward_tiles.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/attention/packed_heads.h"
#include "kernels/device/device_code.h"
#include "kernels/device/fp8_values.h"
#include "kernels/device/merge_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

/// The end of a work item whose tile holds several heads of a query row, as in the forwards of
/// decode steps and of latent attention: sums of a CTA's warps, and of all parts of the keys, are
/// merged and written.
namespace cpscope::kernels::device {

/// Elements of a row of sums of P V: two more follow in memory, and rows begin in different banks.
constexpr int sum_lanes(int head_dim_v) { return head_dim_v + 4; }

/// Most sums that one CTA adds up at a time: parts of a bundle, or bundles.
inline constexpr int kPartsTogether = std::max(kPartsOfBundle, kPartCounters - 1);
static_assert(kPartsTogether <= 32, "one of each thread lane");

/// Tiles and shared memory of a kernel that is compiled for a GradientInstance, of codes if its T
/// is E4m3; kStackCount: stacks of 16 rows in a stationary tile.
template <class Instance, int kStackCount>
struct DecodeTiles {
  static constexpr bool kHasCodes = std::is_same_v<typename Instance::T, E4m3>;
  using Streamed = typename Instance::T;                          // of K and V
  using Operand = std::conditional_t<kHasCodes, Fp16, Streamed>;  // of products
  using T = std::conditional_t<kHasCodes, Bf16, Streamed>;        // of q and of results
  static constexpr int kElementBytes = int{sizeof(Streamed)};
  static constexpr int kQk = Instance::kQk;
  static constexpr int kV = Instance::kV;
  static constexpr int kStacks = kStackCount;
  static constexpr int kRows = 16 * kStacks;
  static constexpr int kWarps = kQk > 192 ? 2 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSumSets = kWarps;  // sums of the same rows in the shared memory
  static constexpr int kWarpKeys = kQk <= 64 ? 32 : 16;
  static constexpr int kWalkedRows = kWarps * kWarpKeys;
  // As many bytes are on their way with codes.
  static constexpr int kBuffers = kHasCodes ? 6 : kQk > 128 && kQk <= 192 ? 2 : 3;

  // Byte offsets into the shared memory.
  static constexpr int kStreams = 128;  // the next work item and the end of parts come first
  static constexpr int kKeyBytes = kWarpKeys * kQk * kElementBytes;
  static constexpr int kBufferBytes = kKeyBytes + kWarpKeys * kV * kElementBytes;
  static constexpr int kStreamBytes = kBuffers * kBufferBytes;  // of a warp

  // After the stream: the warps' sums, then what is known of each row.
  static constexpr int kSumLanes = sum_lanes(kV);
  static constexpr int kSums = kStreams;  // fp32 [warp][row][kSumLanes]
  static constexpr int kNotes = kSums + kWarps * kRows * kSumLanes * 4;  // [warp][row] of RowSum
  static constexpr int kEnds = kNotes + kWarps * kRows * 8;              // [row] of RowEnd
  static constexpr int kFactors = kEnds + kRows * 12;  // of parts, fp32 [row][kPartsTogether]
  static constexpr int kFactorBytes = kRows * kPartsTogether * 4;
  static constexpr int kSharedBytes =
      std::max(kStreams + kWarps * kStreamBytes, kFactors + kFactorBytes);
  static_assert(kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have no more for a CTA");
};

/// A row's largest logit, times log2(e), and the sum of its weights relative to it.
struct RowSum {
  float largest = -kInfinity;
  float sum = 0.0f;
};

/// Factors of a finished row: of its sums of P V, of the stored values before, and of its own.
struct RowEnd {
  float factor = 0.0f;
  float before = 0.0f;
  float added = 1.0f;
};

/// The factor from sums relative to `largest` to sums relative to `whole`.
__device__ __forceinline__ float rescale(float largest, float whole) {
  return whole == -kInfinity ? 0.0f : exp2_approx(largest - whole);
}

/// The sum of both, relative to the larger of the two largest logits.
__device__ __forceinline__ RowSum join(const RowSum& a, const RowSum& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * rescale(a.largest, largest) + b.sum * rescale(b.largest, largest)};
}

struct alignas(16) FourFloats {
  float values[4];
};

/// Launch parameters. heads: query heads of a KV head that a tile holds.
struct DecodeParams {
  ForwardLaunch launch;
  int32_t heads = 1;
  int32_t tile_rows = 1;  // of queries
  // fp8: of sums of weights times codes of v; the scale of results, 0: no cast.
  float value_factor = 1.0f;
  float out_scale = 0.0f;
  // fp8, read by the decode kernel: rows of codes; of sums of products; of weights before a cast.
  DeviceRows k_codes, v_codes;
  float logit_factor = 1.0f, weight_factor = 1.0f;
};

/// The rows of one CTA's work item, query rows times heads, and their sums in the shared memory and
/// in the workspace. All threads of the CTA call its functions together.
template <class Tiles>
class DecodeRows {
 public:
  using T = typename Tiles::T;

  __device__ __forceinline__ DecodeRows(const DecodeParams& params, uint8_t* shared,
                                        const WorkItem& item)
      : params_(params),
        launch_(params.launch),
        shared_(shared),
        item_(item),
        tile_(launch_.query_tiles.tiles[item.tile]),
        first_head_(item.head * params.heads),
        num_rows_((tile_.end - tile_.begin) * params.heads) {}

  __device__ __forceinline__ const OwnedTile& tile() const { return tile_; }
  __device__ __forceinline__ int32_t num_rows() const { return num_rows_; }
  __device__ __forceinline__ int32_t first_head() const { return first_head_; }  // local
  __device__ __forceinline__ int32_t query_of(int32_t row) const {
    return tile_.begin + row / params_.heads;
  }
  __device__ __forceinline__ int32_t head_of(int32_t row) const {
    return first_head_ + row % params_.heads;
  }

  /// Where the sums of a row are placed, and what is known of the rows; set: of Tiles::kSumSets.
  __device__ __forceinline__ float* sums_of(int32_t set, int32_t row) const {
    return reinterpret_cast<float*>(shared_ + Tiles::kSums) +
           (set * Tiles::kRows + row) * Tiles::kSumLanes;
  }
  __device__ __forceinline__ RowSum* notes_of(int32_t set) const {
    return reinterpret_cast<RowSum*>(shared_ + Tiles::kNotes) + set * Tiles::kRows;
  }

  /// After all warps have placed their sums, and a barrier.
  __device__ __forceinline__ void finish() const {
    if constexpr (Tiles::kSumSets > 1) merge_sets();
    const KeyPart part =
        launch_.query_tiles.parts == nullptr ? KeyPart{} : launch_.query_tiles.parts[item_.tile];
    if (part.count > 1 && !add_parts(part)) return;
    finish_rows();
    __syncthreads();
    store_rows();
  }

 private:
  static __device__ __forceinline__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

  __device__ __forceinline__ RowEnd* ends() const {
    return reinterpret_cast<RowEnd*>(shared_ + Tiles::kEnds);
  }

  __device__ __forceinline__ float* factors_of(int32_t row) const {
    return reinterpret_cast<float*>(shared_ + Tiles::kFactors) + row * kPartsTogether;
  }

  /// Calls visit(row, lane) for every row and every fourth lane, each in the same thread every
  /// time, so that a thread may read what it wrote in an earlier call without a barrier.
  template <class Visit>
  __device__ __forceinline__ void for_four_lanes(Visit visit) const {
    constexpr int32_t kFours = Tiles::kV / 4;
    for (int32_t i = thread(); i < num_rows_ * kFours; i += Tiles::kThreads)
      visit(i / kFours, i % kFours * 4);
  }

  /// Merges all sets of sums into the first one.
  __device__ __forceinline__ void merge_sets() const {
    const auto largest_of = [&](int32_t row) {
      float largest = notes_of(0)[row].largest;
#pragma unroll
      for (int set = 1; set < Tiles::kSumSets; ++set)
        largest = fmaxf(largest, notes_of(set)[row].largest);
      return largest;
    };
    for_four_lanes([&](int32_t row, int32_t lane) {
      const float largest = largest_of(row);
      float sums[4] = {};
#pragma unroll
      for (int set = 0; set < Tiles::kSumSets; ++set) {
        const float factor = rescale(notes_of(set)[row].largest, largest);
        const float* from = sums_of(set, row) + lane;
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] = fmaf(from[e], factor, sums[e]);
      }
      float* to = sums_of(0, row) + lane;
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = sums[e];
    });
    __syncthreads();
    if (thread() < num_rows_) {
      const float largest = largest_of(thread());
      float sum = 0.0f;
#pragma unroll
      for (int set = 0; set < Tiles::kSumSets; ++set)
        sum = fmaf(notes_of(set)[thread()].sum, rescale(notes_of(set)[thread()].largest, largest),
                   sum);
      notes_of(0)[thread()] = {largest, sum};
    }
  }

  /// Rows of a part in memory: fp32 [row of the tile][kV sums, the largest logit, the sum].
  __device__ __forceinline__ float* part_row(int32_t slot, int32_t row) const {
    const int32_t num_groups = launch_.shape.num_heads / params_.heads;
    const int64_t rows_of_part = int64_t{params_.tile_rows} * params_.heads;
    return launch_.parts +
           ((int64_t{slot} * num_groups + item_.head) * rows_of_part + row) * Tiles::kSumLanes;
  }

  /// Adds this part's sums to those of the others, by bundles, so that no CTA reads all of them.
  /// True in the CTA that ends last, which then has the sums of all keys.
  __device__ __forceinline__ bool add_parts(const KeyPart& part) const {
    const int32_t bundle = part.index / kPartsOfBundle, first = bundle * kPartsOfBundle;
    const int32_t bundles = (part.count + kPartsOfBundle - 1) / kPartsOfBundle;
    const int32_t size = part.count - first < kPartsOfBundle ? part.count - first : kPartsOfBundle;
    store_sums(part.first_slot + part.index);
    if (!ends_last(part, 1 + bundle, size)) return false;
    load_sums(part.first_slot + first, 1, size);
    if (bundles == 1) return true;
    store_sums(part.first_slot + first);
    if (!ends_last(part, 0, bundles)) return false;
    load_sums(part.first_slot, kPartsOfBundle, bundles);
    return true;
  }

  __device__ __forceinline__ void store_sums(int32_t slot) const {
    for_four_lanes([&](int32_t row, int32_t lane) {
      const float* from = sums_of(0, row) + lane;
      float* to = part_row(slot, row) + lane;
      store_pair(to, from[0], from[1]);
      store_pair(to + 2, from[2], from[3]);
    });
    if (thread() < num_rows_) {
      const RowSum& note = notes_of(0)[thread()];
      store_pair(part_row(slot, thread()) + Tiles::kV, note.largest, note.sum);
    }
  }

  /// True in the CTA that is the last one of `count` to come here; counter: of kPartCounters.
  __device__ __forceinline__ bool ends_last(const KeyPart& part, int32_t counter,
                                            int32_t count) const {
    auto* const is_last = reinterpret_cast<int32_t*>(shared_) + 2;
    fence_device();
    __syncthreads();
    if (thread() == 0) {
      const int32_t num_groups = launch_.shape.num_heads / params_.heads;
      int32_t* const done = launch_.parts_done +
                            (int64_t{part.counter} * num_groups + item_.head) * kPartCounters +
                            counter;
      const bool has_all = atomic_add(done, 1) == count - 1;
      if (has_all) *done = 0;  // for the next launch
      *is_last = has_all ? 1 : 0;
    }
    __syncthreads();
    fence_device();
    return *is_last != 0;
  }

  /// Adds up sums in memory, every `stride`th slot, in an order that is always the same. Many loads
  /// are in flight at once: each takes as long as a streamed tile.
  __device__ __forceinline__ void load_sums(int32_t first_slot, int32_t stride,
                                            int32_t count) const {
    for (int32_t row = thread() / 32; row < num_rows_; row += Tiles::kWarps) {
      const int32_t index = thread() % 32;
      RowSum note;
      if (index < count) {
        const float* from = part_row(first_slot + index * stride, row) + Tiles::kV;
        note = {from[0], from[1]};
      }
      RowSum whole = note;
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2)
        whole = join(whole, {shuffle_xor(whole.largest, mask), shuffle_xor(whole.sum, mask)});
      if (index == 0) notes_of(0)[row] = whole;
      if (index < count) factors_of(row)[index] = rescale(note.largest, whole.largest);
    }
    __syncthreads();
    for_four_lanes([&](int32_t row, int32_t lane) {
      float sums[4] = {};
#pragma unroll 8
      for (int32_t i = 0; i < count; ++i) {
        const float factor = factors_of(row)[i];
        const FourFloats four =
            *reinterpret_cast<const FourFloats*>(part_row(first_slot + i * stride, row) + lane);
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[e] = fmaf(four.values[e], factor, sums[e]);
      }
      float* to = sums_of(0, row) + lane;
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = sums[e];
    });
  }

  /// Writes lse, raises max_logit, and finds the factors of every row.
  __device__ __forceinline__ void finish_rows() const {
    const int32_t row = thread();
    if (row >= num_rows_) return;
    const RowSum note = notes_of(0)[row];
    const bool is_empty = note.sum == 0.0f;
    float lse = is_empty ? -kInfinity : (note.largest + log2f(note.sum)) * kLn2;
    float* const place = launch_.lse + query_of(row) * launch_.lse_row_stride + head_of(row);
    RowEnd end;
    end.factor = is_empty ? 0.0f : params_.value_factor / note.sum;
    if (launch_.merges) {
      const MergeWeights weights(*place, lse);
      end.before = weights.before;
      end.added = weights.added;
      lse = weights.lse;
    }
    *place = lse;
    ends()[row] = end;
    // A NaN in the sum shows a NaN among the scores; fmaxf would hide it.
    if (launch_.max_logit != nullptr && !is_empty)
      atomic_max(launch_.max_logit + head_of(row),
                 note.sum == note.sum ? note.largest * kLn2 : NAN);
  }

  __device__ __forceinline__ void store_rows() const {
    const int32_t lanes = (launch_.shape.head_dim_v + 7) / 8 * 8;
    const bool is_narrow = launch_.out_element != Dtype::fp32;
    for_four_lanes([&](int32_t row, int32_t lane) {
      if (lane >= lanes) return;
      const int64_t place =
          query_of(row) * launch_.out.row_stride + head_of(row) * launch_.out.head_stride + lane;
      const RowEnd end = ends()[row];
      const float* from = sums_of(0, row) + lane;
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) values[e] = from[e] * end.factor;
      if (params_.out_scale != 0.0f) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          values[e] = scale_to_fp8(Fp8Type::e4m3, values[e], params_.out_scale) / params_.out_scale;
      }
      if (is_narrow) {
        auto* to = reinterpret_cast<uint32_t*>(static_cast<T*>(launch_.out.data) + place);
        to[0] = pack<T>(values[0], values[1]);
        to[1] = pack<T>(values[2], values[3]);
        return;
      }
      float* to = static_cast<float*>(launch_.out.data) + place;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (launch_.merges) values[e] = merge_values(to[e], end.before, values[e], end.added);
        if (launch_.rounds) values[e] = to_float(from_float<T>(values[e]));
      }
      store_pair(to, values[0], values[1]);
      store_pair(to + 2, values[2], values[3]);
    });
  }

  const DecodeParams& params_;
  const ForwardLaunch& launch_;
  uint8_t* shared_;
  WorkItem item_;
  OwnedTile tile_;
  int32_t first_head_;
  int32_t num_rows_;
};

}  // namespace cpscope::kernels::device
