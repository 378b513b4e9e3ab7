#pragma once

#include "kernels/device/device_rows.h"
#include "sim/run/fp8.h"

#include <cstdint>

namespace cpscope::kernels {

/// Codes of a head in a row for a kernel that multiplies them.
inline constexpr int32_t kCodeLanes = 128;

/// How such a kernel reads its rows (kernels/rows/fp8_rows.h): not as codes; Q and K as CodeRows
/// and V as CodeColumns; K and V as CodeRows; all of a backward's as CodeRows.
enum class CodeForm { none, turned_values, rows, all_rows };

/// Rows of codes as a map takes them: two as one number of 16 bits.
inline DeviceRows in_pairs(const DeviceRows& codes) {
  return {codes.data, codes.row_stride / 2, codes.head_stride / 2};
}

/// A stretch of rows that share scales.
struct RowSpan {
  int32_t begin = 0;
  int32_t end = 0;
};

/// Blocks of mxfp8 along tokens.
struct TokenBlocks {
  const int32_t* numbers = nullptr;  // [row] of its block; -1 for padding
  const RowSpan* spans = nullptr;    // [block]
};

/// FP8 for one compute item; pointers are to device memory. Rows hold the values of E4M3 and E5M2
/// numbers as bf16 numbers: without their scale if a tensor has one scale, with that of their block
/// in mxfp8.
struct Fp8Numbers {
  bool is_mx = false;
  Fp8Type gradients = Fp8Type::e5m2;
  float descale = 1.0f;        // 1 / scale of q, k and v
  float d_out_descale = 1.0f;  // 1 / scale of d_out
  float weights = 448.0f;      // P is multiplied by this before it is cast to E4M3
  float d_logits = 1.0f;       // likewise dS; mxfp8: in blocks instead
  float out = 0.0f, dq = 0.0f, dk = 0.0f, dv = 0.0f;  // scales of the results; 0: no cast
  TokenBlocks q_blocks, kv_blocks;                    // mxfp8
  DeviceRows q, k, v;  // of the logits, and of out; backward: v of dP
  DeviceRows d_out;    // of dP
  /// Codes in the kernel's CodeForm, strides in bytes.
  DeviceRows q_codes, k_codes, d_out_codes;
  DeviceRows v_codes;  // turned_values: rows are elements of v, their numbers keys
  DeviceRows turned_q, turned_k, turned_d_out;  // of dk, dq and dv
};

}  // namespace cpscope::kernels
