#pragma once

#include "kernels/plugin/plugin_memory.h"
#include "sim/base/result.h"
#include "sim/run/item_kernel.h"

#include <functional>
#include <string>

namespace cpscope::kernels {

/// Makes the memory that a plugin requests; an Error gives the reason if there is none.
using MemoryMaker = std::function<Result<PluginMemory>()>;

/// Loads a plugin (kernels/plugin.h) and makes a kernel of it. Every tensor of a call is placed
/// between guard bytes; results hold NaN before the call. The kernel's errors: unavailable if the
/// plugin returns that it does not support a call; failed if it returns another status, writes
/// outside its tensors or into its inputs, each with pass, rank and step. Errors of loading
/// (unavailable): no such file, not a library, no cpscope_open_plugin, another ABI version, a
/// broken description, device memory without a device.
Result<ItemKernel> open_plugin(const std::string& path, const MemoryMaker& make_device_memory);

}  // namespace cpscope::kernels
