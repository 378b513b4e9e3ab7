#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/softcap.h"
#include "kernels/device/tensor_core.h"

#include <cstdint>
#include <limits>

/// Code that the two 16-bit gradient kernels share: tiles in shared memory, products of a warp's 16
/// rows with a tile, and the iteration over the streamed tiles of a work item.
///
/// A warp's 16 x n results have the layout of multiply_add(): in c[j][e], thread lane l has row
/// l / 4 + 8 (e / 2), column 8 j + 2 (l % 4) + e % 2.
namespace cpscope::kernels::device {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Rows of one head in device memory.
template <class T>
struct HeadRows {
  const T* first = nullptr;
  int64_t stride = 0;
  int32_t lanes = 0;  // elements of a row in memory: padded_lanes() of the head
};

template <class T>
__device__ __forceinline__ HeadRows<T> rows_of_head(const DeviceRows& rows, int32_t head,
                                                    int32_t head_dim) {
  return {static_cast<const T*>(rows.data) + head * rows.head_stride, rows.row_stride,
          (head_dim + 7) / 8 * 8};
}

/// Starts copying rows [begin, begin + kRows) to a tile with kLanes elements a row. Rows from `end`
/// on and elements past the head's become 0 and are not read. Group g (16 bytes) of row r is stored
/// at place g ^ (r % 8), so that the eight rows which ldmatrix reads at once are in different
/// banks.
template <int kRows, int kLanes, int kThreads, class T>
__device__ __forceinline__ void copy_tile(uint32_t tile, const HeadRows<T>& from, int32_t begin,
                                          int32_t end) {
  constexpr int kGroups = kLanes / 8;
  static_assert(kGroups % 8 == 0 && kRows * kGroups % kThreads == 0);
  // Not unrolled: the saved address registers are worth more than the loop costs.
#pragma unroll 1
  for (int i = 0; i < kRows * kGroups / kThreads; ++i) {
    const int32_t number = i * kThreads + static_cast<int32_t>(threadIdx.x);
    const int32_t row = number / kGroups, group = number % kGroups;
    copy_async_16(tile + row * kLanes * 2 + ((group ^ (row & 7)) * 16),
                  from.first + (begin + row) * from.stride + group * 8,
                  begin + row < end && group * 8 < from.lanes);
  }
}

/// Address of a thread lane for ldmatrix in a tile with kLanes elements a row.
template <int kLanes>
struct FragmentAddress {
  uint32_t row = 0;      // the thread lane's row, in bytes
  uint32_t swizzle = 0;  // bytes

  /// Address for rows [first_row, first_row + 16), elements [16 step, 16 step + 16).
  __device__ __forceinline__ uint32_t at(int first_row, int step) const {
    return row + first_row * kLanes * 2 + step / 4 * 128 + ((step % 4 * 32) ^ swizzle);
  }
};

/// Addresses of b operands that are summed along head_dim: registers 0, 1 are b0, b1 of the first
/// eight rows, registers 2, 3 those of the second eight.
template <int kLanes>
__device__ __forceinline__ FragmentAddress<kLanes> along_lanes(uint32_t tile) {
  const uint32_t lane = threadIdx.x % 32;
  return {tile + (lane % 8 + lane / 16 * 8) * kLanes * 2, (lane / 8 % 2 ^ lane % 8) * 16};
}

/// Addresses of a operands, and with a transposing load of b operands that are summed along rows:
/// registers 0, 1 are b0, b1 of the first eight head_dim elements.
template <int kLanes>
__device__ __forceinline__ FragmentAddress<kLanes> along_rows(uint32_t tile) {
  const uint32_t lane = threadIdx.x % 32;
  return {tile + lane % 16 * kLanes * 2, (lane / 16 ^ lane % 8) * 16};
}

/// Loads the a operands of 16 rows straight from device memory; `rows` are those of the calling
/// thread lane. Rows from `end` on become 0 and are not read.
template <int kLanes, class T>
__device__ __forceinline__ void load_operands(uint32_t (&a)[kLanes / 16][4],
                                              const HeadRows<T>& from, const int32_t (&rows)[2],
                                              int32_t end) {
#pragma unroll
  for (int i = 0; i < kLanes / 4; ++i) {
    const int32_t row = rows[i % 2];
    const int32_t lane = i / 2 * 8 + static_cast<int32_t>(threadIdx.x) % 4 * 2;
    const bool is_there = row < end && lane < from.lanes;
    const T* pair = from.first + row * from.stride + lane;
    a[i / 4][i % 4] =
        is_there ? pair[0].bits | static_cast<uint32_t>(pair[1].bits) << 16 : uint32_t{0};
  }
}

/// c += a b^T: one step of 16 head_dim elements, b of kColumns rows.
template <class T, int kLanes, int kColumns>
__device__ __forceinline__ void multiply_step(float (&c)[kColumns / 8][4], const uint32_t (&a)[4],
                                              const FragmentAddress<kLanes>& b, int step) {
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    uint32_t pair[4];
    load_matrix_x4(pair, b.at(16 * i, step));
    multiply_add<T>(c[2 * i], a, pair[0], pair[1]);
    multiply_add<T>(c[2 * i + 1], a, pair[2], pair[3]);
  }
}

/// c = a b^T with a in registers.
template <class T, int kLanes, int kColumns>
__device__ __forceinline__ void multiply(float (&c)[kColumns / 8][4],
                                         const uint32_t (&a)[kLanes / 16][4],
                                         const FragmentAddress<kLanes>& b) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) c[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < kLanes / 16; ++step)
    multiply_step<T, kLanes, kColumns>(c, a[step], b, step);
}

/// c = a b^T with a in shared memory.
template <class T, int kLanes, int kColumns>
__device__ __forceinline__ void multiply(float (&c)[kColumns / 8][4],
                                         const FragmentAddress<kLanes>& a,
                                         const FragmentAddress<kLanes>& b) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) c[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int step = 0; step < kLanes / 16; ++step) {
    uint32_t row_operands[4];
    load_matrix_x4(row_operands, a.at(0, step));
    multiply_step<T, kLanes, kColumns>(c, row_operands, b, step);
  }
}

/// Rounds results to T and makes a operands of them.
template <class T, int kColumns>
__device__ __forceinline__ void pack_operands(uint32_t (&a)[kColumns / 16][4],
                                              const float (&c)[kColumns / 8][4]) {
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i)
    a[i / 4][i % 4] = pack<T>(c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
}

/// c += a b with b's rows [0, kRows).
template <class T, int kLanes, int kRows>
__device__ __forceinline__ void accumulate(float (&c)[kLanes / 8][4],
                                           const uint32_t (&a)[kRows / 16][4],
                                           const FragmentAddress<kLanes>& b) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
#pragma unroll
    for (int i = 0; i < kLanes / 16; ++i) {
      uint32_t pair[4];
      load_matrix_x4_transposed(pair, b.at(16 * step, i));
      multiply_add<T>(c[2 * i], a[step], pair[0], pair[1]);
      multiply_add<T>(c[2 * i + 1], a[step], pair[2], pair[3]);
    }
  }
}

/// Writes a warp's results times `factor` to rows of fp32; `rows` are those of the calling thread
/// lane; rows from `end` on are not written.
template <int kLanes>
__device__ __forceinline__ void store_rows(const DeviceRows& to, int32_t head, int32_t head_dim,
                                           const float (&c)[kLanes / 8][4],
                                           const int32_t (&rows)[2], int32_t end, float factor) {
  const int32_t lanes = (head_dim + 7) / 8 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows[half] >= end) continue;
    float* row = static_cast<float*>(to.data) + rows[half] * to.row_stride + head * to.head_stride;
#pragma unroll
    for (int i = 0; i < kLanes / 8; ++i) {
      if (8 * i >= lanes) break;
      store_pair(row + 8 * i + threadIdx.x % 4 * 2, c[i][2 * half] * factor,
                 c[i][2 * half + 1] * factor);
    }
  }
}

/// Bits [lo, hi) of 32, both bounds clamped.
__device__ __forceinline__ uint32_t bits_between(int32_t lo, int32_t hi) {
  const uint32_t below_hi = hi >= 32 ? ~0u : hi <= 0 ? 0u : (1u << hi) - 1;
  const uint32_t below_lo = lo >= 32 ? ~0u : lo <= 0 ? 0u : (1u << lo) - 1;
  return below_hi & ~below_lo;
}

/// Softmax weight of one pair, and the slope of the cap for its gradient.
struct Weight {
  float probability = 0.0f;
  float slope = 1.0f;
};

/// Turns raw products q.k into weights.
template <bool kIsCapped>
struct Softmax {
  float scale = 1.0f;     // factor of q.k: times log2(e) without a cap, divided by the cap with one
  float cap_log2 = 0.0f;  // cap times log2(e)

  __device__ __forceinline__ explicit Softmax(const AttentionShape& shape)
      : scale(kIsCapped ? shape.scale / shape.softcap : shape.scale * kLog2E),
        cap_log2(shape.softcap * kLog2E) {}

  __device__ __forceinline__ Weight weigh(float product, float log2_lse) const {
    if constexpr (kIsCapped) {
      const TanhPoint point = tanh_with_slope(product * scale);
      return {exp2_approx(point.value * cap_log2 - log2_lse), point.slope};
    } else {
      return {exp2_approx(product * scale - log2_lse), 1.0f};
    }
  }
};

/// A streamed tile.
struct WalkedTile {
  int32_t head = 0;  // query head
  int32_t begin = 0;
  int32_t end = 0;  // of its run
  int32_t range_set = 0;
  bool is_masked = false;
};

/// Iterates over the tiles that meet a stationary tile: all runs of a query head, then the next
/// head. Runs are read again for every tile: that costs fewer registers than keeping one.
template <int kRows>
class TileWalk {
 public:
  __device__ __forceinline__ TileWalk(const TileRun* runs, int32_t num_runs, int32_t first_head,
                                      int32_t end_head)
      : runs_(runs), num_runs_(num_runs), head_(first_head), end_head_(end_head) {
    if (num_runs_ == 0) head_ = end_head_;
  }

  /// Moves to the next tile; false at the end.
  __device__ __forceinline__ bool next(WalkedTile& tile) {
    if (head_ >= end_head_) return false;
    const TileRun run = runs_[index_];
    tile = {head_, run.begin + passed_, run.end, run.range_set, run.is_masked != 0};
    passed_ += kRows;
    if (run.begin + passed_ < run.end) return true;
    passed_ = 0;
    if (++index_ == num_runs_) {
      index_ = 0;
      ++head_;
    }
    return true;
  }

 private:
  const TileRun* runs_;
  int32_t num_runs_;
  int32_t head_;
  int32_t end_head_;
  int32_t index_ = 0;
  int32_t passed_ = 0;  // rows of the run that are done
};

}  // namespace cpscope::kernels::device
