#pragma once

#include "kernels/plugin.h"
#include "kernels/plugin/plugin_memory.h"
#include "sim/run/item_kernel.h"

#include <optional>
#include <string>

namespace cpscope::kernels {

/// A loaded plugin; the library stays open while an object holds this.
struct LoadedPlugin {
  std::string path;
  const cpscope_plugin* description = nullptr;
  PluginMemory memory;
};

/// Executes one item: copies its tensors into guarded arrays of the plugin's memory, calls the
/// plugin, and reads the results back. Errors as in open_plugin.
std::optional<Error> call_plugin(const LoadedPlugin& plugin, ItemCall& call);

}  // namespace cpscope::kernels
