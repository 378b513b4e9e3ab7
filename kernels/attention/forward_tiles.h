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

}  // namespace cpscope::kernels::device
