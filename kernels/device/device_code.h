#pragma once

#include "kernels/device/scalar_types.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/device_code_emulated.h"
#else

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

/// All that device code of this room may use besides plain C++, threadIdx, blockIdx, gridDim,
/// __syncthreads() and __syncwarp(). The emulator offers the same names, so that one source runs on
/// both. Source of every instruction: PTX ISA 9.0, section 9.7.
namespace cpscope::kernels::device {

/// Start of the CTA's dynamic shared memory, on 128 bytes.
__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  return shared_bytes;
}

/// Address as the instructions below take it.
__device__ __forceinline__ uint32_t shared_address(const void* in_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

__device__ __forceinline__ float to_float(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

__device__ __forceinline__ float to_float(Fp16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

__device__ __forceinline__ float to_float(float value) { return value; }

/// Nearest value of T, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return {bits};
  } else if constexpr (std::is_same_v<T, Fp16>) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return {bits};
  } else {
    return value;
  }
}

/// Two numbers of T in one register, `low` in its lower half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t result;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

/// The sum, rounded by itself: no product before it is drawn into it.
__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }

/// The product, rounded by itself: it is drawn into no sum.
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }

/// Asks for the 128 bytes that hold `address`, into the L2 cache.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// 2^x; relative error 2^-22, subnormal results become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// log2(x); error 2^-22, of the result or of 1; subnormal numbers count as 0.
__device__ __forceinline__ float log2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1 / x; relative error 2^-23, subnormal numbers count as 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// The larger one, or a NaN where one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// The value that lane `lane ^ mask` of the warp passes. All 32 lanes call it together.
__device__ __forceinline__ float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

__device__ __forceinline__ uint32_t shuffle_xor(uint32_t value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// The value that lane `lane` has. All 32 lanes call it together.
__device__ __forceinline__ int32_t from_lane(int32_t value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

/// A value that all lanes share, once more, so that the compiler knows: it keeps in registers of
/// the warp what follows from it, as addresses of products are wanted. All 32 lanes call it
/// together.
__device__ __forceinline__ int32_t shared_by_warp(int32_t value) { return from_lane(value, 0); }

/// Is the condition true in any lane? All 32 lanes call it together.
__device__ __forceinline__ bool any_in_warp(bool condition) {
  return __any_sync(0xffffffffu, condition ? 1 : 0) != 0;
}

/// Returns the value before.
__device__ __forceinline__ int32_t atomic_add(int32_t* to, int32_t value) {
  return atomicAdd(to, value);
}

/// What this thread wrote stands, for all devices, before what it writes from here on.
__device__ __forceinline__ void fence_system() { __threadfence_system(); }

/// Tells a thread of another device that waits for *flag of all that stands before.
__device__ __forceinline__ void publish_to_system(int32_t* flag, int32_t value) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/// Raises *to to `value`; a NaN stays.
__device__ __forceinline__ void atomic_max(float* to, float value) {
  const float no_negative_zero = value + 0.0f;
  if (no_negative_zero != no_negative_zero) {
    atomicMax(reinterpret_cast<int32_t*>(to), 0x7fffffff);
  } else if (no_negative_zero >= 0.0f) {
    // The bits of numbers from 0 up are ordered like integers, those of the others in reverse.
    atomicMax(reinterpret_cast<int32_t*>(to), __float_as_int(no_negative_zero));
  } else {
    atomicMin(reinterpret_cast<uint32_t*>(to), __float_as_uint(no_negative_zero));
  }
}

/// The same without a branch, so that products may be under way.
__device__ __forceinline__ void atomic_max_if(bool condition, float* to, float value) {
  const float no_negative_zero = value + 0.0f;
  const bool is_nan = no_negative_zero != no_negative_zero;
  const bool as_signed = is_nan || no_negative_zero >= 0.0f;
  const int32_t bits = is_nan ? 0x7fffffff : __float_as_int(no_negative_zero);
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %2, 0;\nsetp.ne.b32 q, %3, 0;\n"
      "@p red.global.max.s32 [%0], %1;\n@q red.global.min.u32 [%0], %1;\n}" ::"l"(to),
      "r"(bits), "r"(condition && as_signed ? 1 : 0), "r"(condition && !as_signed ? 1 : 0)
      : "memory");
}

/// Stores without a branch, so that products may be under way. `to` counts only where the condition
/// holds; store_pair_if wants it on 8 bytes.
__device__ __forceinline__ void store_if(bool condition, float* to, float value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(to),
               "f"(value), "r"(condition ? 1 : 0)
               : "memory");
}
/// 16 bytes; `to` is on 16 bytes.
__device__ __forceinline__ void store_four_if(bool condition, void* to,
                                              const uint32_t (&words)[4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::
          "l"(to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(condition ? 1 : 0)
      : "memory");
}
__device__ __forceinline__ void store_pair_if(bool condition, float* to, float first,
                                              float second) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.f32 [%0], {%1, %2};\n}" ::"l"(to),
      "f"(first), "f"(second), "r"(condition ? 1 : 0)
      : "memory");
}

/// Two neighbours stored at once. `to` is on 8 bytes.
__device__ __forceinline__ void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

}  // namespace cpscope::kernels::device

#endif
