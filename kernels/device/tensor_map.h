#pragma once

#include "kernels/device/device.h"
#include "kernels/device/device_rows.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::kernels {

/// TMA's description of a tensor (a CUtensorMap), in a form that the emulator and host code without
/// CUDA headers can hold.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

/// Elements in a row of a box of 16-bit and of 32-bit numbers: 128 bytes, the width of the swizzle.
inline constexpr int32_t kBoxLanes = 64;
inline constexpr int32_t kWideBoxLanes = 32;

/// Rows that a map claims to have. A row is addressed from its run's end: at kMapRows - end + row,
/// so that rows >= end are out of bounds and arrive as zeros. Two further coordinates, `end` and
/// kMapRows, times strides that cancel, restore the address: the sum of all is row * stride + 2^65.
/// Source of the idea: Triton's ragged TMA descriptors.
inline constexpr int32_t kMapRows = 1 << 30;

/// Box of a row map: rows of one head; or rows of several heads, interleaved row by row, where the
/// head dimension comes before the row dimension; or of several heads in turn, all rows of a head
/// before those of the next one.
struct RowBox {
  int32_t rows = 0;
  int32_t heads = 0;          // heads interleaved in the box; 0: rows come first
  int32_t heads_in_turn = 1;  // where rows come first
};

/// Dimensions of a row map: element of the head, row from the end, head, and the two that restore
/// the address; with several heads in a box the head comes before the row.
struct RowMapGeometry {
  uint64_t sizes[5] = {};
  uint64_t strides[4] = {};           // bytes, of dimensions 1..4
  uint32_t box[5] = {0, 1, 1, 1, 1};  // without the elements of a row
};

/// Throws DeviceError if TMA cannot address rows of this layout.
RowMapGeometry describe_row_map(const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                                int32_t num_lanes, RowBox box);

/// Makes the map of rows of bf16, fp16 or fp32 for boxes whose rows are 128 bytes.
/// num_lanes: elements that a row has in memory; elements past them arrive as zeros and are not
/// written. Rows without memory, as of an item without keys, give a map that must not be used for a
/// load. The map is written in place: GCC 12 and 13 give a returned TensorMap too little alignment.
void make_row_map(TensorMap& map, const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                  int32_t num_lanes, RowBox box);

}  // namespace cpscope::kernels
