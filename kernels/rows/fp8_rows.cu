// Rows of dtype fp8: largest values, casts with a scale or in MXFP8 blocks, codes for a wire.
//
// Mapping: one warp a row or a block of 32 numbers of one, lanes of the warp along the row; blocks
// along tokens: one thread a column. All accesses are to adjacent addresses. Memory-bound, so the
// roundings are in integer instructions that every device has.
// Accuracy: that of sim/run/fp8.h, bit for bit.
// Source: OCP 8-bit floating point specification; OCP microscaling formats (MX) v1.0.
#include "kernels/device/fp8_values.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_groups.h"
#include "kernels/rows/fp8_rows.h"

#include <algorithm>

namespace cpscope::kernels {
namespace {

using namespace device;

constexpr int kFp8Threads = 256;
constexpr int kFp8Warps = kFp8Threads / 32;
constexpr int64_t kMostFp8Blocks = 4096;

__device__ __forceinline__ int64_t warp_unit() {
  return int64_t{blockIdx.x} * kFp8Warps + threadIdx.x / 32;
}
__device__ __forceinline__ int64_t warp_step() { return int64_t{gridDim.x} * kFp8Warps; }

int ctas_for(int64_t units, int64_t units_of_cta) {
  return static_cast<int>(
      std::clamp<int64_t>((units + units_of_cta - 1) / units_of_cta, 1, kMostFp8Blocks));
}

__global__ void __launch_bounds__(kFp8Threads) find_amax(const __grid_constant__ RowAmax p) {
  const auto* data = static_cast<const Bf16*>(p.rows.data);
  float most = 0.0f;
  for (int64_t row = warp_unit(); row < p.num_rows; row += warp_step()) {
    if (p.is_valid[row] == 0) continue;
    for (int32_t i = threadIdx.x % 32; i < p.heads * p.lanes; i += 32) {
      const int64_t at = row * p.rows.row_stride + i / p.lanes * p.rows.head_stride + i % p.lanes;
      most = fmaxf(most, fabsf(to_float(data[at])));
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, shuffle_xor(most, mask));
  if (threadIdx.x % 32 == 0) atomic_max(p.amax, most);
}

__global__ void __launch_bounds__(kFp8Threads) scale_rows(const __grid_constant__ RowScaling p) {
  const int64_t step = int64_t{gridDim.x} * kFp8Threads;
  for (int64_t i = int64_t{blockIdx.x} * kFp8Threads + threadIdx.x; i < p.count / kAtOnce;
       i += step) {
    float values[kAtOnce];
    load_narrow<Bf16>(p.data, i * kAtOnce, values);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) values[j] = scale_to_fp8(p.type, values[j], p.scale);
    store_narrow<Bf16>(p.data, i * kAtOnce, values);
  }
}

__global__ void __launch_bounds__(kFp8Threads) cast_results(const __grid_constant__ ResultCast p) {
  auto* data = static_cast<float*>(p.rows.data);
  const float descale = 1.0f / p.scale;
  for (int64_t row = warp_unit(); row < p.num_rows; row += warp_step()) {
    for (int32_t i = threadIdx.x % 32; i < p.heads * p.lanes; i += 32) {
      float& value = data[row * p.rows.row_stride + i / p.lanes * p.rows.head_stride + i % p.lanes];
      value = scale_to_fp8(p.type, value, p.scale) * descale;
    }
  }
}

__global__ void __launch_bounds__(kFp8Threads) copy_codes(const __grid_constant__ CodeCopy p) {
  const RowCopy& copy = p.copy;
  for (int64_t row = warp_unit(); row < copy.num_rows; row += warp_step()) {
    const int64_t source = copy.from.rows != nullptr ? copy.from.rows[row] : row;
    const int64_t target = copy.to.rows != nullptr ? copy.to.rows[row] : row;
    for (int32_t i = threadIdx.x % 32; i < copy.heads * copy.lanes; i += 32) {
      const int32_t head = i / copy.lanes, lane = i % copy.lanes;
      const int64_t at_from = source * copy.from.row_stride + head * copy.from.head_stride + lane;
      const int64_t at_to = target * copy.to.row_stride + head * copy.to.head_stride + lane;
      if (p.encodes) {
        static_cast<uint8_t*>(copy.to.data)[at_to] =
            to_fp8_code(p.type, to_float(static_cast<const Bf16*>(copy.from.data)[at_from]));
      } else {
        static_cast<Bf16*>(copy.to.data)[at_to] = from_float<Bf16>(
            from_fp8_code(p.type, static_cast<const uint8_t*>(copy.from.data)[at_from]));
      }
    }
  }
}

struct alignas(8) EightCodes {
  uint8_t of[kAtOnce];
};

/// Same as the kernel before, kAtOnce numbers at a time.
__global__ void __launch_bounds__(kFp8Threads)
    copy_code_groups(const __grid_constant__ CodeCopy p) {
  const RowCopy& copy = p.copy;
  const int32_t groups = copy.lanes / kAtOnce;  // in one head
  for (int64_t row = warp_unit(); row < copy.num_rows; row += warp_step()) {
    const int64_t source = copy.from.rows != nullptr ? copy.from.rows[row] : row;
    const int64_t target = copy.to.rows != nullptr ? copy.to.rows[row] : row;
    for (int32_t i = threadIdx.x % 32; i < copy.heads * groups; i += 32) {
      const int32_t head = i / groups, lane = i % groups * kAtOnce;
      const int64_t at_from = source * copy.from.row_stride + head * copy.from.head_stride + lane;
      const int64_t at_to = target * copy.to.row_stride + head * copy.to.head_stride + lane;
      float values[kAtOnce];
      EightCodes codes;
      if (p.encodes) {
        load_narrow<Bf16>(copy.from.data, at_from, values);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) codes.of[j] = to_fp8_code(p.type, values[j]);
        *reinterpret_cast<EightCodes*>(static_cast<uint8_t*>(copy.to.data) + at_to) = codes;
      } else {
        codes = *reinterpret_cast<const EightCodes*>(static_cast<const uint8_t*>(copy.from.data) +
                                                     at_from);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) values[j] = from_fp8_code(p.type, codes.of[j]);
        store_narrow<Bf16>(copy.to.data, at_to, values);
      }
    }
  }
}

__device__ __forceinline__ int64_t place_in(const DeviceRows& rows, int64_t row, int64_t head,
                                            int64_t lane) {
  return row * rows.row_stride + head * rows.head_stride + lane;
}

/// A unit is 32 numbers of one head of a row; the last one of a head may have fewer.
__global__ void __launch_bounds__(kFp8Threads)
    cast_blocks_along_rows(const __grid_constant__ BlockCast p) {
  const int32_t padded = (p.lanes + 7) / 8 * 8, blocks = (p.lanes + 31) / 32;
  const int64_t units = p.num_rows * p.heads * blocks;
  for (int64_t unit = warp_unit(); unit < units; unit += warp_step()) {
    const int64_t row = unit / (p.heads * blocks), rest = unit % (p.heads * blocks);
    const int64_t head = rest / blocks, lane = rest % blocks * 32 + threadIdx.x % 32;
    const float value =
        lane < p.lanes
            ? to_float(static_cast<const Bf16*>(p.from.data)[place_in(p.from, row, head, lane)])
            : 0.0f;
    float amax = fabsf(value);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) amax = max_or_nan(amax, shuffle_xor(amax, mask));
    if (lane < padded)
      static_cast<Bf16*>(p.to.data)[place_in(p.to, row, head, lane)] =
          from_float<Bf16>(quantise_in_block_of(value, block_descale_of(amax)));
  }
}

__global__ void __launch_bounds__(kFp8Threads)
    cast_blocks_along_tokens(const __grid_constant__ BlockCast p) {
  const int32_t padded = (p.lanes + 7) / 8 * 8;
  const int64_t columns = int64_t{p.heads} * padded, step = int64_t{gridDim.x} * kFp8Threads;
  for (int64_t i = int64_t{blockIdx.x} * kFp8Threads + threadIdx.x; i < p.num_blocks * columns;
       i += step) {
    const RowSpan block = p.blocks[i / columns];
    const int64_t head = i % columns / padded, lane = i % padded;
    const auto* from = static_cast<const Bf16*>(p.from.data) + place_in(p.from, 0, head, lane);
    auto* to = static_cast<Bf16*>(p.to.data) + place_in(p.to, 0, head, lane);
    float amax = 0.0f;
    for (int32_t row = block.begin; row < block.end; ++row)
      amax = max_or_nan(amax, fabsf(to_float(from[row * p.from.row_stride])));
    const float descale = block_descale_of(amax);
    for (int32_t row = block.begin; row < block.end; ++row)
      to[row * p.to.row_stride] =
          from_float<Bf16>(quantise_in_block_of(to_float(from[row * p.from.row_stride]), descale));
  }
}

/// Codes of 8 numbers from element `lane` of a head on.
__device__ __forceinline__ void load_codes(Fp8Type type, const DeviceRows& from, int64_t row,
                                           int64_t head, int32_t lane, uint32_t (&words)[2]) {
  float values[kAtOnce];
  load_narrow<Bf16>(from.data, place_in(from, row, head, lane), values);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    words[i] =
        pack_codes(type, values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
}

/// A thread writes 16 codes.
__global__ void __launch_bounds__(kFp8Threads) encode_rows(const __grid_constant__ CodeRows p) {
  constexpr int kGroups = kCodeLanes / 16;
  const int64_t step = int64_t{gridDim.x} * kFp8Threads, units = p.num_rows * p.heads * kGroups;
  for (int64_t i = int64_t{blockIdx.x} * kFp8Threads + threadIdx.x; i < units; i += step) {
    const int32_t lane = static_cast<int32_t>(i % kGroups) * 16;
    const int64_t unit = i / kGroups;
    Group16 codes{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane + 8 * half >= p.lanes) continue;
      uint32_t words[2];
      load_codes(p.type, p.from, unit / p.heads, unit % p.heads, lane + 8 * half, words);
      codes.words[2 * half] = words[0];
      codes.words[2 * half + 1] = words[1];
    }
    *reinterpret_cast<Group16*>(p.to + unit * kCodeLanes + lane) = codes;
  }
}

/// A thread turns 16 rows of 8 numbers. Two threads write adjacent 16 bytes of a line.
__global__ void __launch_bounds__(kFp8Threads)
    encode_columns(const __grid_constant__ CodeColumns p) {
  constexpr int kLaneGroups = kCodeLanes / kAtOnce;
  const int64_t groups = p.columns / kCodeGroup, units = groups * p.heads * kLaneGroups;
  const int64_t step = int64_t{gridDim.x} * kFp8Threads;
  for (int64_t i = int64_t{blockIdx.x} * kFp8Threads + threadIdx.x; i < units; i += step) {
    const int32_t lane = static_cast<int32_t>(i % kLaneGroups) * kAtOnce;
    const int64_t first = i / kLaneGroups % groups * kCodeGroup, head = i / (kLaneGroups * groups);
    uint32_t turned[kAtOnce][4] = {};
#pragma unroll
    for (int place = 0; place < kCodeGroup; ++place) {
      const int64_t row = first + place / 4 * 2 + place % 2 + place / 2 % 2 * 8;
      uint32_t words[2] = {};
      if (lane < p.lanes && row < p.num_rows && p.blocks[row] >= 0)
        load_codes(Fp8Type::e4m3, p.from, row, head, lane, words);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        turned[j][place / 4] |= (words[j / 4] >> (j % 4 * 8) & 0xffu) << (place % 4 * 8);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      *reinterpret_cast<Group16*>(p.to + (head * kCodeLanes + lane + j) * p.columns + first) = {
          {turned[j][0], turned[j][1], turned[j][2], turned[j][3]}};
  }
}

bool is_on(const RowBlock& block, int64_t size, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(block.data) % static_cast<uintptr_t>(bytes) == 0 &&
         block.row_stride * size % bytes == 0 && block.head_stride * size % bytes == 0;
}

}  // namespace

void launch_row_amax(const RowAmax& amax, Stream stream) {
  if (amax.num_rows == 0) return;
  launch_kernel(find_amax, ctas_for(amax.num_rows, kFp8Warps), kFp8Threads, 0, stream, amax);
}

void launch_row_scaling(const RowScaling& scaling, Stream stream) {
  if (scaling.count == 0) return;
  launch_kernel(scale_rows, ctas_for(scaling.count, kFp8Threads * kAtOnce), kFp8Threads, 0, stream,
                scaling);
}

void launch_result_cast(const ResultCast& cast, Stream stream) {
  if (cast.num_rows == 0 || cast.heads == 0) return;
  launch_kernel(cast_results, ctas_for(cast.num_rows, kFp8Warps), kFp8Threads, 0, stream, cast);
}

void launch_code_copy(const CodeCopy& copy, Stream stream) {
  const RowCopy& rows = copy.copy;
  if (rows.num_rows == 0 || rows.heads == 0) return;
  const RowBlock &codes = copy.encodes ? rows.to : rows.from,
                 &numbers = copy.encodes ? rows.from : rows.to;
  const bool in_groups =
      rows.lanes % kAtOnce == 0 && is_on(codes, 1, kAtOnce) && is_on(numbers, 2, 2 * kAtOnce);
  launch_kernel(in_groups ? copy_code_groups : copy_codes, ctas_for(rows.num_rows, kFp8Warps),
                kFp8Threads, 0, stream, copy);
}

void launch_block_cast(const BlockCast& cast, Stream stream) {
  if (cast.num_rows == 0 || cast.heads == 0) return;
  if (cast.blocks == nullptr) {
    const int64_t units = cast.num_rows * cast.heads * ((cast.lanes + 31) / 32);
    return launch_kernel(cast_blocks_along_rows, ctas_for(units, kFp8Warps), kFp8Threads, 0, stream,
                         cast);
  }
  if (cast.num_blocks == 0) return;
  const int64_t columns = int64_t{cast.num_blocks} * cast.heads * ((cast.lanes + 7) / 8 * 8);
  launch_kernel(cast_blocks_along_tokens, ctas_for(columns, kFp8Threads), kFp8Threads, 0, stream,
                cast);
}

void launch_code_rows(const CodeRows& rows, Stream stream) {
  const int64_t units = rows.num_rows * rows.heads * (kCodeLanes / 16);
  if (units == 0) return;
  launch_kernel(encode_rows, ctas_for(units, kFp8Threads), kFp8Threads, 0, stream, rows);
}

void launch_code_columns(const CodeColumns& columns, Stream stream) {
  const int64_t units =
      int64_t{columns.columns / kCodeGroup} * columns.heads * (kCodeLanes / kAtOnce);
  if (units == 0) return;
  launch_kernel(encode_columns, ctas_for(units, kFp8Threads), kFp8Threads, 0, stream, columns);
}

}  // namespace cpscope::kernels
