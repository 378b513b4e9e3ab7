#pragma once

#include "sim/base/result.h"
#include "sim/run/item_kernel.h"

#include <functional>
#include <string>

namespace cpscope {

/// Makes the kernel; called only in the child process.
using KernelMaker = std::function<Result<ItemKernel>()>;

/// Runs an external kernel in its own process, so that a crash, exit(), or a call that does not
/// return within CPSCOPE_PLUGIN_SECONDS (default 600) becomes an error of the call. `name` is used
/// in errors: "plugin mine.so". Its output on stdout goes to stderr. A child is started for every
/// plan, with a copy of the plan. Errors: as `make`; unavailable if no process can be started;
/// failed if the process ended, with pass, rank and step.
Result<ItemKernel> isolate_kernel(const std::string& name, const KernelMaker& make);

}  // namespace cpscope
