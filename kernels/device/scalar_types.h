#pragma once

#include "sim/run/fp8.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::kernels {

/// Storage of one 16-bit number. Arithmetic is done in fp32, after a conversion by the functions of
/// kernels/device/device_code.h.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

/// Marks operands of dtype fp8: bf16 numbers whose values E4M3 or E5M2 has, which is exact.
struct Fp8AsBf16 {};
/// The same with a scale for each block of numbers (mxfp8), which the numbers hold.
struct MxAsBf16 {};

/// Marks operands that are codes of 8 bits: E4M3, and this format for dO and dS.
template <Fp8Type kGradients>
struct Fp8Codes {};

/// Storage of one E4M3 number; TMA and row maps take two of them as one 16-bit number.
struct E4m3 {
  uint8_t bits;
};

/// Bytes of one element on a device. fp64 is not stored on a device.
constexpr int64_t element_size(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

/// Elements of one head's row in device memory: head_dim rounded up to whole 16-byte groups, so
/// that a row can be copied in such groups. Elements past head_dim are zeros.
constexpr int32_t padded_lanes(int32_t head_dim) { return (head_dim + 7) / 8 * 8; }

inline constexpr int32_t kMaxHeadDim = 256;    // per query-key or value head, on a device
inline constexpr int32_t kMaxLatentDim = 576;  // the same where V is a part of K (latent_dim)

}  // namespace cpscope::kernels
