#pragma once

#include "sim/base/result.h"
#include "sim/run/item_kernel.h"

#include <functional>
#include <string>

namespace cpscope {

/// Makes the kernel; called in the child process alone.
using KernelMaker = std::function<Result<ItemKernel>()>;

/// Somebody else's kernel in a process of its own, so that what it does to its process is an error
/// of the call: a crash, exit(), a call that does not return within CPSCOPE_PLUGIN_SECONDS (default
/// 600). `name` is what errors call it: "plugin mine.so". What it prints on stdout goes to stderr.
/// A child is started for every plan, of which it has a copy. Errors: as `make`; unavailable where
/// no process can be started; failed where the process ended, with pass, rank and step.
Result<ItemKernel> isolate_kernel(const std::string& name, const KernelMaker& make);

}  // namespace cpscope
