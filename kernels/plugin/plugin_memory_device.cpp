#include "kernels/device/device.h"
#include "kernels/plugin/plugin_memory.h"

namespace cpscope::kernels {

Result<PluginMemory> device_plugin_memory() try {
  const Result<int> devices = count_devices();
  if (!devices) return devices.error();
  select_device(0);
  const std::shared_ptr<StreamTag> stream(make_stream(Urgency::usual),
                                          [](Stream made) { destroy_stream(made); });
  PluginMemory memory;
  memory.allocate = [](int64_t bytes) {
    return std::shared_ptr<void>(allocate_bytes(bytes), [](void* data) { free_bytes(data); });
  };
  // Waits for every copy: the host's memory is pageable, and the order is then simple.
  memory.copy_in = [stream](void* to, const void* from, int64_t bytes) {
    copy_to_device(to, from, bytes, stream.get());
    wait_for_stream(stream.get());
  };
  memory.copy_out = [stream](void* to, const void* from, int64_t bytes) {
    copy_to_host(to, from, bytes, stream.get());
    wait_for_stream(stream.get());
  };
  memory.wait = [stream] { wait_for_stream(stream.get()); };
  memory.stream = stream.get();
  return memory;
} catch (const DeviceError& error) {
  return make_error(ErrorKind::unavailable, error.what());
}

}  // namespace cpscope::kernels
