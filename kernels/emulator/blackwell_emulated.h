#pragma once

#include "kernels/emulator/hopper_emulated.h"

#include <cstdint>

namespace cpscope::kernels::emulator {

/// A product d[128, N] (+)= a b over 16 elements, as its thread has started it; bits as in
/// kernels/device/blackwell.h.
struct TensorProduct {
  uint32_t d = 0;
  uint64_t a = 0;  // a descriptor, or an address in tensor memory
  bool a_is_in_tensor_memory = false;
  uint64_t b = 0;
  uint32_t kind = 0;
  bool accumulates = false;
};

void allocate_tensor_memory(uint32_t to, const Place& place);
void free_tensor_memory(uint32_t memory, const Place& place);
void start_tensor_product(const TensorProduct& product, const Place& place);
void commit_tensor_products(uint32_t barrier, const Place& place);
/// 32 columns of the running thread's lane. Values arrive, and are written, in the waits.
void start_tensor_load(float* values, uint32_t address, const Place& place);
void wait_for_tensor_loads(const Place& place);
void start_tensor_store(uint32_t address, const uint32_t* words, const Place& place);
void wait_for_tensor_stores(const Place& place);

}  // namespace cpscope::kernels::emulator

/// The names of kernels/device/blackwell.h, executed on the CPU: the products of a CTA are executed
/// one after another, each at some later time.
namespace cpscope::kernels::device {

inline void tcgen05_alloc(uint32_t to, Line line = Line::current()) {
  emulator::allocate_tensor_memory(to, {"tcgen05_alloc", to, line});
}
inline void tcgen05_dealloc(uint32_t memory, Line line = Line::current()) {
  emulator::free_tensor_memory(memory, {"tcgen05_dealloc", memory, line});
}
inline void tcgen05_mma_ss(uint32_t d, uint64_t a, uint64_t b, uint32_t kind, bool accumulates,
                           Line line = Line::current()) {
  emulator::start_tensor_product({d, a, false, b, kind, accumulates}, {"tcgen05_mma_ss", d, line});
}
inline void tcgen05_mma_ts(uint32_t d, uint32_t a, uint64_t b, uint32_t kind, bool accumulates,
                           Line line = Line::current()) {
  emulator::start_tensor_product({d, a, true, b, kind, accumulates}, {"tcgen05_mma_ts", d, line});
}
inline void tcgen05_commit(uint32_t barrier, Line line = Line::current()) {
  emulator::commit_tensor_products(barrier, {"tcgen05_commit", barrier, line});
}
inline void tcgen05_fence_before() {}
inline void tcgen05_fence_after() {}
inline void tcgen05_ld32(float (&values)[32], uint32_t address, Line line = Line::current()) {
  emulator::start_tensor_load(values, address, {"tcgen05_ld32", address, line});
}
template <int kParts>
void tcgen05_wait_ld(float (&/*values*/)[kParts][32], Line line = Line::current()) {
  emulator::wait_for_tensor_loads({"tcgen05_wait_ld", 0, line});
}
inline void tcgen05_st32(uint32_t address, const uint32_t (&words)[32],
                         Line line = Line::current()) {
  emulator::start_tensor_store(address, words, {"tcgen05_st32", address, line});
}
inline void tcgen05_wait_st(Line line = Line::current()) {
  emulator::wait_for_tensor_stores({"tcgen05_wait_st", 0, line});
}

}  // namespace cpscope::kernels::device
