#pragma once

#include "kernels/device/device_code.h"
#include "kernels/device/tensor_map.h"

#include <cstdint>

/// Instructions that only Hopper has (sm_90a): transaction barriers, TMA box copies, register
/// budgets and named barriers. The products are in kernels/hopper/hopper_products.h. The CPU
/// emulator has a second body for every function here. Source: PTX ISA 9.0, sections on mbarrier,
/// cp.async.bulk.tensor, setmaxnreg and bar.

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/hopper_emulated.h"
#else

namespace cpscope::kernels::device {

/// Two adjacent numbers.
struct alignas(8) FloatPair {
  float x, y;
};
struct alignas(8) IntPair {
  int32_t x, y;
};
struct alignas(16) FloatFour {
  float x, y, z, w;
};

// ---- transaction barriers: 8 bytes of shared memory, one phase after another --------------------

/// A phase ends when `arrivals` threads have arrived and all announced bytes have arrived.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes the initialised barriers visible to TMA.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives and announces `bytes` that copies will write.
__device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the end of the current phase if that phase has this parity.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- named barriers: 1..15, counted in threads; 0 is __syncthreads() ---------------------------

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- TMA box copies ----------------------------------------------------------------------------

/// Prefetches a map for TMA; otherwise the first box copy would wait for it.
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Copies the box that begins at these coordinates of the map to shared memory, swizzled by 128
/// bytes. Elements out of the map's bounds arrive as zeros and are not read.
__device__ __forceinline__ void load_box(uint32_t to, const TensorMap* map, uint32_t barrier,
                                         int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3,%4,%5,%6,%7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// Fetches the box to the L2 cache.
__device__ __forceinline__ void prefetch_box(const TensorMap* map, int c0, int c1, int c2, int c3,
                                             int c4) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1,%2,%3,%4,%5}];" ::"l"(map),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

/// Starts a copy of `bytes`, a multiple of 16, both addresses aligned to 16 bytes. The copy signals
/// the barrier as a box copy does.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Makes this thread's writes to shared memory visible to TMA and to products.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Writes the box stored at `from`, swizzled by 128 bytes, to these coordinates of the map.
/// Elements out of the map's bounds are not written.
__device__ __forceinline__ void store_box(const TensorMap* map, uint32_t from, int c0, int c1,
                                          int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5,%6}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
/// Same as store_box, but adds to the fp32 numbers in memory, each by one rounded addition.
__device__ __forceinline__ void add_box(const TensorMap* map, uint32_t from, int c0, int c1, int c2,
                                        int c3, int c4) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, "
      "{%2,%3,%4,%5,%6}], [%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
__device__ __forceinline__ void commit_boxes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until this thread's boxes have been read from shared memory.
__device__ __forceinline__ void wait_for_boxes_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until this thread's boxes are written to global memory.
__device__ __forceinline__ void wait_for_boxes() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- turns: CTAs that write the same memory one after another ----------------------------------

/// Waits until *taken reaches `turn`, so that boxes of this thread see the results of earlier
/// turns.
__device__ __forceinline__ void wait_for_turn(const int32_t* taken, int32_t turn) {
  int32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(taken) : "memory");
  } while (seen != turn);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// Sets *taken to `turn`, after the boxes that this thread has waited for.
__device__ __forceinline__ void pass_turn(int32_t* taken, int32_t turn) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(taken), "r"(turn) : "memory");
}

/// Waits until *flag is `expected`, which another device writes after its data. Boxes that are
/// loaded afterwards see that data, whichever thread loads them. Ends the kernel with an error if
/// the flag does not arrive within 30 s.
__device__ __forceinline__ void wait_for_arrival(const int32_t* flag, int32_t expected) {
  constexpr uint64_t kPatience = 30'000'000'000;  // ns
  uint64_t start = 0;
  for (;;) {
    int32_t value;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    if (value == expected) break;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (start == 0) start = now;
    if (now - start > kPatience) __trap();
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- registers of the threads of a warpgroup ---------------------------------------------------

template <int N>
__device__ __forceinline__ void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void yield_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- numbers -----------------------------------------------------------------------------------

/// The largest of three, by one instruction; three floats would take two.
__device__ __forceinline__ int32_t max_of_three(int32_t a, int32_t b, int32_t c) {
  return __vimax3_s32(a, b, c);
}

// ---- shared memory by its 32-bit address -------------------------------------------------------

__device__ __forceinline__ int32_t load_shared_int(uint32_t address) {
  int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_int(uint32_t address, int32_t value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared_int_pair(uint32_t address, IntPair value) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_shared_pair(uint32_t address, FloatPair value) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(value.x), "f"(value.y)
               : "memory");
}
/// Stores four matrices of 8 x 8 16-bit numbers, transposed. words[i] belongs to matrix i: thread
/// lane t holds row t / 4, columns 2 * (t % 4) and the next. `address`, in lane t: the 16 bytes
/// that receive column t % 8 of matrix t / 8.
__device__ __forceinline__ void store_transposed_x4(uint32_t address, const uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
/// Same as store_transposed_x4, not transposed. `address`, in lane t: the 16 bytes that receive row
/// t % 8 of matrix t / 8.
__device__ __forceinline__ void store_matrices_x4(uint32_t address, const uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ __forceinline__ void store_shared_four(uint32_t address, FloatFour value) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(value.x), "f"(value.y),
               "f"(value.z), "f"(value.w)
               : "memory");
}
__device__ __forceinline__ FloatFour load_shared_four(uint32_t address) {
  FloatFour value;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ FloatPair load_shared_pair(uint32_t address) {
  FloatPair value;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ IntPair load_shared_int_pair(uint32_t address) {
  IntPair value;
  asm volatile("ld.shared.v2.s32 {%0,%1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace cpscope::kernels::device

#endif
