#pragma once

#include "kernels/group/group_message.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace cpscope::kernels {

// All hosts of a group have the same byte order: they run the same program.

/// Appends the values' bytes.
template <class T>
void put_values(Bytes& bytes, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = bytes.size();
  bytes.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(bytes.data() + at, values.data(), values.size_bytes());
}

template <class T>
void put(Bytes& bytes, T value) {
  put_values<T>(bytes, {&value, 1});
}

/// Appends the number of values, then the values.
template <class T>
void put_list(Bytes& bytes, const std::vector<T>& values) {
  put(bytes, static_cast<int64_t>(values.size()));
  put_values<T>(bytes, values);
}

/// Reads values in the order in which they were appended. An incomplete value reads as zero.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    T value{};
    if (bytes_.size() < sizeof value) {
      is_short_ = true;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }

  template <class T>
  std::vector<T> take_list() {
    const int64_t count = take<int64_t>();
    if (count < 0 || static_cast<uint64_t>(count) > bytes_.size() / sizeof(T)) {
      is_short_ = true;
      return {};
    }
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) value = take<T>();
    return values;
  }

  std::string rest() const { return to_string(bytes_); }
  bool is_short() const { return is_short_; }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::span<const uint8_t> bytes_;
  bool is_short_ = false;
};

}  // namespace cpscope::kernels
