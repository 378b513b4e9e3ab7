#include "kernels/attention_launch.h"

#include "kernels/attention_forward.h"
#include "kernels/row_statistics.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace cpscope::kernels {
namespace {

bool is_16_bit(const AttentionShape& shape) {
  return shape.dtype == Dtype::bf16 || shape.dtype == Dtype::fp16;
}

[[noreturn]] void throw_no_kernel(const char* what) {
  throw DeviceError(fmt::format("no kernel for the {} of this shape", what));
}

}  // namespace

// TODO(the kernels exist): fp32, the gradients, and the generation sm90.

TileShape forward_tile_shape(Generation generation, const AttentionShape& shape) {
  if (generation == Generation::portable && is_16_bit(shape)) return portable_forward_tile(shape);
  return {};
}

TileShape query_gradient_tile_shape(Generation /*generation*/, const AttentionShape& /*shape*/) {
  return {};
}

TileShape key_gradient_tile_shape(Generation /*generation*/, const AttentionShape& /*shape*/) {
  return {};
}

std::string why_not(Generation generation, const AttentionShape& shape) {
  const int32_t largest_dim = std::max(shape.head_dim_qk, shape.head_dim_v);
  if (largest_dim > kMaxHeadDim) {
    return fmt::format("the kernels hold heads of up to {} lanes, this one has {}", kMaxHeadDim,
                       largest_dim);
  }
  if (shape.dtype == Dtype::fp64) return "the kernels take bf16, fp16 and fp32, not fp64";
  if (generation == Generation::sm90) return "there are no kernels for sm_90a";
  return "";
}

void launch_forward(Generation generation, const ForwardLaunch& launch, Stream stream) {
  if (generation == Generation::portable && is_16_bit(launch.shape))
    return launch_portable_forward(launch, stream);
  throw_no_kernel("forward");
}

void launch_row_statistics(const BackwardLaunch& launch, Stream stream) {
  launch_portable_row_statistics(launch, stream);
}

void launch_query_gradient(Generation /*generation*/, const BackwardLaunch& /*launch*/,
                           Stream /*stream*/) {
  throw_no_kernel("gradient of the queries");
}

void launch_key_gradient(Generation /*generation*/, const BackwardLaunch& /*launch*/,
                         Stream /*stream*/) {
  throw_no_kernel("gradient of the keys");
}

}  // namespace cpscope::kernels
