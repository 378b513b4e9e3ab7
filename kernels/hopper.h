#pragma once

#include "kernels/device_code.h"
#include "kernels/tensor_map.h"

#include <cstdint>

/// Hopper's own instructions (sm_90a) as device code sees them: transaction barriers, box copies,
/// register budgets and named barriers. The products are in kernels/hopper_products.h. The CPU
/// emulator has a second body for every function here.
/// Source: PTX ISA 9.0, sections on mbarrier, cp.async.bulk.tensor, setmaxnreg and bar.

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/hopper_emulated.h"
#else

namespace cpscope::kernels::device {

/// Numbers that lie side by side.
struct alignas(8) FloatPair {
  float x, y;
};
struct alignas(8) IntPair {
  int32_t x, y;
};
struct alignas(16) FloatFour {
  float x, y, z, w;
};

// ---- transaction barriers: 8 bytes of shared memory, one phase after the other -----------------

/// A phase ends when `arrivals` threads have arrived and all bytes announced have landed.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes the initialised barriers known to the copy unit.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives and announces `bytes` that copies will land.
__device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the end of the current phase, if that phase has this parity.
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

// ---- box copies --------------------------------------------------------------------------------

/// Copies the box that begins at these coordinates of the map to shared memory, swizzled by 128
/// bytes; what is out of the map's bounds lands as zeros and is not read.
__device__ __forceinline__ void load_box(uint32_t to, const TensorMap* map, uint32_t barrier,
                                         int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3,%4,%5,%6,%7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
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

// ---- shared memory by its 32-bit address -------------------------------------------------------

__device__ __forceinline__ int32_t load_shared_int(uint32_t address) {
  int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_int(uint32_t address, int32_t value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared_float(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
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
