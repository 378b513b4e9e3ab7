#pragma once

#include <cstdint>

namespace cpscope::kernels::emulator {

/// True if these bytes are inside one current allocation of device memory.
bool is_lent(const void* begin, int64_t bytes);

}  // namespace cpscope::kernels::emulator
