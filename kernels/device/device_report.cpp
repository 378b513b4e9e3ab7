#include "kernels/device/device_report.h"

#include "kernels/device/device.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string>

namespace cpscope::kernels {
namespace {

/// The version, such as "580.159.04", from the kernel module's own line; empty if there is none.
std::string find_driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return "";
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool is_version = word.find('.') != std::string::npos &&
                            std::all_of(word.begin(), word.end(), [](unsigned char c) {
                              return c == '.' || std::isdigit(c) != 0;
                            });
    if (is_version) return word;
  }
  return "";
}

}  // namespace

Result<DeviceReport> report_devices(int device, int32_t count) {
  try {
    select_device(device);
    const DeviceInfo info = describe_device(device);
    return DeviceReport{.name = info.name,
                        .driver = find_driver_version(),
                        .multiprocessors = info.num_sms,
                        .memory_gib = static_cast<double>(info.total_bytes) / (1 << 30),
                        .count = count};
  } catch (const DeviceError& error) {
    return make_error(ErrorKind::unavailable, error.what());
  }
}

}  // namespace cpscope::kernels
