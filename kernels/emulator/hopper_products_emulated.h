#pragma once

#include "kernels/emulator/hopper_emulated.h"

#include <cstddef>
#include <cstdint>

/// Products of warpgroups (wgmma).
namespace cpscope::kernels::emulator {

inline constexpr int32_t kBoxRowBytes = 128;

/// Real address of the 16 bytes that a byte belongs to.
inline uint32_t swizzle(uint32_t address) { return address ^ (((address >> 7) & 7) << 4); }

/// Executes one product, whose operands are read and whose sums are written now. index: in the
/// oldest group of each thread.
void execute_product(const Warpgroup& group, size_t index, const Place& place);

}  // namespace cpscope::kernels::emulator
