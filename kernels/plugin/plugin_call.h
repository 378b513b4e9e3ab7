#pragma once

#include "kernels/plugin.h"
#include "kernels/plugin/plugin_memory.h"
#include "sim/run/item_kernel.h"

#include <optional>
#include <string>

namespace cpscope::kernels {

/// A plugin that was loaded; the library stays open as long as somebody holds this.
struct LoadedPlugin {
  std::string path;
  const cpscope_plugin* description = nullptr;
  PluginMemory memory;
};

/// Carries one item out: lays its tensors into guarded arrays of the plugin's memory, calls, and
/// reads the results back. Errors as in open_plugin.
std::optional<Error> call_plugin(const LoadedPlugin& plugin, ItemCall& call);

}  // namespace cpscope::kernels
