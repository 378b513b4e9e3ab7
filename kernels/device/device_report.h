#pragma once

#include "sim/run/executor.h"

namespace cpscope::kernels {

/// What `count` GPUs of this process are, the first of them being `device`. Errors: unavailable.
Result<DeviceReport> report_devices(int device, int32_t count);

}  // namespace cpscope::kernels
