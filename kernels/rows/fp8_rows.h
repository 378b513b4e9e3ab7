#pragma once

#include "kernels/device/device.h"
#include "kernels/device/device_rows.h"
#include "kernels/rows/row_kernels.h"
#include "sim/run/fp8.h"

#include <cstdint>

/// Rows of dtype fp8. In memory a number of 8 bits is held as a bf16 number of the same value,
/// which is exact: without its scale, or with that of its MXFP8 block, a power of two.
namespace cpscope::kernels {

/// The largest |value| of some rows of bf16, on the device. NaN does not count.
struct RowAmax {
  RowBlock rows;
  const uint8_t* is_valid = nullptr;  // [row] others do not count
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  float* amax = nullptr;  // raised to it
};

/// bf16 numbers become value * scale, rounded to the format; `count` is a multiple of eight.
struct RowScaling {
  void* data = nullptr;
  int64_t count = 0;
  Fp8Type type = Fp8Type::e4m3;
  float scale = 1.0f;
};

/// Rows on their way to a wire of one byte a number, or from one; bf16 at the other end.
struct CodeCopy {
  RowCopy copy;  // its ends, num_rows, heads and lanes; strides of codes are in bytes
  Fp8Type type = Fp8Type::e4m3;
  bool encodes = false;  // `to` holds codes, else `from`
};

/// A stretch of rows that share scales.
struct RowSpan {
  int32_t begin = 0;
  int32_t end = 0;
};

/// bf16 rows quantised in blocks of E4M3 values that have a scale of their own each, with these
/// scales. One NaN makes its block NaN. `to` has zeros past `lanes`.
struct BlockCast {
  DeviceRows from, to;
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  /// Blocks along tokens: their rows, at most 32 each; other rows of `to` are not written. nullptr:
  /// blocks of 32 numbers along a row.
  const RowSpan* blocks = nullptr;
  int32_t num_blocks = 0;
};

void launch_row_amax(const RowAmax& amax, Stream stream);
void launch_row_scaling(const RowScaling& scaling, Stream stream);
void launch_code_copy(const CodeCopy& copy, Stream stream);
void launch_block_cast(const BlockCast& cast, Stream stream);

}  // namespace cpscope::kernels
