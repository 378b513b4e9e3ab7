#pragma once

#include "kernels/device/hopper.h"
#include "sim/run/fp8.h"

#include <cstdint>
#include <type_traits>

/// Products of a warpgroup (128 threads, 64 rows) on sm_90a, for Bf16, Fp16 and 8-bit codes, fp32
/// sums.
/// Sums d[]: thread t holds rows 16 * (t / 32) + t % 32 / 4 and 8 more, columns
/// 8 * (i / 4) + 2 * (t % 4) + i % 2 of d[i], the second row where i / 2 is odd. A operands in
/// registers have the same layout, in pairs; codes in fours, see wgmma_rs_codes.
/// Source: PTX ISA 9.0, wgmma.mma_async.

#ifndef CPSCOPE_EMULATED

namespace cpscope::kernels::device {

// Empty asm keeps values in place: without it the compiler may move reads of an accumulator above
// the wait, or writes below the fence.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(uint32_t (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(values[i])::"memory");
}
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most N groups of products are in flight.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/// Descriptor of a matrix in shared memory, 128-byte swizzle. A tile is stored as panels of 64
/// columns, its rows 128 bytes apart, 1024 bytes from one group of 8 rows to the next. panel_bytes:
/// distance between panels, used only if the operand is transposed.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t panel_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>((panel_bytes & 0x3FFFF) >> 4) << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

/// Descriptor of a matrix whose rows of 8 elements are stored one after another, without a swizzle.
/// Elements 8 to 15 of a row read as the same 8 again.
__device__ __forceinline__ uint64_t plain_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{128 >> 4} << 32;
}

/// Descriptor of the same matrix, `bytes` (a multiple of 16) further on. Each step of a product
/// needs one, and tensor cores wait for it. This is one addition without a carry; a new descriptor
/// takes five dependent operations. The kernels hopper_wide_*.cu make new ones, because otherwise
/// they spill or are slower.
__device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes) {
  const auto low = static_cast<uint32_t>(descriptor),
             high = static_cast<uint32_t>(descriptor >> 32);
  return static_cast<uint64_t>(high) << 32 | (low + (bytes >> 4));
}

// clang-format off
#define CPSCOPE_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CPSCOPE_SUMS8(d, i) CPSCOPE_SUMS4(d, i), CPSCOPE_SUMS4(d, i + 4)
#define CPSCOPE_SUMS16(d, i) CPSCOPE_SUMS8(d, i), CPSCOPE_SUMS8(d, i + 8)
#define CPSCOPE_SUMS32(d, i) CPSCOPE_SUMS16(d, i), CPSCOPE_SUMS16(d, i + 16)
#define CPSCOPE_REGISTERS32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CPSCOPE_SUMS_OF32 CPSCOPE_SUMS16(d, 0)
#define CPSCOPE_REGISTERS48 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23"
#define CPSCOPE_SUMS_OF48 CPSCOPE_SUMS16(d, 0), CPSCOPE_SUMS8(d, 16)
#define CPSCOPE_REGISTERS64 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CPSCOPE_SUMS_OF64 CPSCOPE_SUMS32(d, 0)
#define CPSCOPE_REGISTERS80 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39"
#define CPSCOPE_SUMS_OF80 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS8(d, 32)
#define CPSCOPE_REGISTERS96 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CPSCOPE_SUMS_OF96 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS16(d, 32)
#define CPSCOPE_REGISTERS128 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CPSCOPE_SUMS_OF128 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS32(d, 32)
#define CPSCOPE_REGISTERS160 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define CPSCOPE_SUMS_OF160 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS32(d, 32), CPSCOPE_SUMS16(d, 64)
#define CPSCOPE_REGISTERS192 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define CPSCOPE_SUMS_OF192 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS32(d, 32), CPSCOPE_SUMS32(d, 64)
#define CPSCOPE_REGISTERS256 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CPSCOPE_SUMS_OF256 CPSCOPE_SUMS32(d, 0), CPSCOPE_SUMS32(d, 32), \
  CPSCOPE_SUMS32(d, 64), CPSCOPE_SUMS32(d, 96)

// d[64, N] (+)= a[64, 16] b[16, N], both operands in shared memory with the summed elements
// adjacent (the q.k product); `accumulate` 0 starts from zero.
#define CPSCOPE_WGMMA_SS_TYPE(TYPE, N, A, B, P)                                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                     \
               " {" CPSCOPE_REGISTERS##N "}, %" A ", %" B ", p, 1, 1, 0, 0;\n}"                    \
               : CPSCOPE_SUMS_OF##N : "l"(a), "l"(b), "r"(accumulate))
#define CPSCOPE_WGMMA_SS(N, A, B, P)                                                               \
  template <class T>                                                                               \
  __device__ __forceinline__ void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b,              \
                                           int accumulate) {                                       \
    if constexpr (std::is_same_v<T, Bf16>) {                                                       \
      CPSCOPE_WGMMA_SS_TYPE("bf16", N, A, B, P);                                                   \
    } else {                                                                                       \
      CPSCOPE_WGMMA_SS_TYPE("f16", N, A, B, P);                                                    \
    }                                                                                              \
  }

// d[64, N] (+)= a[64, 16] b[16, N], both in shared memory, b with the N elements of a row adjacent
// (the dS.K product).
#define CPSCOPE_WGMMA_SS_ROWS_TYPE(TYPE, N, A, B, P)                                               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                     \
               " {" CPSCOPE_REGISTERS##N "}, %" A ", %" B ", p, 1, 1, 0, 1;\n}"                    \
               : CPSCOPE_SUMS_OF##N : "l"(a), "l"(b), "r"(accumulate))
#define CPSCOPE_WGMMA_SS_ROWS(N, A, B, P)                                                          \
  template <class T>                                                                               \
  __device__ __forceinline__ void wgmma_ss_rows(float (&d)[N / 2], uint64_t a, uint64_t b,         \
                                                int accumulate) {                                  \
    if constexpr (std::is_same_v<T, Bf16>) {                                                       \
      CPSCOPE_WGMMA_SS_ROWS_TYPE("bf16", N, A, B, P);                                              \
    } else {                                                                                       \
      CPSCOPE_WGMMA_SS_ROWS_TYPE("f16", N, A, B, P);                                               \
    }                                                                                              \
  }

// d[64, N] += a[64, 16] b[16, N], or = where ACCUMULATES is 0; a in registers, b in shared memory
// with the N elements of a row adjacent if TRANSPOSES is 1 (the p.v product), else the 16 summed
// ones.
#define CPSCOPE_WGMMA_RS_TYPE(TYPE, N, A0, A1, A2, A3, B, ACCUMULATES, TRANSPOSES)                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                     \
               " {" CPSCOPE_REGISTERS##N "}, {%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B               \
               ", " ACCUMULATES ", 1, 1, " TRANSPOSES ";"                                          \
               : CPSCOPE_SUMS_OF##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define CPSCOPE_WGMMA_RS(N, A0, A1, A2, A3, B)                                                     \
  template <class T>                                                                               \
  __device__ __forceinline__ void wgmma_rs(float (&d)[N / 2], const uint32_t* a, uint64_t b) {     \
    if constexpr (std::is_same_v<T, Bf16>) {                                                       \
      CPSCOPE_WGMMA_RS_TYPE("bf16", N, A0, A1, A2, A3, B, "1", "1");                                    \
    } else {                                                                                       \
      CPSCOPE_WGMMA_RS_TYPE("f16", N, A0, A1, A2, A3, B, "1", "1");                                     \
    }                                                                                              \
  }

CPSCOPE_WGMMA_SS(32, "16", "17", "18")
CPSCOPE_WGMMA_SS(48, "24", "25", "26")
CPSCOPE_WGMMA_SS(64, "32", "33", "34")
CPSCOPE_WGMMA_SS(80, "40", "41", "42")
CPSCOPE_WGMMA_SS(96, "48", "49", "50")
CPSCOPE_WGMMA_SS(128, "64", "65", "66")
CPSCOPE_WGMMA_SS(160, "80", "81", "82")
CPSCOPE_WGMMA_SS_ROWS(64, "32", "33", "34")
CPSCOPE_WGMMA_SS_ROWS(128, "64", "65", "66")
CPSCOPE_WGMMA_SS_ROWS(256, "128", "129", "130")
CPSCOPE_WGMMA_RS(64, "32", "33", "34", "35", "36")
CPSCOPE_WGMMA_RS(128, "64", "65", "66", "67", "68")
CPSCOPE_WGMMA_RS(192, "96", "97", "98", "99", "100")
CPSCOPE_WGMMA_RS(256, "128", "129", "130", "131", "132")

// d[64, N] (+)= a[64, 32] b[32, N] of codes of the formats kA and kB, both in shared memory with
// the 32 summed numbers adjacent.
#define CPSCOPE_WGMMA_SS_CODES_TYPE(TYPES, N, A, B, P)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES                             \
               " {" CPSCOPE_REGISTERS##N "}, %" A ", %" B ", p, 1, 1;\n}"                          \
               : CPSCOPE_SUMS_OF##N : "l"(a), "l"(b), "r"(accumulate))
#define CPSCOPE_OF_FORMATS(PRODUCT, N, ...)                                                        \
  static_assert(kA == Fp8Type::e4m3 || kB == Fp8Type::e4m3, "no product needs two of E5M2");       \
  if constexpr (kA == kB) {                                                                        \
    PRODUCT("e4m3.e4m3", N, __VA_ARGS__);                                                          \
  } else if constexpr (kA == Fp8Type::e4m3) {                                                      \
    PRODUCT("e4m3.e5m2", N, __VA_ARGS__);                                                          \
  } else {                                                                                         \
    PRODUCT("e5m2.e4m3", N, __VA_ARGS__);                                                          \
  }
#define CPSCOPE_WGMMA_SS_CODES(N, A, B, P)                                                         \
  template <Fp8Type kA = Fp8Type::e4m3, Fp8Type kB = Fp8Type::e4m3>                                \
  __device__ __forceinline__ void wgmma_ss_codes(float (&d)[N / 2], uint64_t a, uint64_t b,        \
                                                 int accumulate) {                                 \
    CPSCOPE_OF_FORMATS(CPSCOPE_WGMMA_SS_CODES_TYPE, N, A, B, P)                                    \
  }

// The same, a in registers: thread t of a quad holds numbers 4 t to 4 t + 3 of row t / 4 in a[0],
// of the row 8 further down in a[1], and numbers 16 further on in a[2] and a[3].
#define CPSCOPE_WGMMA_RS_CODES_TYPE(TYPES, N, A0, A1, A2, A3, B, P)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                     \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPES                             \
               " {" CPSCOPE_REGISTERS##N "}, {%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B               \
               ", p, 1, 1;\n}"                                                                     \
               : CPSCOPE_SUMS_OF##N                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define CPSCOPE_WGMMA_RS_CODES(N, A0, A1, A2, A3, B, P)                                            \
  template <Fp8Type kA = Fp8Type::e4m3, Fp8Type kB = Fp8Type::e4m3>                                \
  __device__ __forceinline__ void wgmma_rs_codes(float (&d)[N / 2], const uint32_t* a,             \
                                                 uint64_t b, int accumulate) {                     \
    CPSCOPE_OF_FORMATS(CPSCOPE_WGMMA_RS_CODES_TYPE, N, A0, A1, A2, A3, B, P)                       \
  }

CPSCOPE_WGMMA_SS_CODES(64, "32", "33", "34")
CPSCOPE_WGMMA_SS_CODES(96, "48", "49", "50")
CPSCOPE_WGMMA_SS_CODES(128, "64", "65", "66")
CPSCOPE_WGMMA_RS_CODES(64, "32", "33", "34", "35", "36", "37")
CPSCOPE_WGMMA_RS_CODES(128, "64", "65", "66", "67", "68", "69")

// d[64, 64] += a[64, 16] b[64, 16]^T, a in registers.
template <class T>
__device__ __forceinline__ void wgmma_rs_lanes(float (&d)[32], const uint32_t* a, uint64_t b) {
  if constexpr (std::is_same_v<T, Bf16>) {
    CPSCOPE_WGMMA_RS_TYPE("bf16", 64, "32", "33", "34", "35", "36", "1", "0");
  } else {
    CPSCOPE_WGMMA_RS_TYPE("f16", 64, "32", "33", "34", "35", "36", "1", "0");
  }
}

// d[64, 64] = a[64, 16] b[64, 16]^T in bf16, even if products in another type are added afterwards.
__device__ __forceinline__ void wgmma_rs_first(float (&d)[32], const uint32_t* a, uint64_t b) {
  CPSCOPE_WGMMA_RS_TYPE("bf16", 64, "32", "33", "34", "35", "36", "0", "0");
}
// clang-format on

}  // namespace cpscope::kernels::device

#endif
