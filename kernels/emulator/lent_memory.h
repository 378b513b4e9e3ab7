#pragma once

#include <cstdint>

namespace cpscope::kernels::emulator {

/// Are these bytes inside one piece of device memory that is lent at present?
bool is_lent(const void* begin, int64_t bytes);

}  // namespace cpscope::kernels::emulator
