#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device_code.h"
#include "kernels/device/scalar_types.h"

#include <cstdint>

/// Rows of dq that the main kernel of the fused backward does not finish.
namespace cpscope::kernels::device {
namespace {

inline constexpr int kClearingThreads = 128;

struct ClearParams {
  DeviceRows dq;
  const RowStretch* stretches;
  int32_t head_dim;
};

/// Zeroes rows of dq that no turn opens. Grid: a stretch of rows, a local query head.
__global__ void __launch_bounds__(kClearingThreads)
    clear_rows(const __grid_constant__ ClearParams p) {
  const RowStretch rows = p.stretches[blockIdx.x];
  float* to = static_cast<float*>(p.dq.data) + static_cast<int64_t>(rows.begin) * p.dq.row_stride +
              static_cast<int32_t>(blockIdx.y) * p.dq.head_stride;
  const int32_t count = (rows.end - rows.begin) * p.head_dim;
  for (int32_t i = threadIdx.x; i < count; i += kClearingThreads)
    to[i / p.head_dim * p.dq.row_stride + i % p.head_dim] = 0.0f;
}

struct RoundParams {
  DeviceRows dq, narrow_dq;
  const RowStretch* stretches;
  int32_t head_dim;
};

/// Writes dq in the dtype, for rows that no tile closes. Grid: a stretch of rows, a local query
/// head.
template <class T>
__global__ void __launch_bounds__(kClearingThreads)
    round_rows(const __grid_constant__ RoundParams p) {
  const RowStretch rows = p.stretches[blockIdx.x];
  const auto head = static_cast<int32_t>(blockIdx.y);
  const float* from =
      static_cast<const float*>(p.dq.data) + rows.begin * p.dq.row_stride + head * p.dq.head_stride;
  T* to = static_cast<T*>(p.narrow_dq.data) + rows.begin * p.narrow_dq.row_stride +
          head * p.narrow_dq.head_stride;
  const int32_t count = (rows.end - rows.begin) * p.head_dim;
  for (int32_t i = threadIdx.x; i < count; i += kClearingThreads) {
    const int32_t row = i / p.head_dim, element = i % p.head_dim;
    to[row * p.narrow_dq.row_stride + element] =
        from_float<T>(from[row * p.dq.row_stride + element]);
  }
}

}  // namespace
}  // namespace cpscope::kernels::device
