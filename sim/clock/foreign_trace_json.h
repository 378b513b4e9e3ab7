#pragma once

#include "sim/clock/foreign_trace.h"
#include "sim/clock/trace_bytes.h"

#include <string>

namespace cpscope {

/// Reads a trace in Chrome's event format, of Kineto or others. Errors as read_foreign_trace.
Result<ForeignTrace> read_json_trace(TraceBytes& bytes, const std::string& path);

}  // namespace cpscope
