#pragma once

#include "kernels/device/device_code.h"
#include "kernels/device/scalar_types.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

/// Groups of adjacent numbers of a row, as many as a thread loads or stores at a time.
namespace cpscope::kernels::device {

struct alignas(16) Group16 {
  uint32_t words[4];
};

struct alignas(16) Floats4 {
  float values[4];
};

/// Numbers that a thread moves at a time. Single numbers would leave most of the memory's width
/// unused.
inline constexpr int kAtOnce = 8;

template <class T>
__device__ __forceinline__ void load_narrow(const void* data, int64_t index,
                                            float (&values)[kAtOnce]) {
  const Group16 group = *reinterpret_cast<const Group16*>(static_cast<const T*>(data) + index);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    values[i] = to_float(T{static_cast<uint16_t>(group.words[i / 2] >> (i % 2 == 0 ? 0 : 16))});
}

/// Loads values from element `index` on, which is aligned to 16 bytes.
__device__ __forceinline__ void load_values(const void* data, Dtype element, int64_t index,
                                            float (&values)[kAtOnce]) {
  if (element == Dtype::bf16) return load_narrow<Bf16>(data, index, values);
  if (element == Dtype::fp16) return load_narrow<Fp16>(data, index, values);
  const auto* from = reinterpret_cast<const Floats4*>(static_cast<const float*>(data) + index);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Floats4 four = from[half];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[4 * half + i] = four.values[i];
  }
}

template <class T>
__device__ __forceinline__ void store_narrow(void* data, int64_t index,
                                             const float (&values)[kAtOnce]) {
  Group16 group;
#pragma unroll
  for (int i = 0; i < 4; ++i) group.words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
  *reinterpret_cast<Group16*>(static_cast<T*>(data) + index) = group;
}

/// Stores values from element `index` on, which is aligned to 16 bytes.
__device__ __forceinline__ void store_values(void* data, Dtype element, int64_t index,
                                             const float (&values)[kAtOnce]) {
  if (element == Dtype::bf16) return store_narrow<Bf16>(data, index, values);
  if (element == Dtype::fp16) return store_narrow<Fp16>(data, index, values);
  auto* to = reinterpret_cast<Floats4*>(static_cast<float*>(data) + index);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    to[half] = {values[4 * half], values[4 * half + 1], values[4 * half + 2], values[4 * half + 3]};
}

}  // namespace cpscope::kernels::device
