#pragma once

#include "kernels/device/scalar_types.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/device_code_emulated.h"
#else

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

/// Everything that device code may use besides plain C++, threadIdx, blockIdx, gridDim,
/// __syncthreads() and __syncwarp(). The emulator offers the same names, so that one source runs on
/// both. Source of every instruction: PTX ISA 9.0, section 9.7.
namespace cpscope::kernels::device {

/// Start of the CTA's dynamic shared memory, aligned to 128 bytes.
__device__ __forceinline__ uint8_t* dynamic_shared() {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  return shared_bytes;
}

/// In a kernel with Grid::begins_early: waits until the kernel before it in the stream has ended
/// and its writes are visible. Before it nothing of that kernel may be read or overwritten.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel in the stream, if it begins early, may begin when all CTAs of this one have
/// called it or ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Shared-memory address in the form that the instructions below take.
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

/// Value of type T nearest to the argument, ties to even.
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

/// The bits of a number, and the number that has these bits.
__device__ __forceinline__ uint32_t to_bits(float value) { return __float_as_uint(value); }
/// Four bytes, the lowest first, that the hexadecimal digits of `which` name, the last digit first:
/// 0 to 3 of `a`, 4 to 7 of `b`.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  return __byte_perm(a, b, which);
}
__device__ __forceinline__ float from_bits(uint32_t bits) { return __uint_as_float(bits); }

/// The sum, rounded separately: the compiler does not fuse a product into it.
__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }

/// The product, rounded separately: the compiler does not fuse it into a sum.
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }

/// Requests the 128 bytes that hold `address` into the L2 cache.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// 2^x; relative error 2^-22, subnormal results become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// log2(x); error 2^-22, relative to the result or absolute; subnormal numbers count as 0.
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

/// The larger of the two; NaN if either is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// The value of thread lane `lane ^ mask` of the warp. All 32 lanes call it together.
__device__ __forceinline__ float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

__device__ __forceinline__ uint32_t shuffle_xor(uint32_t value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// The value of thread lane `lane` of the warp. All 32 lanes call it together.
__device__ __forceinline__ int32_t from_lane(int32_t value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

/// Returns a value that is the same in all lanes, in a way that shows the compiler that it is: the
/// compiler then keeps values computed from it in uniform registers, where addresses of products
/// are required. All 32 lanes call it together.
__device__ __forceinline__ int32_t shared_by_warp(int32_t value) { return from_lane(value, 0); }

/// True if the condition is true in any lane. All 32 lanes call it together.
__device__ __forceinline__ bool any_in_warp(bool condition) {
  return __any_sync(0xffffffffu, condition ? 1 : 0) != 0;
}

/// Adds `value` to *to and returns the previous value.
__device__ __forceinline__ int32_t atomic_add(int32_t* to, int32_t value) {
  return atomicAdd(to, value);
}

/// Makes this thread's earlier writes visible to the whole device before its later ones.
__device__ __forceinline__ void fence_device() { __threadfence(); }

/// Makes this thread's earlier writes visible to all devices before its later ones.
__device__ __forceinline__ void fence_system() { __threadfence_system(); }

/// Sets *flag to `value` for threads of other devices that wait for it, after all earlier writes
/// are visible to them.
__device__ __forceinline__ void publish_to_system(int32_t* flag, int32_t value) {
  asm volatile("st.release.sys.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/// Raises *to to `value`; a NaN stays.
__device__ __forceinline__ void atomic_max(float* to, float value) {
  const float no_negative_zero = value + 0.0f;
  if (no_negative_zero != no_negative_zero) {
    atomicMax(reinterpret_cast<int32_t*>(to), 0x7fffffff);
  } else if (no_negative_zero >= 0.0f) {
    // The bits of non-negative numbers are ordered like integers, those of negative ones in
    // reverse.
    atomicMax(reinterpret_cast<int32_t*>(to), __float_as_int(no_negative_zero));
  } else {
    atomicMin(reinterpret_cast<uint32_t*>(to), __float_as_uint(no_negative_zero));
  }
}

/// Same as atomic_max without a branch, so that products may be in flight.
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

/// Stores without a branch, so that products may be in flight. `to` is used only if the condition
/// holds; store_pair_if requires it aligned to 8 bytes.
__device__ __forceinline__ void store_if(bool condition, float* to, float value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.f32 [%0], %1;\n}" ::"l"(to),
               "f"(value), "r"(condition ? 1 : 0)
               : "memory");
}
/// Stores 16 bytes if the condition holds. `to` is aligned to 16 bytes.
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

/// Stores two adjacent numbers at once. `to` is aligned to 8 bytes.
__device__ __forceinline__ void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}

}  // namespace cpscope::kernels::device

#endif
