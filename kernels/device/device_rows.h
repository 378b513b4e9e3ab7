#pragma once

#include <cstdint>

namespace cpscope::kernels {

/// Rows of several heads in device memory: element d of the head_dim elements of (row, head) is at
/// row * row_stride + head * head_stride + d, in elements of the launch's dtype unless stated
/// otherwise. Rows are aligned to 16 bytes and hold padded_lanes(head_dim) elements.
struct DeviceRows {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

/// Parts of a launch's inputs that other devices write while the kernel runs: pieces of heads, each
/// written by several sources. Items of a piece begin only after all its flags are set.
struct Arrivals {
  static constexpr int32_t kMostPieces = 8;
  const int32_t* flags = nullptr;  // [piece][source]; nullptr: all inputs are there
  int32_t expected = 0;            // value of a flag once its part is there
  int32_t num_sources = 0;
  int32_t num_pieces = 0;
  int32_t ends[kMostPieces] = {};  // [piece] local heads of the stationary side
};

/// Flag by which a kernel reports that all its CTAs have begun, for a stream whose kernel must not
/// take multiprocessors from it.
struct Begun {
  int32_t* flag = nullptr;  // nullptr: no report
  int32_t value = 0;        // the flag is set to it
};

}  // namespace cpscope::kernels
