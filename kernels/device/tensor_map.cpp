#include "kernels/device/tensor_map.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace cpscope::kernels {

RowMapGeometry describe_row_map(const DeviceRows& rows, Dtype dtype, int32_t num_heads,
                                int32_t num_lanes, RowBox box) {
  constexpr int64_t kAlignment = 16, kMaxBoxRows = 256;
  constexpr uint64_t kMaxStride = uint64_t{1} << 35, kManyRows = 0x7fff0000;
  const int64_t row_bytes = rows.row_stride * element_bytes(dtype);
  // A map accepts no stride of 0; with one head the stride is never used.
  const int64_t head_bytes = num_heads > 1 ? rows.head_stride * element_bytes(dtype) : kAlignment;
  const bool is_aligned = reinterpret_cast<uintptr_t>(rows.data) % kAlignment == 0 &&
                          row_bytes % kAlignment == 0 && head_bytes % kAlignment == 0;
  const bool is_in_range =
      row_bytes > 0 && head_bytes > 0 && static_cast<uint64_t>(row_bytes) < kMaxStride &&
      static_cast<uint64_t>(head_bytes) < kMaxStride && num_heads > 0 && num_lanes > 0 &&
      box.rows > 0 && box.rows <= kMaxBoxRows && box.heads >= 0 && box.heads <= num_heads &&
      box.heads_in_turn > 0 && (box.heads == 0 || box.heads_in_turn == 1);
  if (!is_aligned || !is_in_range) {
    throw DeviceError(fmt::format(
        "No tensor map for {} heads of head_dim {}, rows {} bytes and heads {} bytes apart, "
        "{} rows in a box",
        num_heads, num_lanes, row_bytes, head_bytes, box.rows));
  }
  const auto stride = static_cast<uint64_t>(row_bytes);
  RowMapGeometry geometry{
      .sizes = {static_cast<uint64_t>(num_lanes), uint64_t{kMapRows},
                static_cast<uint64_t>(num_heads), kManyRows, kManyRows},
      .strides = {stride, static_cast<uint64_t>(head_bytes), stride, kMaxStride - stride}};
  geometry.box[1] = static_cast<uint32_t>(box.rows);
  geometry.box[2] = static_cast<uint32_t>(box.heads_in_turn);
  if (box.heads > 0) {
    std::swap(geometry.sizes[1], geometry.sizes[2]);
    std::swap(geometry.strides[0], geometry.strides[1]);
    geometry.box[1] = static_cast<uint32_t>(box.heads);
    geometry.box[2] = static_cast<uint32_t>(box.rows);
  }
  return geometry;
}

}  // namespace cpscope::kernels
