// Pack, transfer, reorder, merge, rounding and RoPE kernels for rows.
// Mapping: one warp a row or a (row, head), lanes of the warp along the row, so that all accesses
// are coalesced. Memory-bound, so the arithmetic is written for clarity. Grid-stride over units.
// Accuracy: log-sum-exp and weights in fp32 with the accurate library functions, so a merge errs by
// a few ulp, as the CPU executor's does; rounding is to nearest, ties to even.
#include "kernels/device/device_code.h"
#include "kernels/device/launch.h"
#include "kernels/device/merge_weights.h"
#include "kernels/device/row_groups.h"
#include "kernels/rows/row_kernels.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

using device::Floats4, device::Group16, device::kAtOnce, device::load_values, device::store_values;
using device::is_nothing, device::log_sum_exp, device::merge_values, device::weight_of;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 4096;

__device__ __forceinline__ float load_value(const void* data, Dtype element, int64_t index) {
  switch (element) {
    case Dtype::bf16:
      return device::to_float(static_cast<const Bf16*>(data)[index]);
    case Dtype::fp16:
      return device::to_float(static_cast<const Fp16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

__device__ __forceinline__ void store_value(void* data, Dtype element, int64_t index, float value) {
  switch (element) {
    case Dtype::bf16:
      static_cast<Bf16*>(data)[index] = device::from_float<Bf16>(value);
      break;
    case Dtype::fp16:
      static_cast<Fp16*>(data)[index] = device::from_float<Fp16>(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

__device__ __forceinline__ float round_value(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::bf16:
      return device::to_float(device::from_float<Bf16>(value));
    case Dtype::fp16:
      return device::to_float(device::from_float<Fp16>(value));
    default:
      return value;
  }
}

/// Units 0 .. count are split among the warps of the grid: the first unit of this warp, and the
/// step to its next.
__device__ __forceinline__ int64_t first_unit() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
}
__device__ __forceinline__ int64_t unit_step() { return int64_t{gridDim.x} * kWarps; }

/// The place in an accumulator of a (row, head) of a partial.
__device__ __forceinline__ int64_t target_of(const OutRows& into, const BufferShape& shape,
                                             int64_t unit) {
  if (into.rows == nullptr && into.row_heads == 0) return unit;
  const int64_t row = unit / shape.heads;
  const int32_t heads = into.row_heads == 0 ? shape.heads : into.row_heads;
  return (into.rows == nullptr ? row : int64_t{into.rows[row]}) * heads + unit % shape.heads;
}

int blocks_for(int64_t units) {
  return static_cast<int>(std::clamp<int64_t>((units + kWarps - 1) / kWarps, 1, kMostBlocks));
}

__device__ __forceinline__ void round_values(Dtype dtype, float (&values)[kAtOnce]) {
  if (dtype == Dtype::fp32) return;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) values[i] = round_value(dtype, values[i]);
}

__global__ void copy_groups(const __grid_constant__ RowCopy p) {
  const int32_t size = p.from.element == Dtype::fp32 ? 4 : 2;
  const int32_t groups = p.lanes * size / 16;  // in one head
  const auto* from = static_cast<const uint8_t*>(p.from.data);
  auto* to = static_cast<uint8_t*>(p.to.data);
  for (int64_t row = first_unit(); row < p.num_rows; row += unit_step()) {
    const int64_t source = p.from.rows != nullptr ? p.from.rows[row] : row;
    const int64_t target = p.to.rows != nullptr ? p.to.rows[row] : row;
    for (int32_t i = threadIdx.x % 32; i < p.heads * groups; i += 32) {
      const int32_t head = i / groups, group = i % groups;
      const int64_t at_from = (source * p.from.row_stride + head * p.from.head_stride) * size;
      const int64_t at_to = (target * p.to.row_stride + head * p.to.head_stride) * size;
      *reinterpret_cast<Group16*>(to + at_to + group * 16) =
          *reinterpret_cast<const Group16*>(from + at_from + group * 16);
    }
  }
}

__global__ void copy_values(const __grid_constant__ RowCopy p) {
  for (int64_t row = first_unit(); row < p.num_rows; row += unit_step()) {
    const int64_t source = p.from.rows != nullptr ? p.from.rows[row] : row;
    const int64_t target = p.to.rows != nullptr ? p.to.rows[row] : row;
    for (int32_t i = threadIdx.x % 32; i < p.heads * p.lanes; i += 32) {
      const int32_t head = i / p.lanes, lane = i % p.lanes;
      const int64_t at_from = source * p.from.row_stride + head * p.from.head_stride + lane;
      const int64_t at_to = target * p.to.row_stride + head * p.to.head_stride + lane;
      float value = round_value(p.value_dtype, load_value(p.from.data, p.from.element, at_from));
      if (p.adds)
        value = round_value(p.sum_dtype, load_value(p.to.data, p.to.element, at_to) + value);
      store_value(p.to.data, p.to.element, at_to, value);
    }
  }
}

/// Same as the kernel before, kAtOnce elements at a time.
__global__ void convert_groups(const __grid_constant__ RowCopy p) {
  const int32_t groups = p.lanes / kAtOnce;  // in one head
  for (int64_t row = first_unit(); row < p.num_rows; row += unit_step()) {
    const int64_t source = p.from.rows != nullptr ? p.from.rows[row] : row;
    const int64_t target = p.to.rows != nullptr ? p.to.rows[row] : row;
    for (int32_t i = threadIdx.x % 32; i < p.heads * groups; i += 32) {
      const int32_t head = i / groups, lane = i % groups * kAtOnce;
      const int64_t at_to = target * p.to.row_stride + head * p.to.head_stride + lane;
      float values[kAtOnce];
      load_values(p.from.data, p.from.element,
                  source * p.from.row_stride + head * p.from.head_stride + lane, values);
      round_values(p.value_dtype, values);
      if (p.adds) {
        float sums[kAtOnce];
        load_values(p.to.data, p.to.element, at_to, sums);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) values[j] += sums[j];
        round_values(p.sum_dtype, values);
      }
      store_values(p.to.data, p.to.element, at_to, values);
    }
  }
}

struct EmptyOut {
  BufferShape shape;
  OutRows into;
};

__global__ void empty_out(const __grid_constant__ EmptyOut p) {
  for (int64_t unit = first_unit(); unit < p.shape.rows * p.shape.heads; unit += unit_step()) {
    for (int32_t lane = threadIdx.x % 32; lane < p.shape.pitch; lane += 32)
      p.into.o[unit * p.shape.pitch + lane] = 0.0f;
    if (threadIdx.x % 32 == 0) p.into.lse[unit] = -INFINITY;
  }
}

__global__ void merge_out(const __grid_constant__ OutMerge p) {
  for (int64_t unit = first_unit(); unit < p.shape.rows * p.shape.heads; unit += unit_step()) {
    const int64_t target = target_of(p.into, p.shape, unit);
    const float old_lse = p.starts ? -INFINITY : p.into.lse[target];
    const device::MergeWeights weights(old_lse, p.partial.lse[unit]);
    // All lanes have read the old sum before one of them replaces it.
    __syncwarp();
    for (int32_t lane = threadIdx.x % 32 * 4; lane < p.shape.lanes; lane += 128) {
      auto* into = reinterpret_cast<Floats4*>(p.into.o + target * p.shape.pitch + lane);
      Floats4 partial{};
      if (p.partial.o != nullptr)
        partial = *reinterpret_cast<const Floats4*>(p.partial.o + unit * p.shape.pitch + lane);
      // Before a first merge the accumulator is uninitialised.
      const Floats4 old = p.starts ? Floats4{} : *into;
      Floats4 sum;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum.values[i] = round_value(p.round_to, merge_values(old.values[i], weights.before,
                                                             partial.values[i], weights.added));
      *into = sum;
    }
    if (threadIdx.x % 32 == 0) p.into.lse[target] = weights.lse;
  }
}

struct LseJoin {
  BufferShape shape;
  OutRows partial, into;
};

__global__ void join_lse(const __grid_constant__ LseJoin p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.shape.rows * p.shape.heads;
       i += step) {
    float& lse = p.into.lse[target_of(p.into, p.shape, i)];
    lse = log_sum_exp(lse, p.partial.lse[i]);
  }
}

__global__ void add_weighted(const __grid_constant__ WeightedAdd p) {
  for (int64_t unit = first_unit(); unit < p.shape.rows * p.shape.heads; unit += unit_step()) {
    const int64_t target = target_of(p.into, p.shape, unit);
    const float weight = weight_of(p.partial.lse[unit], p.into.lse[target]);
    for (int32_t lane = threadIdx.x % 32; lane < p.shape.lanes; lane += 32) {
      float addend = p.partial.o[unit * p.shape.pitch + lane] * weight;
      if (p.rounds_addend) addend = round_value(p.dtype, addend);
      float& value = p.into.o[target * p.shape.pitch + lane];
      value = round_value(p.dtype, value + addend);
    }
  }
}

__global__ void merge_sum(const __grid_constant__ SumMerge p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.count / kAtOnce; i += step) {
    float sums[kAtOnce], old[kAtOnce];
    load_values(p.partial, Dtype::fp32, i * kAtOnce, sums);
    round_values(p.value_dtype, sums);
    int64_t at = i * kAtOnce;
    if (p.row_lanes != 0) at = at / p.row_lanes * p.into_lanes + at % p.row_lanes;
    if (!p.starts) {
      load_values(p.into, p.into_element, at, old);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) sums[j] += old[j];
      round_values(p.sum_dtype, sums);
    }
    store_values(p.into, p.into_element, at, sums);
  }
}

__global__ void join_sink(const __grid_constant__ SinkJoin p) {
  for (int64_t unit = first_unit(); unit < p.shape.rows * p.shape.heads; unit += unit_step()) {
    const float lse = p.into.lse[unit];
    if (is_nothing(lse)) continue;
    const int32_t head = p.first_head + static_cast<int32_t>(unit % p.shape.heads);
    const float whole = log_sum_exp(lse, p.sink != nullptr ? p.sink[head] : 0.0f);
    const float weight = expf(lse - whole);
    __syncwarp();
    for (int32_t lane = threadIdx.x % 32; lane < p.shape.lanes; lane += 32)
      p.into.o[unit * p.shape.pitch + lane] *= weight;
    if (threadIdx.x % 32 == 0) p.into.lse[unit] = whole;
  }
}

__global__ void find_deltas(const __grid_constant__ RowDeltas p) {
  for (int64_t unit = first_unit(); unit < p.shape.rows * p.shape.heads; unit += unit_step()) {
    const float lse = p.lse[unit];
    float sum = 0.0f;
    // A row without a visible key may hold anything, so it is not read.
    for (int32_t lane = threadIdx.x % 32; lane < p.shape.lanes && !is_nothing(lse); lane += 32) {
      const int64_t at = unit * p.shape.pitch + lane;
      sum += load_value(p.out, p.out_element, at) * load_value(p.d_out, p.d_out_element, at);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += device::shuffle_xor(sum, mask);
    if (threadIdx.x % 32 != 0) continue;
    p.delta[unit] = sum * p.d_out_descale;
    p.copied_lse[unit] = lse;
  }
}

struct ValueRounding {
  float* values;
  int64_t count;
  Dtype dtype;
};

__global__ void round_values_in_place(const __grid_constant__ ValueRounding p) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  auto* values = reinterpret_cast<Floats4*>(p.values);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.count / 4; i += step) {
    Floats4 four = values[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) four.values[j] = round_value(p.dtype, four.values[j]);
    values[i] = four;
  }
}

__global__ void rotate_rows(const __grid_constant__ RowRotation p) {
  const int32_t dim = p.shape.lanes - p.first_lane, half = dim / 2;
  for (int64_t row = first_unit(); row < p.shape.rows; row += unit_step()) {
    const double position = p.direction * p.positions[row];
    for (int32_t i = threadIdx.x % 32; i < p.shape.heads * half; i += 32) {
      const int32_t lane = i % half;
      const int64_t at = (row * p.shape.heads + i / half) * p.shape.pitch + p.first_lane + lane;
      const double angle = position * pow(p.theta, -2.0 * lane / dim);
      const double c = cos(angle), s = sin(angle);
      const double a = load_value(p.data, p.element, at),
                   b = load_value(p.data, p.element, at + half);
      // Rotating zeros would change the sign of some of them.
      if (a == 0.0 && b == 0.0) continue;
      store_value(p.data, p.element, at,
                  round_value(p.round_to, static_cast<float>(a * c - b * s)));
      store_value(p.data, p.element, at + half,
                  round_value(p.round_to, static_cast<float>(a * s + b * c)));
    }
  }
}

/// One CTA per head. Rows are assigned to threads round-robin; the threads' sums are added in
/// thread order.
__global__ void differentiate_sink(const __grid_constant__ SinkGradient p) {
  auto* sums = reinterpret_cast<double*>(device::dynamic_shared());
  const int32_t head = blockIdx.x;
  const float sink = p.sink[p.first_head + head];
  double sum = 0.0;
  for (int64_t row = threadIdx.x; row < p.shape.rows; row += kThreads) {
    const int64_t unit = row * p.shape.heads + head;
    const float lse = p.out.lse[unit];
    if (is_nothing(lse)) continue;
    double delta = 0.0;
    const float* out = p.out.o + unit * p.shape.pitch;
    const int64_t d_out = row * p.d_out_row_stride + int64_t{head} * p.shape.pitch;
    for (int32_t lane = 0; lane < p.shape.lanes; ++lane)
      delta += static_cast<double>(out[lane]) * load_value(p.d_out, p.element, d_out + lane);
    sum -= exp(static_cast<double>(sink) - static_cast<double>(lse)) * delta * p.d_out_descale;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int t = 1; t < kThreads; ++t) sum += sums[t];
  p.d_sink[p.first_head + head] += sum;
}

/// True if every head of every row is aligned to 16 bytes.
bool is_aligned(const RowBlock& block) {
  const int64_t size = element_size(block.element);
  return reinterpret_cast<uintptr_t>(block.data) % 16 == 0 && block.row_stride * size % 16 == 0 &&
         block.head_stride * size % 16 == 0;
}

/// True if the rows are copied without conversion.
bool is_plain_copy(const RowCopy& copy) {
  const bool rounds = copy.value_dtype != Dtype::fp32 && copy.from.element != copy.value_dtype;
  return copy.from.element == copy.to.element && !copy.adds && !rounds;
}

}  // namespace

void launch_row_copy(const RowCopy& copy, Stream stream) {
  if (copy.num_rows == 0 || copy.heads == 0) return;
  auto* kernel = copy_values;
  if (is_aligned(copy.from) && is_aligned(copy.to)) {
    if (is_plain_copy(copy) && copy.lanes * element_size(copy.from.element) % 16 == 0) {
      kernel = copy_groups;
    } else if (copy.lanes % kAtOnce == 0) {
      kernel = convert_groups;
    }
  }
  launch_kernel(kernel, blocks_for(copy.num_rows), kThreads, 0, stream, copy);
}

void launch_empty_out(const BufferShape& shape, const OutRows& into, Stream stream) {
  launch_kernel(empty_out, blocks_for(shape.rows * shape.heads), kThreads, 0, stream,
                EmptyOut{shape, into});
}

void launch_out_merge(const OutMerge& merge, Stream stream) {
  launch_kernel(merge_out, blocks_for(merge.shape.rows * merge.shape.heads), kThreads, 0, stream,
                merge);
}

void launch_lse_join(const BufferShape& shape, const OutRows& partial, const OutRows& into,
                     Stream stream) {
  launch_kernel(join_lse, blocks_for(shape.rows * shape.heads / 32), kThreads, 0, stream,
                LseJoin{shape, partial, into});
}

void launch_weighted_add(const WeightedAdd& add, Stream stream) {
  launch_kernel(add_weighted, blocks_for(add.shape.rows * add.shape.heads), kThreads, 0, stream,
                add);
}

void launch_sum_merge(const SumMerge& merge, Stream stream) {
  if (merge.count == 0) return;
  launch_kernel(merge_sum, blocks_for(merge.count / (32 * kAtOnce)), kThreads, 0, stream, merge);
}

void launch_sink_join(const SinkJoin& join, Stream stream) {
  launch_kernel(join_sink, blocks_for(join.shape.rows * join.shape.heads), kThreads, 0, stream,
                join);
}

void launch_rounding(float* values, int64_t count, Dtype dtype, Stream stream) {
  if (count == 0 || dtype == Dtype::fp32) return;
  launch_kernel(round_values_in_place, blocks_for(count / 128), kThreads, 0, stream,
                ValueRounding{values, count, dtype});
}

void launch_row_deltas(const RowDeltas& deltas, Stream stream) {
  if (deltas.shape.rows == 0) return;
  launch_kernel(find_deltas, blocks_for(deltas.shape.rows * deltas.shape.heads), kThreads, 0,
                stream, deltas);
}

void launch_row_rotation(const RowRotation& rotation, Stream stream) {
  if (rotation.shape.rows == 0) return;
  launch_kernel(rotate_rows, blocks_for(rotation.shape.rows), kThreads, 0, stream, rotation);
}

void launch_sink_gradient(const SinkGradient& gradient, Stream stream) {
  launch_kernel(differentiate_sink, gradient.shape.heads, kThreads, kThreads * sizeof(double),
                stream, gradient);
}

}  // namespace cpscope::kernels
