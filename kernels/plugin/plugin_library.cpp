#include "kernels/plugin/plugin_library.h"

#include "kernels/plugin/plugin_call.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

Error cannot_load(const std::string& path, std::string what, std::string hint = "") {
  return make_error(ErrorKind::unavailable,
                    fmt::format("plugin {} cannot be used: {}", path, std::move(what)),
                    std::move(hint));
}

/// The error in a plugin's description of itself; nothing if it can be called.
std::optional<Error> check_description(const std::string& path, const cpscope_plugin* description) {
  if (description == nullptr)
    return cannot_load(path, "cpscope_open_plugin returned no description");
  if (description->abi_version != CPSCOPE_PLUGIN_ABI)
    return cannot_load(path,
                       fmt::format("it speaks version {} of the plugin interface, this program {}",
                                   description->abi_version, CPSCOPE_PLUGIN_ABI),
                       "compile it with this version's kernels/plugin.h");
  if (description->attend == nullptr) return cannot_load(path, "it has no function attend");
  if (description->memory != CPSCOPE_HOST && description->memory != CPSCOPE_DEVICE)
    return cannot_load(path,
                       fmt::format("it asks for memory that there is not: {}", description->memory),
                       "CPSCOPE_HOST or CPSCOPE_DEVICE");
  return std::nullopt;
}

}  // namespace

PluginMemory host_plugin_memory() {
  PluginMemory memory;
  memory.allocate = [](int64_t bytes) {
    return std::shared_ptr<void>(
        ::operator new (static_cast<size_t>(bytes), std::align_val_t{64}),
        [](void* data) { ::operator delete (data, std::align_val_t{64}); });
  };
  const auto copy = [](void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  memory.copy_in = copy;
  memory.copy_out = copy;
  memory.wait = [] {};
  return memory;
}

Result<ItemKernel> open_plugin(const std::string& path, const MemoryMaker& make_device_memory) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) return cannot_load(path, "no such file");
  // A name without a folder would be searched in the system's library folders.
  const std::string absolute = std::filesystem::absolute(path, failure).string();
  void* library = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return cannot_load(path, why == nullptr ? "it cannot be loaded" : why);
  }
  // The library is never closed: its threads, or a device's runtime, may outlive calls.
  const auto open =
      reinterpret_cast<const cpscope_plugin* (*)()>(dlsym(library, "cpscope_open_plugin"));
  if (open == nullptr)
    return cannot_load(path, "it does not export cpscope_open_plugin",
                       "see kernels/plugin.h; C++ needs extern \"C\"");
  const auto plugin = std::make_shared<LoadedPlugin>();
  plugin->path = path;
  plugin->description = open();
  if (auto error = check_description(path, plugin->description)) return *error;
  if (plugin->description->memory == CPSCOPE_DEVICE) {
    Result<PluginMemory> memory = make_device_memory();
    if (!memory) return cannot_load(path, "it asks for device memory: " + to_text(memory.error()));
    plugin->memory = std::move(memory).value();
  } else {
    plugin->memory = host_plugin_memory();
  }
  return ItemKernel([plugin](ItemCall& call) { return call_plugin(*plugin, call); });
}

}  // namespace cpscope::kernels
