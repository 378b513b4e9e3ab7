#pragma once

#include "kernels/attention/gradient_tiles.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

/// Products of 64-row tiles of fp32 for a CTA of 256 threads. Thread t is (y, x) = (t / 16, t %
/// 16). In a 64x64 product, c[i][j] is row y + 16 i, column x + 16 j. In a sum of rows, c[i][4 j +
/// e] is row y + 16 i, head_dim element 64 j + 4 x + e.
namespace cpscope::kernels::device {

inline constexpr int kFp32Rows = 64;
inline constexpr int kFp32Threads = 256;
inline constexpr int kFp32Chunk = 32;  // head_dim elements of both sides at a time
// Four floats more than kFp32Chunk: adjacent threads then read different banks.
inline constexpr int kFp32ChunkStride = kFp32Chunk + 4;
inline constexpr int kFp32WideStride = kFp32Rows + 4;

/// Shared memory of a CTA.
struct Fp32Tiles {
  float staged[2 * kFp32Rows * kFp32ChunkStride];  // rows being copied from device memory
  float weights[kFp32Rows * kFp32WideStride];      // [row][column]
};
static_assert(2 * kFp32ChunkStride >= kFp32WideStride, "head_dim 64 is staged too");
static_assert(sizeof(Fp32Tiles) <= 48 * 1024);

struct alignas(16) Quad {
  float of[4];
};

__device__ __forceinline__ Quad quad_at(const float* from) {
  return *reinterpret_cast<const Quad*>(from);
}

__device__ __forceinline__ int32_t thread_y() { return static_cast<int32_t>(threadIdx.x) / 16; }
__device__ __forceinline__ int32_t thread_x() { return static_cast<int32_t>(threadIdx.x) % 16; }

/// Element type of rows that tell theirs when the kernel runs, so that one instance is for all.
struct AnyElement {};

/// Rows of one head from `begin` on. Rows from `end` on count as 0 and are not read.
template <class T>
struct Fp32Rows {
  HeadRows<T> head;
  int32_t begin = 0;
  int32_t end = 0;
  Dtype dtype = Dtype::fp32;  // of AnyElement
};

/// Stages four adjacent elements: widened if they have 16 bits, else by an asynchronous copy.
template <class T>
__device__ __forceinline__ void stage_quad(float* to, const T* from, bool is_there) {
  if constexpr (sizeof(T) == sizeof(float)) {
    copy_async_16(shared_address(to), from, is_there);
  } else {
    struct alignas(8) Four {
      T of[4];
    };
    const Four four = is_there ? *reinterpret_cast<const Four*>(from) : Four{};
    for (int e = 0; e < 4; ++e) to[e] = to_float(four.of[e]);
  }
}

/// Stages four elements of the rows, from number `at` on.
template <class T>
__device__ __forceinline__ void stage_from(float* to, const Fp32Rows<T>& rows, int64_t at,
                                           bool is_there) {
  if constexpr (!std::is_same_v<T, AnyElement>) {
    stage_quad(to, rows.head.first + at, is_there);
  } else if (rows.dtype == Dtype::bf16) {
    stage_quad(to, reinterpret_cast<const Bf16*>(rows.head.first) + at, is_there);
  } else if (rows.dtype == Dtype::fp16) {
    stage_quad(to, reinterpret_cast<const Fp16*>(rows.head.first) + at, is_there);
  } else {
    stage_quad(to, reinterpret_cast<const float*>(rows.head.first) + at, is_there);
  }
}

/// Starts copying kLanes elements of 64 rows, from element `lane` on; 16-bit elements are widened,
/// which ends before the call does.
template <int kLanes, int kStride, class T>
__device__ __forceinline__ void stage_rows(float* to, const Fp32Rows<T>& rows, int32_t lane) {
  constexpr int kQuads = kLanes / 4;
#pragma unroll 1
  for (int i = 0; i < kFp32Rows * kQuads / kFp32Threads; ++i) {
    const int32_t number = i * kFp32Threads + static_cast<int32_t>(threadIdx.x);
    const int32_t row = number / kQuads, quad = number % kQuads * 4;
    stage_from(to + row * kStride + quad, rows, (rows.begin + row) * rows.head.stride + lane + quad,
               rows.begin + row < rows.end && lane + quad < rows.head.lanes);
  }
}

/// c = a b^T over the head's elements.
template <class T>
__device__ __forceinline__ void multiply_rows(float (&c)[4][4], const Fp32Rows<T>& a,
                                              const Fp32Rows<T>& b, Fp32Tiles& tiles) {
  float* const staged_b = tiles.staged + kFp32Rows * kFp32ChunkStride;
  for (int i = 0; i < 16; ++i) c[i / 4][i % 4] = 0.0f;
  for (int32_t lane = 0; lane < a.head.lanes; lane += kFp32Chunk) {
    __syncthreads();  // all threads have read the previous stage
    stage_rows<kFp32Chunk, kFp32ChunkStride>(tiles.staged, a, lane);
    stage_rows<kFp32Chunk, kFp32ChunkStride>(staged_b, b, lane);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < kFp32Chunk; step += 4) {
      Quad rows[4], columns[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = quad_at(tiles.staged + (thread_y() + 16 * i) * kFp32ChunkStride + step);
        columns[i] = quad_at(staged_b + (thread_x() + 16 * i) * kFp32ChunkStride + step);
      }
#pragma unroll
      for (int i = 0; i < 64; ++i)
        c[i / 16][i / 4 % 4] =
            fmaf(rows[i / 16].of[i % 4], columns[i / 4 % 4].of[i % 4], c[i / 16][i / 4 % 4]);
    }
  }
}

/// The thread's place for c[i / 4][i % 4] among the weights. From a product to put_weights() no
/// other thread reads it.
__device__ __forceinline__ float& own_weight(Fp32Tiles& tiles, int i) {
  return tiles.weights[(thread_y() + i / 4 * 16) * kFp32WideStride + thread_x() + i % 4 * 16];
}

/// Stores weights for accumulate_rows(). The barriers of a product lie between two calls.
__device__ __forceinline__ void put_weights(const float (&c)[4][4], Fp32Tiles& tiles) {
#pragma unroll
  for (int i = 0; i < 16; ++i) own_weight(tiles, i) = c[i / 4][i % 4];
}

/// c += weights b.
template <int kLanes, class T>
__device__ __forceinline__ void accumulate_rows(float (&c)[4][kLanes / 16], const Fp32Rows<T>& b,
                                                Fp32Tiles& tiles) {
#pragma unroll
  for (int chunk = 0; chunk < kLanes / 64; ++chunk) {
    if (chunk * 64 >= b.head.lanes) break;
    __syncthreads();  // the weights are stored, and all threads have read the previous stage
    stage_rows<64, kFp32WideStride>(tiles.staged, b, chunk * 64);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < kFp32Rows; j += 4) {
      Quad weights[4];
      for (int i = 0; i < 4; ++i)
        weights[i] = quad_at(tiles.weights + (thread_y() + 16 * i) * kFp32WideStride + j);
#pragma unroll
      for (int row = 0; row < 4; ++row) {
        const Quad lanes = quad_at(tiles.staged + (j + row) * kFp32WideStride + thread_x() * 4);
#pragma unroll
        for (int i = 0; i < 16; ++i)
          c[i / 4][chunk * 4 + i % 4] =
              fmaf(weights[i / 4].of[row], lanes.of[i % 4], c[i / 4][chunk * 4 + i % 4]);
      }
    }
  }
}

/// Writes the rows below `end` of the sums, each times its factor.
template <int kLanes>
__device__ __forceinline__ void store_sums(const DeviceRows& to, int32_t head, int32_t head_dim,
                                           const float (&c)[4][kLanes / 16], int32_t begin,
                                           int32_t end, const float (&factors)[4]) {
  const int32_t lanes = (head_dim + 7) / 8 * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t row = begin + thread_y() + 16 * i;
    if (row >= end) continue;
    float* const to_row =
        static_cast<float*>(to.data) + row * to.row_stride + head * to.head_stride;
#pragma unroll
    for (int j = 0; j < kLanes / 16; j += 2) {
      const int32_t lane = j / 4 * 64 + thread_x() * 4 + j % 4;
      if (lane < lanes) store_pair(to_row + lane, c[i][j] * factors[i], c[i][j + 1] * factors[i]);
    }
  }
}

struct Fp32Logit {
  float value = 0.0f;
  float slope = 1.0f;  // of the cap
};

/// The natural logit of a product q.k, after scale and cap.
__device__ __forceinline__ Fp32Logit logit_of(const AttentionShape& shape, float product) {
  const float scaled = product * shape.scale;
  if (shape.softcap == 0.0f) return {scaled, 1.0f};
  const float x = scaled / shape.softcap;
  // 1 - tanh^2 without its cancellation.
  const float u = expf(-2.0f * fabsf(x));
  return {shape.softcap * tanhf(x), 4.0f * u / ((1.0f + u) * (1.0f + u))};
}

}  // namespace cpscope::kernels::device
