#pragma once

#include <cstdint>

namespace cpscope {

/// Bytes of main memory of this machine, used or not.
int64_t machine_memory_bytes();

inline double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace cpscope
