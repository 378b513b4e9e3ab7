#pragma once

#include "kernels/device/device.h"
#include "kernels/device/device_rows.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::kernels {

/// What the copy unit of sm_90 needs to know of a tensor (a CUtensorMap), in a form that the
/// emulator and host code without CUDA headers can hold.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

/// Lanes of one box of 16-bit and of 32-bit numbers: 128 bytes, the width of the swizzle.
inline constexpr int32_t kBoxLanes = 64;
inline constexpr int32_t kWideBoxLanes = 32;

/// Rows that a map pretends to have. A row is addressed from its run's end: at kMapRows - end +
/// row, so that rows >= end are out of bounds and land as zeros; two further coordinates, `end` and
/// kMapRows, times strides that cancel, put the address back: the sum of all is row * stride +
/// 2^65. Source of the idea: Triton's ragged TMA descriptors.
inline constexpr int32_t kMapRows = 1 << 30;

/// Box of a row map: rows, of one head; or rows of some heads side by side, row by row, where heads
/// come before rows as dimensions.
struct RowBox {
  int32_t rows = 0;
  int32_t heads = 0;  // side by side; 0: one, and rows come first
};

/// Dimensions of a row map: lane, row from the end, head, and the two that put the address back;
/// with heads side by side the head before the row.
struct RowMapGeometry {
  uint64_t sizes[5] = {};
  uint64_t strides[4] = {};           // bytes, of dimensions 1..4
  uint32_t box[5] = {0, 1, 1, 1, 1};  // without lanes
};

/// Throws DeviceError if the copy unit cannot reach rows that lie so.
RowMapGeometry describe_row_map(const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                                int32_t num_lanes, RowBox box);

/// Map of rows of bf16, fp16 or fp32 for boxes whose rows are 128 bytes.
/// num_lanes: lanes that a row holds in memory; further ones land as zeros and are not written.
/// Rows without memory, as of an item without keys, give a map that nothing may be loaded with. It
/// is written in place: GCC 12 and 13 give a TensorMap that is returned too little alignment.
void make_row_map(TensorMap& map, const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                  int32_t num_lanes, RowBox box);

}  // namespace cpscope::kernels
