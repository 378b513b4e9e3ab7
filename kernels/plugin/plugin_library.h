#pragma once

#include "kernels/plugin/plugin_memory.h"
#include "sim/base/result.h"
#include "sim/run/item_kernel.h"

#include <functional>
#include <string>

namespace cpscope::kernels {

/// Makes the memory that a plugin asks for; an Error says why there is none.
using MemoryMaker = std::function<Result<PluginMemory>()>;

/// Loads a plugin (kernels/plugin.h) and makes a kernel of it. Every tensor of a call lies between
/// guard bytes; results hold NaN before the call. The kernel's errors: unavailable where the plugin
/// says that it does not support a call; failed where it returns another status, writes outside its
/// tensors or into its inputs, each with pass, rank and step. Errors of loading (unavailable): no
/// such file, not a library, no cpscope_open_plugin, another ABI version, a broken description,
/// device memory where there is no device.
Result<ItemKernel> open_plugin(const std::string& path, const MemoryMaker& make_device_memory);

}  // namespace cpscope::kernels
