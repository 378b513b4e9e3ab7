#include "kernels/device/device_memory.h"

#include <algorithm>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kGuardBytes = 256;
constexpr uint8_t kGuardByte = 0xA7;

int64_t round_up(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int32_t GuardedArrays::reserve(std::string name, int64_t bytes) {
  arrays_.push_back({std::move(name), total_bytes_, bytes});
  // The bytes that rounding adds belong to the guard.
  total_bytes_ = round_up(total_bytes_ + bytes) + kGuardBytes;
  return static_cast<int32_t>(arrays_.size()) - 1;
}

int64_t GuardedArrays::guard_end(size_t array) const {
  return array + 1 < arrays_.size() ? arrays_[array + 1].offset : total_bytes_;
}

void GuardedArrays::allocate(uint8_t fill, Stream stream) {
  memory_ = DeviceMemory(total_bytes_);
  fill_bytes(memory_.data(), kGuardByte, total_bytes_, stream);
  for (const Array& array : arrays_) {
    if (array.bytes > 0)
      fill_bytes(memory_.as<uint8_t>() + array.offset, fill, array.bytes, stream);
  }
}

std::string GuardedArrays::find_broken_guard(Stream stream) const {
  if (memory_.data() == nullptr) return "";
  // The guard after one array is the guard before the next.
  std::vector<std::vector<uint8_t>> guards(arrays_.size() + 1);
  const auto fetch = [&](size_t guard, int64_t begin, int64_t end) {
    guards[guard].resize(static_cast<size_t>(end - begin));
    copy_to_host(guards[guard].data(), memory_.as<uint8_t>() + begin, end - begin, stream);
  };
  fetch(0, 0, kGuardBytes);
  for (size_t a = 0; a < arrays_.size(); ++a)
    fetch(a + 1, arrays_[a].offset + arrays_[a].bytes, guard_end(a));
  wait_for_stream(stream);
  for (size_t g = 0; g < guards.size(); ++g) {
    const auto broken = std::find_if(guards[g].begin(), guards[g].end(),
                                     [](uint8_t byte) { return byte != kGuardByte; });
    if (broken == guards[g].end()) continue;
    const auto distance = broken - guards[g].begin();
    if (g == 0)
      return fmt::format("{} bytes before {}", kGuardBytes - distance, arrays_.front().name);
    return fmt::format("{} bytes after the end of {}", distance, arrays_[g - 1].name);
  }
  return "";
}

}  // namespace cpscope::kernels
