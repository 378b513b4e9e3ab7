#pragma once

#include <cstdint>

namespace cpscope {

/// Bytes of main memory of this machine, used or not.
int64_t machine_memory_bytes();

}  // namespace cpscope
