#pragma once

#include <cstdint>

namespace cpscope {

/// Bytes of main memory that this process may use: the machine's total, free or not, or the lower
/// limit set by a shell or a container.
int64_t machine_memory_bytes();

inline double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace cpscope
