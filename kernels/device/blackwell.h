#pragma once

#include "kernels/device/hopper.h"

#include <cstdint>
#include <type_traits>

/// Instructions that only Blackwell has (sm_100a): tensor memory, 128 lanes of 512 columns of 32
/// bits for each CTA, and its products, which one thread starts. The CPU emulator has a second body
/// for every function. Source: PTX ISA 9.0, tcgen05.

namespace cpscope::kernels::device {

inline constexpr int kTensorLanes = 128;
inline constexpr int kTensorColumns = 512;

/// Address of a lane and a column of tensor memory, relative to what was allocated.
__device__ constexpr uint32_t tensor_place(int lane, int column) {
  return static_cast<uint32_t>(lane) << 16 | static_cast<uint32_t>(column);
}

/// Descriptor of a matrix in shared memory, in panels with the 128-byte swizzle: as
/// matrix_descriptor in hopper_products.h, in the bits of tcgen05.
__device__ constexpr uint64_t tensor_descriptor(uint32_t address, uint32_t panel_bytes) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) |
         static_cast<uint64_t>((panel_bytes & 0x3FFFF) >> 4) << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 46 | uint64_t{2} << 61;
}

/// Instruction descriptor of products d[128, kColumns] of T, sums in fp32. kTransposes: b has the
/// kColumns elements of a row adjacent, else the summed ones.
template <class T, int kColumns, bool kTransposes>
__device__ constexpr uint32_t product_kind() {
  constexpr uint32_t kType = std::is_same_v<T, Bf16> ? 1 : 0;
  return 1u << 4 | kType << 7 | kType << 10 | (kTransposes ? 1u : 0u) << 16 |
         static_cast<uint32_t>(kColumns / 8) << 17 | static_cast<uint32_t>(kTensorLanes / 16) << 24;
}

}  // namespace cpscope::kernels::device

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/blackwell_emulated.h"
#else

namespace cpscope::kernels::device {

/// Allocates all columns and stores their address at `to` in shared memory; one whole warp. The CTA
/// must be the only one of its multiprocessor that does.
__device__ __forceinline__ void tcgen05_alloc(uint32_t to) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to),
               "n"(kTensorColumns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
/// Frees them; the same warp, after the last use.
__device__ __forceinline__ void tcgen05_dealloc(uint32_t memory) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(memory),
               "n"(kTensorColumns)
               : "memory");
}

/// Starts d (+)= a b over 16 elements: d and, in _ts, a in tensor memory, the rest in shared
/// memory. Products of a thread are executed in their order.
__device__ __forceinline__ void tcgen05_mma_ss(uint32_t d, uint64_t a, uint64_t b, uint32_t kind,
                                               bool accumulates) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(kind), "r"(accumulates ? 1 : 0)
      : "memory");
}
__device__ __forceinline__ void tcgen05_mma_ts(uint32_t d, uint32_t a, uint64_t b, uint32_t kind,
                                               bool accumulates) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(d),
      "r"(a), "l"(b), "r"(kind), "r"(accumulates ? 1 : 0)
      : "memory");
}
/// Arrives at the barrier once all products that this thread has started are done.
__device__ __forceinline__ void tcgen05_commit(uint32_t barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
      : "memory");
}

/// Order of a thread's accesses to tensor memory relative to barriers between threads.
__device__ __forceinline__ void tcgen05_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tcgen05_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// Starts to read 32 columns of the thread's lane; the whole warp, whose lanes are 32 (warp % 4)
/// and following. The values are there after tcgen05_wait_ld.
__device__ __forceinline__ void tcgen05_ld32(float (&v)[32], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32];"
      : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),
        "=f"(v[7]), "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]),
        "=f"(v[14]), "=f"(v[15]), "=f"(v[16]), "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]),
        "=f"(v[21]), "=f"(v[22]), "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]),
        "=f"(v[28]), "=f"(v[29]), "=f"(v[30]), "=f"(v[31])
      : "r"(address)
      : "memory");
}
/// Waits for this thread's reads. Values pass through it, so that no use comes before it.
template <int kParts>
__device__ __forceinline__ void tcgen05_wait_ld(float (&values)[kParts][32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(values[part][i])::"memory");
  }
}

/// Starts to write 32 columns of the thread's lane, as tcgen05_ld32 reads them.
__device__ __forceinline__ void tcgen05_st32(uint32_t address, const uint32_t (&v)[32]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], "
      "{%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,"
      "%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32};" ::"r"(address),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]),
      "r"(v[8]), "r"(v[9]), "r"(v[10]), "r"(v[11]), "r"(v[12]), "r"(v[13]), "r"(v[14]), "r"(v[15]),
      "r"(v[16]), "r"(v[17]), "r"(v[18]), "r"(v[19]), "r"(v[20]), "r"(v[21]), "r"(v[22]),
      "r"(v[23]), "r"(v[24]), "r"(v[25]), "r"(v[26]), "r"(v[27]), "r"(v[28]), "r"(v[29]),
      "r"(v[30]), "r"(v[31])
      : "memory");
}
/// Waits for this thread's writes.
__device__ __forceinline__ void tcgen05_wait_st() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

}  // namespace cpscope::kernels::device

#endif
