#pragma once

#include "sim/clock/foreign_trace.h"

#include <string>

namespace cpscope {

/// Reads what `nsys export --type sqlite` writes: kernels and copies between GPUs, each GPU as a
/// process of its own. It does not say the bytes of NCCL's kernels. Errors as read_foreign_trace;
/// unavailable without SQLite.
Result<ForeignTrace> read_nsys_trace(const std::string& path);

}  // namespace cpscope
