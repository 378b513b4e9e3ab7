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
/// decode steps and of latent attention: sums of a CTA's warps are merged, and results written; or,
/// where the item has a part of the keys, its sums (key_part_sums.h).
namespace cpscope::kernels::device {

/// Elements of a row of sums of P V: two more follow in memory, and rows begin in different banks.
template <int kHeadDimV>
inline constexpr int kSumLanesOf = kHeadDimV + 4;

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
  static constexpr int kStreams = 128;  // the next work item comes first
  static constexpr int kKeyBytes = kWarpKeys * kQk * kElementBytes;
  static constexpr int kBufferBytes = kKeyBytes + kWarpKeys * kV * kElementBytes;
  static constexpr int kStreamBytes = kBuffers * kBufferBytes;  // of a warp

  // After the stream: the warps' sums, then what is known of each row.
  static constexpr int kSumLanes = kSumLanesOf<kV>;
  static constexpr int kSums = kStreams;  // fp32 [warp][row][kSumLanes]
  static constexpr int kNotes = kSums + kWarps * kRows * kSumLanes * 4;  // [warp][row] of RowSum
  static constexpr int kEnds = kNotes + kWarps * kRows * int{sizeof(RowSum)};  // [row] of RowEnd
  static constexpr int kSharedBytes =
      std::max(kStreams + kWarps * kStreamBytes, kEnds + kRows * int{sizeof(RowEnd)});
  static_assert(kSharedBytes <= 99 * 1024, "sm_86 and sm_89 have no more for a CTA");
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

/// Rows of a part in memory: fp32 [part][group of heads][row of the tile][kV sums, the largest
/// logit, the sum]. lanes: kSumLanesOf.
__device__ __forceinline__ float* part_row(const DecodeParams& params, int32_t lanes, int32_t slot,
                                           int32_t group, int32_t row) {
  const int32_t num_groups = params.launch.shape.num_heads / params.heads;
  const int64_t rows_of_part = int64_t{params.tile_rows} * params.heads;
  return params.launch.parts + ((int64_t{slot} * num_groups + group) * rows_of_part + row) * lanes;
}

/// The place of a row's lse. query, head: local.
__device__ __forceinline__ float* lse_place(const ForwardLaunch& launch, int32_t query,
                                            int32_t head) {
  return launch.lse + query * launch.lse_row_stride + head;
}

/// A row's factors, and its lse.
__device__ __forceinline__ RowEnd end_row(const DecodeParams& params, int32_t query, int32_t head,
                                          const RowSum& note, float& lse) {
  const bool is_empty = note.sum == 0.0f;
  lse = is_empty ? -kInfinity : (note.largest + log2f(note.sum)) * kLn2;
  RowEnd end;
  end.factor = is_empty ? 0.0f : params.value_factor / note.sum;
  if (params.launch.merges) {
    const MergeWeights weights(*lse_place(params.launch, query, head), lse);
    end.before = weights.before;
    end.added = weights.added;
    lse = weights.lse;
  }
  return end;
}

/// The same; writes lse and raises max_logit.
__device__ __forceinline__ RowEnd finish_row(const DecodeParams& params, int32_t query,
                                             int32_t head, const RowSum& note) {
  const ForwardLaunch& launch = params.launch;
  float lse;
  const RowEnd end = end_row(params, query, head, note, lse);
  *lse_place(launch, query, head) = lse;
  // A NaN in the sum shows a NaN among the scores; fmaxf would hide it.
  if (launch.max_logit != nullptr && note.sum != 0.0f)
    atomic_max(launch.max_logit + head, note.sum == note.sum ? note.largest * kLn2 : NAN);
  return end;
}

/// Writes four numbers of a row of results, from its sums; T: the dtype.
template <class T>
__device__ __forceinline__ void store_row_four(const DecodeParams& params, int32_t query,
                                               int32_t head, int32_t lane, const float* sums,
                                               const RowEnd& end) {
  const ForwardLaunch& launch = params.launch;
  if (lane >= (launch.shape.head_dim_v + 7) / 8 * 8) return;
  const int64_t place = query * launch.out.row_stride + head * launch.out.head_stride + lane;
  float values[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) values[e] = sums[e] * end.factor;
  if (params.out_scale != 0.0f) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      values[e] = scale_to_fp8(Fp8Type::e4m3, values[e], params.out_scale) / params.out_scale;
  }
  if (launch.out_element != Dtype::fp32) {
    auto* to = reinterpret_cast<uint32_t*>(static_cast<T*>(launch.out.data) + place);
    to[0] = pack<T>(values[0], values[1]);
    to[1] = pack<T>(values[2], values[3]);
    return;
  }
  float* to = static_cast<float*>(launch.out.data) + place;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (launch.merges) values[e] = merge_values(to[e], end.before, values[e], end.added);
    if (launch.rounds) values[e] = to_float(from_float<T>(values[e]));
  }
  store_pair(to, values[0], values[1]);
  store_pair(to + 2, values[2], values[3]);
}

/// The rows of one CTA's work item, query rows times heads, and their sums in the shared memory and
/// in the workspace. The first Tiles::kThreads threads of the CTA call finish or store together.
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

  /// After all warps have placed their sums and what is known of the rows, and a barrier.
  __device__ __forceinline__ void finish() const {
    if constexpr (Tiles::kSumSets > 1) merge_sets();
    if (thread() < Tiles::kRows) end(thread(), notes_of(0)[thread()]);
    __syncthreads();
    store();
  }

  /// One thread, of a row of the tile: writes its lse, or what is known of it in this part.
  __device__ __forceinline__ void end(int32_t row, const RowSum& note) const {
    if (row >= num_rows_) return;
    const KeyPart part = this->part();
    if (part.count > 1) {
      store_pair(place_of(part, row) + Tiles::kV, note.largest, note.sum);
    } else {
      ends()[row] = finish_row(params_, query_of(row), head_of(row), note);
    }
  }

  /// Writes the sums of P V, after `end` of all rows and a barrier.
  __device__ __forceinline__ void store() const {
    const KeyPart part = this->part();
    for_four_lanes([&](int32_t row, int32_t lane) {
      const float* from = sums_of(0, row) + lane;
      if (part.count > 1) {
        float* to = place_of(part, row) + lane;
        store_pair(to, from[0], from[1]);
        store_pair(to + 2, from[2], from[3]);
      } else {
        store_row_four<T>(params_, query_of(row), head_of(row), lane, from, ends()[row]);
      }
    });
  }

 private:
  static __device__ __forceinline__ int32_t thread() { return static_cast<int32_t>(threadIdx.x); }

  __device__ __forceinline__ RowEnd* ends() const {
    return reinterpret_cast<RowEnd*>(shared_ + Tiles::kEnds);
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

  __device__ __forceinline__ KeyPart part() const {
    return launch_.query_tiles.parts == nullptr ? KeyPart{} : launch_.query_tiles.parts[item_.tile];
  }
  __device__ __forceinline__ float* place_of(const KeyPart& part, int32_t row) const {
    return part_row(params_, Tiles::kSumLanes, part.first_slot + part.index, item_.head, row);
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
