#pragma once

#include "kernels/attention/fp8_numbers.h"
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

/// Results in fp32 that become values of a format, with the scale taken back.
struct ResultCast {
  DeviceRows rows;
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  Fp8Type type = Fp8Type::e5m2;
  float scale = 1.0f;
};

/// Rows on their way to a wire of one byte a number, or from one; bf16 at the other end.
struct CodeCopy {
  RowCopy copy;  // its ends, num_rows, heads and lanes; strides of codes are in bytes
  Fp8Type type = Fp8Type::e4m3;
  bool encodes = false;  // `to` holds codes, else `from`
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

/// Rows of codes for a kernel that multiplies them: kCodeLanes bytes a head, zeros after `lanes`.
/// to: [row][head].
struct CodeRows {
  DeviceRows from;  // bf16
  uint8_t* to = nullptr;
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  Fp8Type type = Fp8Type::e4m3;
};

/// The same in E4M3, turned: to: [head][kCodeLanes][columns], a column for each row. Of every 16
/// columns, number c holds row c / 4 * 2 + c % 2 + c / 2 % 2 * 8: tensor cores take four adjacent
/// codes of a row of P from a thread, which holds its numbers 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
/// Padding, and columns without a row, are zeros: their weights are, and 0 times NaN is not.
inline constexpr int32_t kCodeGroup = 16;
struct CodeColumns {
  DeviceRows from;
  uint8_t* to = nullptr;
  const int32_t* blocks = nullptr;  // [row] -1: padding
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  int32_t columns = 0;  // a multiple of kCodeGroup
};

void launch_row_amax(const RowAmax& amax, Stream stream);
void launch_row_scaling(const RowScaling& scaling, Stream stream);
void launch_result_cast(const ResultCast& cast, Stream stream);
void launch_code_copy(const CodeCopy& copy, Stream stream);
void launch_block_cast(const BlockCast& cast, Stream stream);
void launch_code_rows(const CodeRows& rows, Stream stream);
void launch_code_columns(const CodeColumns& columns, Stream stream);

}  // namespace cpscope::kernels
