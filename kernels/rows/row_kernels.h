#pragma once

#include "kernels/device/device.h"
#include "sim/scenario/scenario.h"

#include <cstdint>

namespace cpscope::kernels {

/// Rows of one array in device memory: element d of (row, head), of type `element`, is at
/// rows[row] * row_stride + head * head_stride + d.
struct RowBlock {
  void* data = nullptr;
  Dtype element = Dtype::fp32;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  const int32_t* rows = nullptr;  // nullptr: 0, 1, 2, ...
};

/// Rows that are copied from one block to another, and converted, placed or added. Transfers,
/// reorders, and packing for a wire consist of these.
struct RowCopy {
  RowBlock from, to;
  int64_t num_rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  bool adds = false;                // to += value instead of to = value
  Dtype value_dtype = Dtype::fp32;  // each value is rounded to it first
  Dtype sum_dtype = Dtype::fp32;    // each sum is rounded to it
};

/// An accumulator or a partial of `out`: o fp32 [row, head, pitch], lse fp32 [row, head].
struct OutRows {
  float* o = nullptr;  // of a partial: nullptr if only its lse is known
  float* lse = nullptr;
  const int32_t* rows = nullptr;  // of `into`: the row of each row of the partial, or nullptr
  int32_t row_heads = 0;  // of `into`, from the partial's first head on: heads of a row; 0: as many
                          // as the partial's
};

/// Shape of an operation on a whole buffer.
struct BufferShape {
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t lanes = 0;
  int32_t pitch = 0;  // elements between heads
};

/// Merges a partial of shape.rows rows into an accumulator, by log-sum-exp. `starts`: the
/// accumulator is uninitialised. A partial without o only scales the accumulator.
/// Rows with no visible key keep lse = -inf and never make a NaN. Source: Milakov & Gimelshein 2018
/// (arXiv:1805.02867); as FlashAttention-2 (arXiv:2307.08691), 3.1.
struct OutMerge {
  BufferShape shape;
  OutRows partial, into;
  bool starts = false;
  Dtype round_to = Dtype::fp32;  // of the merged values
};

/// Adds one addend in the second phase of TransformerEngine's accumulation (accumulate = dtype):
/// into.o += partial.o * exp(partial.lse - into.lse), rounded; rounds_addend: the product is
/// rounded first (thd).
struct WeightedAdd {
  BufferShape shape;
  OutRows partial, into;
  Dtype dtype = Dtype::bf16;
  bool rounds_addend = false;
};

/// into += partial, elements of fp32, rows of a multiple of eight. `into` may hold the dtype; then
/// sums are rounded to it. `starts`: into = partial. Values and sums are rounded if the scenario
/// merges in the dtype.
struct SumMerge {
  void* into = nullptr;
  Dtype into_element = Dtype::fp32;
  const float* partial = nullptr;
  int64_t count = 0;                      // of the partial
  int64_t row_lanes = 0, into_lanes = 0;  // elements of a row of each; 0: rows have equal lengths
  bool starts = false;
  Dtype value_dtype = Dtype::fp32;
  Dtype sum_dtype = Dtype::fp32;
};

/// Adds the sink to every row that sees a key: one more key without a value.
struct SinkJoin {
  BufferShape shape;
  OutRows into;
  const float* sink = nullptr;  // [global head]; nullptr: 0
  int32_t first_head = 0;
};

/// Rotary embedding of rows by position inside the sequence (Su et al. 2021, arXiv:2104.09864):
/// elements l and l + dim/2 are rotated by direction * position * theta^(-2l/dim), then rounded to
/// dtype. dim: elements from first_lane on.
struct RowRotation {
  BufferShape shape;
  void* data = nullptr;
  Dtype element = Dtype::fp32;
  Dtype round_to = Dtype::bf16;
  int32_t first_lane = 0;
  const int32_t* positions = nullptr;  // [row]
  double theta = 0.0;
  double direction = 1.0;
};

/// The numbers of finished rows that a backward needs of their out: delta = rowsum(d_out * out), 0
/// for a row that sees no key, and lse.
struct RowDeltas {
  BufferShape shape;  // of out and d_out
  const void* out = nullptr;
  Dtype out_element = Dtype::fp32;
  const float* lse = nullptr;  // [row, head]
  const void* d_out = nullptr;
  Dtype d_out_element = Dtype::bf16;
  float d_out_descale = 1.0f;                     // multiplies d_out
  float *delta = nullptr, *copied_lse = nullptr;  // [row, head]
};

/// d_sink[first_head + h] += -sum over rows of exp(sink - lse) * rowsum(d_out * out), in a fixed
/// order.
struct SinkGradient {
  BufferShape shape;  // of out; heads are counted from first_head
  OutRows out;
  const void* d_out = nullptr;  // [row, head, pitch] of `element`, from first_head on
  Dtype element = Dtype::bf16;
  int64_t d_out_row_stride = 0;  // elements; it may have more heads than out
  float d_out_descale = 1.0f;    // multiplies d_out
  const float* sink = nullptr;   // [global head]
  int32_t first_head = 0;
  double* d_sink = nullptr;  // [global head]
};

void launch_row_copy(const RowCopy& copy, Stream stream);
/// o = 0, lse = -inf.
void launch_empty_out(const BufferShape& shape, const OutRows& into, Stream stream);
void launch_out_merge(const OutMerge& merge, Stream stream);
/// First phase of accumulate = dtype: only into.lse = log(exp(into.lse) + exp(partial.lse)).
void launch_lse_join(const BufferShape& shape, const OutRows& partial, const OutRows& into,
                     Stream stream);
void launch_weighted_add(const WeightedAdd& add, Stream stream);
void launch_sum_merge(const SumMerge& merge, Stream stream);
void launch_sink_join(const SinkJoin& join, Stream stream);
/// Rounds fp32 values, a multiple of four, to the dtype in place.
void launch_rounding(float* values, int64_t count, Dtype dtype, Stream stream);
void launch_row_deltas(const RowDeltas& deltas, Stream stream);
void launch_row_rotation(const RowRotation& rotation, Stream stream);
void launch_sink_gradient(const SinkGradient& gradient, Stream stream);

}  // namespace cpscope::kernels
