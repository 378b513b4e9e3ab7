#pragma once

#include "kernels/attention/attention_launch.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"

#include <cstdint>
#include <vector>

namespace cpscope::kernels {

/// A TileList in device memory.
class TilesOnDevice {
 public:
  TilesOnDevice() = default;
  /// The list is read until the stream has reached this point.
  TilesOnDevice(const TileList& list, Stream stream);

  /// The tiles as kernels take them, without arrivals.
  const DeviceTiles& view() const { return view_; }
  static int64_t bytes_of(const TileList& list);

 private:
  DeviceMemory ranges_, tiles_, runs_, work_, turns_, unopened_, unclosed_, gaps_, parts_,
      cut_tiles_;
  std::vector<CutTile> cut_tiles_on_host_;  // being copied
  DeviceTiles view_;
};

}  // namespace cpscope::kernels
