#pragma once

#include "sim/base/result.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace cpscope::kernels {

/// Memory that a plugin reads and writes, and functions by which cpscope accesses it. All sizes in
/// bytes. Functions may throw DeviceError.
struct PluginMemory {
  std::function<std::shared_ptr<void>(int64_t bytes)> allocate;
  std::function<void(void* to, const void* from, int64_t bytes)> copy_in;   // from the host
  std::function<void(void* to, const void* from, int64_t bytes)> copy_out;  // to the host
  std::function<void()> wait;                                               // waits for `stream`
  void* stream = nullptr;
};

/// Memory of the host.
PluginMemory host_plugin_memory();

/// Memory of the first device, with a separate stream; only if device code is linked. Errors
/// (unavailable): there is no device, or it fails.
Result<PluginMemory> device_plugin_memory();

}  // namespace cpscope::kernels
