#pragma once

#include "kernels/device/device_code.h"

#ifdef CPSCOPE_EMULATED
#include "kernels/emulator/tensor_core_emulated.h"
#else

/// Asynchronous copies and matrix instructions of every tensor core since sm_80. The emulator
/// offers the same names.
namespace cpscope::kernels::device {

/// Starts the copy of 16 bytes to shared memory, or of 16 zero bytes when !is_valid; `from` is not
/// read then. Both addresses are aligned to 16 bytes.
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from, bool is_valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared),
               "l"(__cvta_generic_to_global(from)), "r"(is_valid ? 16 : 0)
               : "memory");
}

/// Makes one group of the copies that this thread has started since the last call.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most the `kPending` youngest groups of this thread are in flight. Other threads
/// see the data after a barrier that follows.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Four 8x8 matrices of 16-bit numbers: thread lane l passes the address of row l % 8 of matrix l /
/// 8 and gets, of each matrix, row l / 4, columns 2 (l % 4) and the next.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Same as load_matrix_x4 with each matrix transposed: rows 2 (l % 4) and the next, column l / 4.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// d += a * b: a 16x16 by rows, b 16x8 by columns, d 16x8 in fp32. Lane l holds, with g = l / 4 and
/// c = 2 (l % 4): of d and (in pairs) a the rows g and g + 8; d[0..1] row g, columns c, c + 1;
/// d[2..3] row g + 8; a[0], a[1] rows g, g + 8 of columns c, c + 1; a[2], a[3] of columns c + 8,
/// c + 9; b0, b1 rows c, c + 1 and c + 8, c + 9 of column g.
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace cpscope::kernels::device

#endif
