#pragma once

#include "sim/run/executor.h"

namespace cpscope::kernels {

/// Describes `count` GPUs of this process, the first of them being `device`. Errors: unavailable.
Result<DeviceReport> report_devices(int device, int32_t count);

}  // namespace cpscope::kernels
