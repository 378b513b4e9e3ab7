#pragma once

#include "kernels/device/scalar_types.h"
#include "kernels/emulator/cta.h"
#include "kernels/emulator/lent_memory.h"
#include "sim/run/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <source_location>
#include <type_traits>

// Keywords of CUDA C++ that device code uses, for a C++ compiler.
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::cpscope::kernels::emulator::thread_index())
#define blockIdx (::cpscope::kernels::emulator::current_cta().block())
#define gridDim (::cpscope::kernels::emulator::current_cta().grid())

namespace cpscope::kernels::emulator {

inline Index3 thread_index() { return {current_cta().thread(), 0, 0}; }

/// Waits for all threads of the CTA.
inline void wait_for_cta(const Place& place) {
  Cta& cta = current_cta();
  if (cta.has_fault(Fault::skip_barrier, place)) return;
  int nothing = 0;
  cta.meet(cta.whole_cta(), cta.num_threads(), cta.thread(), nothing, place, [](int* const*) {});
}

/// One instruction that the 32 lanes of a warp execute together; execute(Argument* const
/// lanes[32]).
template <class Argument, class Execute>
void meet_in_warp(Argument& argument, const Place& place, Execute execute) {
  Cta& cta = current_cta();
  cta.meet(cta.own_warp(), 32, cta.lane(), argument, place, execute);
}

}  // namespace cpscope::kernels::emulator

inline void __syncthreads(std::source_location line = std::source_location::current()) {
  cpscope::kernels::emulator::wait_for_cta({"__syncthreads", 0, line});
}

inline void __syncwarp(std::source_location line = std::source_location::current()) {
  namespace emulator = cpscope::kernels::emulator;
  const emulator::Place place{"__syncwarp", 0, line};
  if (emulator::current_cta().has_fault(emulator::Fault::skip_barrier, place)) return;
  int nothing = 0;
  emulator::meet_in_warp(nothing, place, [](int* const*) {});
}

/// The names of kernels/device/device_code.h, executed on the CPU.
namespace cpscope::kernels::device {

inline uint8_t* dynamic_shared() {
  return reinterpret_cast<uint8_t*>(emulator::current_cta().shared());
}

inline uint32_t shared_address(const void* in_shared,
                               std::source_location line = std::source_location::current()) {
  return emulator::current_cta().address_of(in_shared, {"shared_address", 0, line});
}

// Kernels run one after another.
inline void wait_for_kernel_before() {}
inline void let_next_kernel_begin() {}

inline float to_float(Bf16 value) { return from_bf16_bits(value.bits); }
inline float to_float(Fp16 value) { return from_fp16_bits(value.bits); }
inline float to_float(float value) { return value; }

template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return {to_bf16_bits(value)};
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return {to_fp16_bits(value)};
  } else {
    return value;
  }
}

template <class T>
uint32_t pack(float low, float high) {
  return static_cast<uint32_t>(from_float<T>(low).bits) |
         static_cast<uint32_t>(from_float<T>(high).bits) << 16;
}

inline uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<uint32_t>(bytes >> (which >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return picked;
}
inline float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

inline float exp2_approx(float x) {
  const float result = std::exp2(x);
  return result < std::numeric_limits<float>::min() ? 0.0f : result;
}
inline float log2_approx(float x) { return std::log2(x); }

inline float add_rounded(float a, float b) {
  const volatile float rounded = b;  // prevents the host's compiler from fusing the product
  return a + rounded;
}
inline float multiply_rounded(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline void prefetch_to_l2(const void*) {}
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }

inline float shuffle_xor(float value, int mask,
                         std::source_location line = std::source_location::current()) {
  struct Argument {
    float value, result;
    int mask;
  } argument{value, 0.0f, mask};
  emulator::meet_in_warp(argument, {"shuffle_xor", 0, line}, [](Argument* const* lanes) {
    for (int i = 0; i < 32; ++i) lanes[i]->result = lanes[i ^ lanes[i]->mask]->value;
  });
  return argument.result;
}

inline uint32_t shuffle_xor(uint32_t value, int mask,
                            std::source_location line = std::source_location::current()) {
  return std::bit_cast<uint32_t>(shuffle_xor(std::bit_cast<float>(value), mask, line));
}

/// Returns the first lane's value, as a device does, whatever the other lanes hold.
inline int32_t shared_by_warp(int32_t value,
                              std::source_location line = std::source_location::current()) {
  const emulator::Place place{"shared_by_warp", 0, line};
  emulator::meet_in_warp(value, place, [&](int32_t* const* lanes) {
    for (int i = 1; i < 32; ++i) {
      if (*lanes[i] != *lanes[0])
        emulator::current_cta().fail("the lanes of a warp hold different values", place);
    }
  });
  return value;
}

inline int32_t from_lane(int32_t value, int lane,
                         std::source_location line = std::source_location::current()) {
  emulator::meet_in_warp(value, {"from_lane", 0, line}, [&](int32_t* const* lanes) {
    const int32_t passed = *lanes[lane];
    for (int i = 0; i < 32; ++i) *lanes[i] = passed;
  });
  return value;
}

inline bool any_in_warp(bool condition,
                        std::source_location line = std::source_location::current()) {
  struct Argument {
    bool condition, result;
  } argument{condition, false};
  emulator::meet_in_warp(argument, {"any_in_warp", 0, line}, [](Argument* const* lanes) {
    bool any = false;
    for (int i = 0; i < 32; ++i) any = any || lanes[i]->condition;
    for (int i = 0; i < 32; ++i) lanes[i]->result = any;
  });
  return argument.result;
}

inline int32_t atomic_add(int32_t* to, int32_t value) {
  emulator::current_cta().note_progress();
  const int32_t before = *to;
  *to += value;
  return before;
}

inline void fence_device() {}
inline void fence_system() {}

inline void publish_to_system(int32_t* flag, int32_t value) {
  emulator::current_cta().note_progress();
  *flag = value;
}

inline void atomic_max(float* to, float value) {
  emulator::current_cta().note_progress();
  if (std::isnan(value) || value > *to) *to = value;
}

inline void atomic_max_if(bool condition, float* to, float value) {
  if (condition) atomic_max(to, value);
}

inline void store_if(bool condition, float* to, float value) {
  if (condition) *to = value;
}

inline void store_four_if(bool condition, void* to, const uint32_t (&words)[4],
                          std::source_location line = std::source_location::current()) {
  if (!condition) return;
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0)
    emulator::current_cta().fail("the target is not on 16 bytes", {"store_four_if", 0, line});
  if (!emulator::is_lent(to, sizeof(words)))
    emulator::current_cta().fail("writes outside device memory", {"store_four_if", 0, line});
  std::memcpy(to, words, sizeof(words));
}

inline void store_pair(float* to, float first, float second,
                       std::source_location line = std::source_location::current()) {
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0)
    emulator::current_cta().fail("the target is not on 8 bytes", {"store_pair", 0, line});
  to[0] = first;
  to[1] = second;
}

inline void store_pair_if(bool condition, float* to, float first, float second,
                          std::source_location line = std::source_location::current()) {
  if (condition) store_pair(to, first, second, line);
}

}  // namespace cpscope::kernels::device
