#pragma once

#include <cstdint>

namespace cpscope::kernels {

/// Rows of several heads in device memory: element (row, head, lane) is at
/// row * row_stride + head * head_stride + lane, in elements of the launch's dtype unless said.
/// Rows begin on 16 bytes and hold padded_lanes(head_dim) lanes.
struct DeviceRows {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

/// Parts of a launch's inputs that other devices write while it runs: a piece of heads from each of
/// some sources. A piece's items are not begun before all its flags say so.
struct Arrivals {
  static constexpr int32_t kMostPieces = 8;
  const int32_t* flags = nullptr;  // [piece][source]; nullptr: everything is there
  int32_t expected = 0;            // what a flag is when its part is there
  int32_t num_sources = 0;
  int32_t num_pieces = 0;
  int32_t ends[kMostPieces] = {};  // [piece] local heads of the owned side
};

/// Where a kernel says that all its CTAs have begun, to a stream whose kernel is not to take
/// multiprocessors from it.
struct Begun {
  int32_t* flag = nullptr;  // nullptr: to nobody
  int32_t value = 0;        // that it is set to
};

}  // namespace cpscope::kernels
