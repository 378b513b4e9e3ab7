#pragma once

#include "kernels/emulator/device_code_emulated.h"

#include <cstdint>
#include <source_location>
#include <type_traits>

namespace cpscope::kernels::emulator {

struct LoadMatrixLane {
  uint32_t address = 0;
  uint32_t (*registers)[4] = nullptr;
};

/// ldmatrix .x4 of one warp (PTX ISA 9.7.14.5.15).
void load_matrix_of_warp(LoadMatrixLane* const* lanes, bool is_transposed, const Place& place);

struct MultiplyAddLane {
  float (*d)[4] = nullptr;
  const uint32_t (*a)[4] = nullptr;
  uint32_t b[2] = {0, 0};
};

/// mma .m16n8k16 of one warp (PTX ISA 9.7.14.5.8), sums in fp32 in the order of k.
void multiply_add_of_warp(MultiplyAddLane* const* lanes, bool is_bf16);

}  // namespace cpscope::kernels::emulator

/// The names of kernels/device/tensor_core.h, executed on the CPU.
namespace cpscope::kernels::device {

inline void copy_async_16(uint32_t to_shared, const void* from, bool is_valid,
                          std::source_location line = std::source_location::current()) {
  emulator::Cta& cta = emulator::current_cta();
  const emulator::Place place{"copy_async_16", 0, line};
  if (!is_valid && cta.has_fault(emulator::Fault::skip_zero_fill, place)) return;
  const bool reads =
      is_valid || (from != nullptr && cta.has_fault(emulator::Fault::copy_invalid_rows, place));
  if (is_valid && from == nullptr) cta.fail("a valid copy from nowhere", place);
  cta.start_copy(to_shared, reads ? from : nullptr, place);
}

inline void copy_async_commit() { emulator::current_cta().commit_copies(); }

template <int kPending>
void copy_async_wait(std::source_location line = std::source_location::current()) {
  emulator::Cta& cta = emulator::current_cta();
  if (cta.has_fault(emulator::Fault::skip_copy_wait, {"copy_async_wait", 0, line})) return;
  cta.wait_for_copies(kPending);
}

inline void load_matrix_x4(uint32_t (&r)[4], uint32_t address,
                           std::source_location line = std::source_location::current()) {
  emulator::LoadMatrixLane lane{address, &r};
  const emulator::Place place{"load_matrix_x4", 0, line};
  emulator::meet_in_warp(lane, place, [&](emulator::LoadMatrixLane* const* lanes) {
    emulator::load_matrix_of_warp(lanes, false, place);
  });
}

inline void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address,
                                      std::source_location line = std::source_location::current()) {
  emulator::LoadMatrixLane lane{address, &r};
  const emulator::Place place{"load_matrix_x4_transposed", 0, line};
  emulator::meet_in_warp(lane, place, [&](emulator::LoadMatrixLane* const* lanes) {
    const bool is_plain =
        emulator::current_cta().has_fault(emulator::Fault::plain_for_transposed, place);
    emulator::load_matrix_of_warp(lanes, !is_plain, place);
  });
}

template <class T>
void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  std::source_location line = std::source_location::current()) {
  emulator::MultiplyAddLane lane{&d, &a, {b0, b1}};
  emulator::meet_in_warp(lane, {"multiply_add", 0, line},
                         [](emulator::MultiplyAddLane* const* lanes) {
                           emulator::multiply_add_of_warp(lanes, std::is_same_v<T, Bf16>);
                         });
}

}  // namespace cpscope::kernels::device
