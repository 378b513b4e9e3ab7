#pragma once

#include <cstdint>

namespace cpscope {

/// Bytes of main memory that this process may have: the machine's, used or not, or the limit that a
/// shell or a container has set.
int64_t machine_memory_bytes();

inline double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace cpscope
