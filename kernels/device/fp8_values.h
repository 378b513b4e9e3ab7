#pragma once

#include "kernels/device/device_code.h"
#include "sim/run/fp8.h"

#include <cstdint>

/// Rounding to E4M3 and E5M2, and their codes, in integer instructions that every device has: the
/// functions of sim/run/fp8.h, bit for bit (tests/kernels/rows/fp8_rows_test.cpp).
namespace cpscope::kernels::device {

/// Constants of a format, relative to fp32.
struct Fp8Layout {
  int32_t dropped_bits;  // of the significand
  int32_t rebias;        // fp32's exponent bias less the format's
  float largest;
  float smallest_normal;
  float steps_per_one;  // 1 / the least value
};

__device__ __forceinline__ Fp8Layout layout_of(Fp8Type type) {
  if (type == Fp8Type::e4m3) return {20, 120, 448.0f, 0x1p-6f, 0x1p9f};
  return {21, 112, 57344.0f, 0x1p-14f, 0x1p16f};
}

/// Nearest value, ties to even; values beyond the largest become the largest. NaN stays NaN.
__device__ __forceinline__ float round_to_fp8(Fp8Type type, float value) {
  const Fp8Layout layout = layout_of(type);
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu, sign = bits ^ magnitude;
  const float size = from_bits(magnitude);
  if (size != size) return value;
  if (size >= layout.largest) return from_bits(sign | to_bits(layout.largest));
  if (size < layout.smallest_normal) {
    // The last bit of this number is worth the least value, so the addition rounds.
    const float shift = 0x1p23f / layout.steps_per_one;
    return from_bits(sign | to_bits(add_rounded(size, shift) - shift));
  }
  const uint32_t odd = magnitude >> layout.dropped_bits & 1u;
  const uint32_t half = (1u << (layout.dropped_bits - 1)) - 1u + odd;
  return from_bits(sign | ((magnitude + half) & ~((1u << layout.dropped_bits) - 1u)));
}

/// value * scale as it is stored in 8 bits. The product is rounded to fp32 first.
__device__ __forceinline__ float scale_to_fp8(Fp8Type type, float value, float scale) {
  return round_to_fp8(type, multiply_rounded(value, scale));
}

/// Code of a value that the format has.
__device__ __forceinline__ uint8_t to_fp8_code(Fp8Type type, float value) {
  const Fp8Layout layout = layout_of(type);
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  const float size = from_bits(magnitude);
  if (size != size) return static_cast<uint8_t>(sign | 0x7fu);
  const uint32_t code =
      size < layout.smallest_normal
          ? static_cast<uint32_t>(size * layout.steps_per_one)
          : (magnitude >> layout.dropped_bits) -
                (static_cast<uint32_t>(layout.rebias) << (23 - layout.dropped_bits));
  return static_cast<uint8_t>(sign | code);
}

__device__ __forceinline__ float from_fp8_code(Fp8Type type, uint8_t code) {
  const Fp8Layout layout = layout_of(type);
  const uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  const bool is_e4m3 = type == Fp8Type::e4m3;
  if (magnitude > (is_e4m3 ? 0x7eu : 0x7cu)) return from_bits(sign | 0x7fc00000u);
  if (!is_e4m3 && magnitude == 0x7cu) return from_bits(sign | 0x7f800000u);
  if (magnitude >> (23 - layout.dropped_bits) == 0)
    return from_bits(sign | to_bits(static_cast<float>(magnitude) / layout.steps_per_one));
  return from_bits(
      sign | ((magnitude << layout.dropped_bits) + (static_cast<uint32_t>(layout.rebias) << 23)));
}

/// Codes of four numbers in one register, the first in the lowest byte; larger ones become the
/// format's largest.
__device__ __forceinline__ uint32_t pack_codes(Fp8Type type, float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t low, high;
  if (type == Fp8Type::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  }
  return static_cast<uint32_t>(high) << 16 | low;
#else
  const auto code = [=](float value) {
    return static_cast<uint32_t>(to_fp8_code(type, round_to_fp8(type, value)));
  };
  return code(d) << 24 | code(c) << 16 | code(b) << 8 | code(a);
#endif
}

/// Two E4M3 codes, the first in the lowest byte, as a pair of fp16 numbers; exact.
__device__ __forceinline__ uint32_t halves_of_codes(uint32_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  return halves;
#else
  return pack<Fp16>(from_fp8_code(Fp8Type::e4m3, static_cast<uint8_t>(codes)),
                    from_fp8_code(Fp8Type::e4m3, static_cast<uint8_t>(codes >> 8)));
#endif
}

/// Two numbers rounded to E4M3, larger ones to 448, as a pair of fp16 numbers.
__device__ __forceinline__ uint32_t pack_e4m3_halves(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return halves_of_codes(codes);
#else
  return pack<Fp16>(round_to_fp8(Fp8Type::e4m3, low), round_to_fp8(Fp8Type::e4m3, high));
#endif
}

/// Two numbers rounded to a format, larger ones to its largest, as a pair of bf16 numbers; exact.
__device__ __forceinline__ uint32_t pack_fp8_values(Fp8Type type, float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;  // fp16
  uint16_t codes;
  if (type == Fp8Type::e4m3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(codes));
  }
  low = to_float(Fp16{static_cast<uint16_t>(halves)});
  high = to_float(Fp16{static_cast<uint16_t>(halves >> 16)});
#else
  low = round_to_fp8(type, low);
  high = round_to_fp8(type, high);
#endif
  return pack<Bf16>(low, high);
}

/// The power of two that an MXFP8 block with this largest |value| is divided by (block_descale in
/// sim/run/fp8.h). NaN stays NaN.
__device__ __forceinline__ float block_descale_of(float amax) {
  if (amax != amax) return amax;
  const float ratio = amax / 448.0f;
  const uint32_t bits = to_bits(ratio);
  constexpr uint32_t kLeast = 0x00400000u;     // 2^-127, subnormal
  constexpr uint32_t kGreatest = 0x7f000000u;  // 2^127
  if (bits <= kLeast) return from_bits(kLeast);
  if (bits <= 0x00800000u) return from_bits(0x00800000u);
  const uint32_t up = (bits + 0x007fffffu) & 0xff800000u;
  return from_bits(up < kGreatest ? up : kGreatest);
}

/// The value that is read back after a block's value has been stored in 8 bits.
__device__ __forceinline__ float quantise_in_block_of(float value, float descale) {
  return round_to_fp8(Fp8Type::e4m3, value / descale) * descale;
}

}  // namespace cpscope::kernels::device
