#pragma once

#include "kernels/device/device.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope::kernels {

/// Device memory that frees itself.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(int64_t bytes) : data_(bytes > 0 ? allocate_bytes(bytes) : nullptr) {}
  ~DeviceMemory() { free_bytes(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// Many arrays in one allocation, each between guard bytes that no kernel may write. Arrays are
/// aligned to 256 bytes. Use: reserve all, then allocate, then at().
class GuardedArrays {
 public:
  /// Plans an array and returns its number.
  int32_t reserve(std::string name, int64_t bytes);
  /// Bytes of the allocation, guards included.
  int64_t total_bytes() const { return total_bytes_; }
  /// Allocates and fills every array with `fill` and every guard with the guard pattern.
  void allocate(uint8_t fill, Stream stream);
  template <class T>
  T* at(int32_t array) const {
    return reinterpret_cast<T*>(memory_.as<uint8_t>() + arrays_[array].offset);
  }
  int64_t bytes_of(int32_t array) const { return arrays_[array].bytes; }

  /// Names the first array next to which a guard byte was overwritten and how far from it; empty
  /// when all guards are intact. Waits for the stream.
  std::string find_broken_guard(Stream stream) const;

 private:
  struct Array {
    std::string name;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  int64_t guard_end(size_t array) const;

  std::vector<Array> arrays_;
  int64_t total_bytes_ = 256;  // a guard precedes the first array
  DeviceMemory memory_;
};

/// Copies a vector to new device memory; the copy is done when the stream reaches it.
template <class T>
DeviceMemory to_device(const std::vector<T>& values, Stream stream) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  DeviceMemory memory(bytes);
  if (bytes > 0) copy_to_device(memory.data(), values.data(), bytes, stream);
  return memory;
}

}  // namespace cpscope::kernels
