#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/gradient_tiles.h"
#include "kernels/attention/softcap.h"
#include "kernels/device/tensor_core.h"

#include <cstdint>

namespace cpscope::kernels::device {

/// Starts copying rows [begin, begin + kRows) to a tile with kLanes elements a row, in the layout
/// that FragmentAddress reads. Rows from `end` on and elements past the head's become 0 and are not
/// read. Eight threads copy 128 bytes of a row; all but a few addresses are constants.
template <int kRows, int kLanes, int kThreads, class T>
__device__ __forceinline__ void copy_rows(uint32_t tile, const HeadRows<T>& from, int32_t begin,
                                          int32_t end) {
  constexpr int kRowsAtOnce = kThreads / 8;
  static_assert(kLanes % 64 == 0 && kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
  const int32_t row = static_cast<int32_t>(threadIdx.x) / 8;
  const int32_t group = static_cast<int32_t>(threadIdx.x) % 8;
  const uint32_t to = tile + row * kLanes * 2 + (group ^ (row & 7)) * 16;
  const T* source = from.first + (begin + row) * from.stride + group * 8;
#pragma unroll
  for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
    const bool is_row = begin + row + i * kRowsAtOnce < end;
#pragma unroll
    for (int block = 0; block < kLanes / 64; ++block) {
      copy_async_16(to + i * kRowsAtOnce * kLanes * 2 + block * 128, source + block * 64,
                    is_row && block * 64 + group * 8 < from.lanes);
    }
    source += kRowsAtOnce * from.stride;
  }
}

/// Turns raw products q.k into logits: logit = unit * apply(product), unit > 0.
template <bool kIsCapped>
struct Logits {
  float factor = 1.0f;     // of the product, before the cap or where the scale is not positive
  float unit_log2 = 1.0f;  // times log2(e)

  __device__ __forceinline__ explicit Logits(const AttentionShape& shape) {
    const bool is_positive = shape.scale > 0.0f;
    if (kIsCapped) {
      factor = shape.scale / shape.softcap;
      unit_log2 = shape.softcap * kLog2E;
    } else {
      factor = is_positive ? 1.0f : shape.scale;
      unit_log2 = (is_positive ? shape.scale : 1.0f) * kLog2E;
    }
  }

  template <int kStacks, int kTiles>
  __device__ __forceinline__ void apply(float (&scores)[kStacks][kTiles][4]) const {
    if (!kIsCapped && factor == 1.0f) return;
#pragma unroll
    for (int i = 0; i < kStacks * kTiles * 4; ++i) {
      float& score = scores[i / (kTiles * 4)][i / 4 % kTiles][i % 4];
      score = kIsCapped ? tanh_with_slope(score * factor).value : score * factor;
    }
  }
};

template <int kStacks, int kTiles>
__device__ __forceinline__ void set_to_zero(float (&sums)[kStacks][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kStacks * kTiles * 4; ++i)
    sums[i / (kTiles * 4)][i / 4 % kTiles][i % 4] = 0.0f;
}

/// Replaces scores of row r of a thread lane that the row does not see, whatever they are, without
/// arithmetic on them. `first_key`: the thread lane's first column. Keys from `end` on do not
/// exist.
template <int kStacks, int kTiles>
__device__ __forceinline__ void hide_row(float (&scores)[kStacks][kTiles][4], int r, KeyRange seen,
                                         int32_t first_key, int32_t end) {
  const int32_t lo = seen.lo - first_key;
  const int32_t hi = (seen.hi < end ? seen.hi : end) - first_key;
#pragma unroll
  for (int e = 0; e < 2 * kTiles; ++e) {
    const int32_t key = e / 2 * 8 + e % 2;
    float& score = scores[r / 2][e / 2][r % 2 * 2 + e % 2];
    score = key >= lo && key < hi ? score : -kInfinity;
  }
}

/// Softmax and weighted sums of V so far of a thread lane's rows: two for each stack of 16 rows.
template <class T, int kStacks, int kV>
struct RunningRows {
  static constexpr int kRows = 2 * kStacks;
  float largest[kRows];  // largest logit of each row so far, times log2(e)
  float sum[kRows];      // of this thread lane's weights
  float out[kStacks][kV / 8][4];

  __device__ __forceinline__ void clear() {
    set_to_zero(out);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = -kInfinity;
      sum[r] = 0.0f;
    }
  }

  /// The largest score of row r, over the four lanes that share it.
  template <int kTiles>
  __device__ __forceinline__ static float largest_score(const float (&scores)[kStacks][kTiles][4],
                                                        int r) {
    float row_largest = -kInfinity;
#pragma unroll
    for (int e = 0; e < 2 * kTiles; ++e)
      row_largest = fmaxf(row_largest, scores[r / 2][e / 2][r % 2 * 2 + e % 2]);
    row_largest = fmaxf(row_largest, shuffle_xor(row_largest, 1));
    return fmaxf(row_largest, shuffle_xor(row_largest, 2));
  }

  /// Turns scores into weights relative to the rows' largest scores so far, and rescales the
  /// earlier sums to the same reference.
  template <int kTiles>
  __device__ __forceinline__ void weigh(float (&scores)[kStacks][kTiles][4], float unit_log2) {
    float tops[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) tops[r] = largest_score(scores, r);
    weigh(scores, unit_log2, tops, largest);
  }

  /// The same; tops: the largest score of each row, here or in other warps; least: the smallest
  /// reference of each row.
  template <int kTiles>
  __device__ __forceinline__ void weigh(float (&scores)[kStacks][kTiles][4], float unit_log2,
                                        const float (&tops)[kRows], const float (&least)[kRows]) {
    float factors[kRows];
    // If no row of the warp has a new largest score, all factors are 1.
    if (any_in_warp(make_weights(scores, unit_log2, tops, least, factors))) scale_out(factors);
  }

  /// Multiplies `out` with a factor for each row.
  __device__ __forceinline__ void scale_out(const float (&factors)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kV / 8; ++j) {
        out[r / 2][j][r % 2 * 2] *= factors[r];
        out[r / 2][j][r % 2 * 2 + 1] *= factors[r];
      }
    }
  }

  /// The same, but leaves `out` as it is. Returns whether a row of the thread has a new reference;
  /// factors: what `out` is to be multiplied with.
  template <int kTiles>
  __device__ __forceinline__ bool make_weights(float (&scores)[kStacks][kTiles][4], float unit_log2,
                                               const float (&tops)[kRows],
                                               const float (&least)[kRows],
                                               float (&factors)[kRows]) {
    bool has_new_largest = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float before = largest[r];
      largest[r] = fmaxf(fmaxf(before, least[r]), tops[r] * unit_log2);
      has_new_largest = has_new_largest || largest[r] != before;
      const float subtracted = largest[r] == -kInfinity ? 0.0f : largest[r];
      factors[r] = exp2_approx(before - subtracted);
      float tile_sum = 0.0f;
#pragma unroll
      for (int e = 0; e < 2 * kTiles; ++e) {
        float& score = scores[r / 2][e / 2][r % 2 * 2 + e % 2];
        score = exp2_approx(fmaf(score, unit_log2, -subtracted));
        tile_sum += score;
      }
      sum[r] = sum[r] * factors[r] + tile_sum;
    }
    return has_new_largest;
  }

  /// Adds weights, rounded to T, times the rows of V at `values`.
  template <int kTiles>
  __device__ __forceinline__ void add_values(const float (&weights)[kStacks][kTiles][4],
                                             const FragmentAddress<kV>& values) {
#pragma unroll
    for (int step = 0; step < kTiles / 2; ++step) {
      uint32_t a[kStacks][4];
#pragma unroll
      for (int i = 0; i < 4 * kStacks; ++i) {
        const float(&four)[4] = weights[i / 4][2 * step + i % 4 / 2];
        a[i / 4][i % 4] = pack<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < kV / 16; ++i) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, values.at(16 * step, i));
#pragma unroll
        for (int stack = 0; stack < kStacks; ++stack) {
          multiply_add<T>(out[stack][2 * i], a[stack], b[0], b[1]);
          multiply_add<T>(out[stack][2 * i + 1], a[stack], b[2], b[3]);
        }
      }
    }
  }

  /// Sum of row r over the four lanes that share it.
  __device__ __forceinline__ float whole_sum(int r) const {
    const float pair = sum[r] + shuffle_xor(sum[r], 1);
    return pair + shuffle_xor(pair, 2);
  }
};

}  // namespace cpscope::kernels::device
