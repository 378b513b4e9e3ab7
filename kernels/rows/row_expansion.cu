// Keys and values of heads from latent rows, and the gradient of the rows from theirs.
//
// Tensor cores: a CTA of 8 warps makes 128 rows of 128 elements, a warp 32 of 64, from stages of 64
// summed elements. Expansion, bf16 and fp16: one CTA for (128 rows, 128 elements, head), two stages
// that cp.async fills. Contraction, bf16: one CTA for (128 rows, 128 latent elements) that walks
// over the heads in order, so that sums are the same in every run; the gradients in fp32 are split
// into two bf16 numbers each, whose products are added up, so that they lose nothing that dk would
// show. fp32, and the contraction of fp16, whose split would leave its range: the products of 64x64
// tiles in fp32 of attention_fp32.cu. The elements that RoPE turns are copied, and added up, one
// thread an element.
//
// Shared memory: 64 KiB, 64 KiB, 35 KiB; two CTAs an SM, of the contraction one. Accuracy: sums in
// fp32 (those of tensor cores), and one rounding of k and v to the dtype. Source: DeepSeek-V2
// (arXiv:2405.04434), equations 9 to 19.
#include "kernels/attention/fp32_kernels.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_groups.h"
#include "kernels/rows/row_expansion.h"

namespace cpscope::kernels {
namespace device {
namespace {

/// Elements of w c for one weight matrix: [head][outputs][pitch].
struct Product {
  DeviceRows rows, made;
  const void* weights = nullptr;
  int32_t num_rows = 0, outputs = 0, pitch = 0;
};

template <class T>
__global__ void __launch_bounds__(kFp32Threads) expand_rows(const __grid_constant__ Product p) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const int32_t head = blockIdx.z, first = blockIdx.y * kFp32Rows, begin = blockIdx.x * kFp32Rows;
  const T* weights = static_cast<const T*>(p.weights) + int64_t{head} * p.outputs * p.pitch;
  float c[4][4];
  multiply_rows<T>(
      c, {{static_cast<const T*>(p.rows.data), p.rows.row_stride, p.pitch}, begin, p.num_rows},
      {{weights, p.pitch, p.pitch}, first, p.outputs}, tiles);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int32_t row = begin + thread_y() + 16 * (i / 4), lane = first + thread_x() + 16 * (i % 4);
    if (row >= p.num_rows || lane >= p.outputs) continue;
    static_cast<T*>(p.made.data)[row * p.made.row_stride + head * p.made.head_stride + lane] =
        from_float<T>(c[i / 4][i % 4]);
  }
}

template <class T>
__global__ void copy_rotated(const __grid_constant__ RowExpansion p) {
  const LatentSizes& sizes = p.sizes;
  const int64_t count = int64_t{sizes.num_rows} * sizes.heads * sizes.rotated;
  for (int64_t i = int64_t{blockIdx.x} * kFp32Threads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kFp32Threads) {
    const int64_t lane = i % sizes.rotated, head = i / sizes.rotated % sizes.heads,
                  row = i / sizes.rotated / sizes.heads;
    static_cast<T*>(p.k.data)[row * p.k.row_stride + head * p.k.head_stride + sizes.made + lane] =
        static_cast<const T*>(p.rows.data)[row * p.rows.row_stride + sizes.latent_dim + lane];
  }
}

/// sums += a b^T of one head.
__device__ __forceinline__ void add_product(float (&sums)[4][4], const Fp32Rows<float>& a,
                                            const Fp32Rows<float>& b, Fp32Tiles& tiles) {
  float c[4][4];
  multiply_rows<float>(c, a, b, tiles);
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += c[i / 4][i % 4];
}

constexpr int kRows = 128, kColumns = 128, kSummed = 64;  // of a stage
constexpr int kThreads = 256;
constexpr int kTileBytes = kRows * kSummed * 2;
static_assert(kRows == kColumns, "both operands of a stage have as many bytes");

/// The place of a warp in its CTA's results, and of its operands in a stage.
struct WarpPlace {
  int32_t row = 0, column = 0;
  __device__ __forceinline__ WarpPlace() {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    row = warp / 2 * 32;
    column = warp % 2 * 64;
  }
};

/// c[half] += a b^T over a stage, for the two halves of the warp's 32 rows; a is the sum of
/// kParts tiles that follow one another.
template <class T, int kParts = 1>
__device__ __forceinline__ void add_stage(float (&c)[2][8][4], const WarpPlace& place,
                                          uint32_t a_tiles, uint32_t b_tile) {
  const FragmentAddress<kSummed> a = along_rows<kSummed>(a_tiles), b = along_lanes<kSummed>(b_tile);
#pragma unroll
  for (int step = 0; step < kSummed / 16; ++step) {
    uint32_t rows[kParts][2][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        load_matrix_x4(rows[part][half], a.at(place.row + 16 * half, step) + part * kTileBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t pair[4];
      load_matrix_x4(pair, b.at(place.column + 16 * i, step));
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          multiply_add<T>(c[half][2 * i], rows[part][half], pair[0], pair[1]);
          multiply_add<T>(c[half][2 * i + 1], rows[part][half], pair[2], pair[3]);
        }
      }
    }
  }
}

/// Calls store(row, column, first value, second value) for the thread's pairs of results.
template <class Store>
__device__ __forceinline__ void for_pairs(const float (&c)[2][8][4], const WarpPlace& place,
                                          Store store) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int half = i / 16, column = i / 2 % 8, low = i % 2;
    store(place.row + half * 16 + low * 8 + lane / 4, place.column + column * 8 + lane % 4 * 2,
          c[half][column][2 * low], c[half][column][2 * low + 1]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    expand_rows_by_tensor_cores(const __grid_constant__ Product p) {
  const uint32_t shared = shared_address(dynamic_shared());
  const int32_t head = blockIdx.z, first = blockIdx.y * kColumns, begin = blockIdx.x * kRows;
  const HeadRows<T> rows{static_cast<const T*>(p.rows.data), p.rows.row_stride, p.pitch};
  const T* const of_head = static_cast<const T*>(p.weights) + int64_t{head} * p.outputs * p.pitch;
  const WarpPlace place;
  float c[2][8][4] = {};
  const auto fill = [&](int32_t stage) {
    const uint32_t tiles = shared + stage % 2 * 2 * kTileBytes;
    const int32_t lane = stage * kSummed;
    copy_tile<kRows, kSummed, kThreads>(
        tiles, HeadRows<T>{rows.first + lane, rows.stride, p.pitch - lane}, begin, p.num_rows);
    copy_tile<kColumns, kSummed, kThreads>(
        tiles + kTileBytes, HeadRows<T>{of_head + lane, p.pitch, p.pitch - lane}, first, p.outputs);
    copy_async_commit();
  };
  const int32_t stages = (p.pitch + kSummed - 1) / kSummed;
  fill(0);
#pragma unroll 1
  for (int32_t stage = 0; stage < stages; ++stage) {
    if (stage + 1 < stages) {
      fill(stage + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const uint32_t tiles = shared + stage % 2 * 2 * kTileBytes;
    add_stage<T>(c, place, tiles, tiles + kTileBytes);
    __syncthreads();  // the next stage but one may be filled
  }
  for_pairs(c, place, [&](int32_t row, int32_t column, float one, float two) {
    if (begin + row >= p.num_rows) return;
    T* const to = static_cast<T*>(p.made.data) + (begin + row) * p.made.row_stride +
                  head * p.made.head_stride + first + column;
    if (first + column + 1 < p.outputs) {
      *reinterpret_cast<uint32_t*>(to) = pack<T>(one, two);
    } else if (first + column < p.outputs) {
      to[0] = from_float<T>(one);
    }
  });
}

/// Splits eight numbers into bf16 ones and the bf16 ones of what they lack, both packed.
__device__ __forceinline__ void split(const float (&values)[8], uint32_t (&high)[4],
                                      uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float rest[2];
    uint32_t bits = 0;
    for (int e = 0; e < 2; ++e) {
      const Bf16 rounded = from_float<Bf16>(values[2 * i + e]);
      rest[e] = values[2 * i + e] - to_float(rounded);
      bits |= static_cast<uint32_t>(rounded.bits) << 16 * e;
    }
    high[i] = bits;
    low[i] = pack<Bf16>(rest[0], rest[1]);
  }
}

/// The gradients of one head that a stage of a contraction sums up, and their weights.
struct ContractionStage {
  const float* first = nullptr;  // of row 0
  int64_t stride = 0;
  int32_t lanes = 0;  // that are there
  HeadRows<Bf16> weights;
};

/// Stages of a head: those of dk, then those of dv.
struct ContractionStages {
  const RowContraction& p;
  int32_t of_k, of_head;

  __device__ explicit ContractionStages(const RowContraction& given)
      : p(given), of_k(stages_for(given.sizes.made)) {
    of_head = of_k + stages_for(p.sizes.head_dim_v);
  }
  __device__ static int32_t stages_for(int32_t elements) {
    return (elements + kSummed - 1) / kSummed;
  }
  __device__ int32_t count() const { return p.sizes.heads * of_head; }

  __device__ __forceinline__ ContractionStage at(int32_t number) const {
    const int32_t head = number / of_head, of_this = number % of_head;
    const bool is_of_k = of_this < of_k;
    const DeviceRows& gradients = is_of_k ? p.dk : p.dv;
    const int32_t elements = is_of_k ? p.sizes.made : p.sizes.head_dim_v;
    const int32_t pitch = (elements + 7) / 8 * 8,
                  lane = (is_of_k ? of_this : of_this - of_k) * kSummed;
    const auto* weights = static_cast<const Bf16*>(is_of_k ? p.w_k : p.w_v);
    return {static_cast<const float*>(gradients.data) + head * gradients.head_stride + lane,
            gradients.row_stride,
            pitch - lane,
            {weights + int64_t{head} * p.sizes.latent_dim * pitch + lane, pitch, pitch - lane}};
  }
};

constexpr int kGroupsOfThread = kRows * kSummed / 8 / kThreads;
using StagedNumbers = float[kGroupsOfThread][8];

/// Loads 128 rows of 64 numbers. Rows from `end` on and elements that are not there become 0.
__device__ __forceinline__ void fetch_numbers(StagedNumbers& numbers, const ContractionStage& stage,
                                              int32_t begin, int32_t end) {
#pragma unroll
  for (int i = 0; i < kGroupsOfThread; ++i) {
    const int32_t number = i * kThreads + static_cast<int32_t>(threadIdx.x);
    const int32_t row = begin + number / 8, lane = number % 8 * 8;
    const bool is_there = row < end && lane < stage.lanes;
#pragma unroll
    for (int e = 0; e < 8; ++e) numbers[i][e] = 0.0f;
    if (is_there) load_values(stage.first, Dtype::fp32, row * stage.stride + lane, numbers[i]);
  }
}

/// Stores them, split, in two tiles.
__device__ __forceinline__ void store_split(uint8_t* tiles, const StagedNumbers& numbers) {
#pragma unroll
  for (int i = 0; i < kGroupsOfThread; ++i) {
    const int32_t number = i * kThreads + static_cast<int32_t>(threadIdx.x);
    const int32_t row = number / 8, group = number % 8;
    Group16 high, low;
    split(numbers[i], high.words, low.words);
    uint8_t* const to = tiles + row * kSummed * 2 + ((group ^ (row & 7)) * 16);
    *reinterpret_cast<Group16*>(to) = high;
    *reinterpret_cast<Group16*>(to + kTileBytes) = low;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    contract_rows_by_tensor_cores(const __grid_constant__ RowContraction p) {
  uint8_t* const memory = dynamic_shared();
  const uint32_t shared = shared_address(memory);
  const int32_t first = blockIdx.y * kColumns, begin = blockIdx.x * kRows;
  const WarpPlace place;
  const ContractionStages stages(p);
  const int32_t count = stages.count();
  float c[2][8][4] = {};
  StagedNumbers numbers;
  // The numbers of the next stage are in registers, and its weights on their way, while this one is
  // multiplied.
  const auto fetch = [&](int32_t number) {
    const ContractionStage stage = stages.at(number);
    copy_tile<kColumns, kSummed, kThreads>(shared + (2 + number % 2) * kTileBytes, stage.weights,
                                           first, p.sizes.latent_dim);
    copy_async_commit();
    fetch_numbers(numbers, stage, begin, p.sizes.num_rows);
  };
  if (count > 0) fetch(0);
#pragma unroll 1
  for (int32_t number = 0; number < count; ++number) {
    store_split(memory, numbers);
    copy_async_wait<0>();
    __syncthreads();
    if (number + 1 < count) fetch(number + 1);
    const uint32_t weights = shared + (2 + number % 2) * kTileBytes;
    add_stage<Bf16, 2>(c, place, shared, weights);
    __syncthreads();  // all warps have read the stage
  }
  for_pairs(c, place, [&](int32_t row, int32_t column, float one, float two) {
    if (begin + row >= p.sizes.num_rows) return;
    float* const to =
        static_cast<float*>(p.rows.data) + (begin + row) * p.rows.row_stride + first + column;
    if (first + column < p.sizes.latent_dim) to[0] = one;
    if (first + column + 1 < p.sizes.latent_dim) to[1] = two;
  });
}

__global__ void __launch_bounds__(kFp32Threads)
    contract_rows(const __grid_constant__ RowContraction p) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const int32_t first = blockIdx.y * kFp32Rows, begin = blockIdx.x * kFp32Rows;
  const LatentSizes& sizes = p.sizes;
  const int32_t pitch_k = (sizes.made + 7) / 8 * 8, pitch_v = (sizes.head_dim_v + 7) / 8 * 8;
  float sums[4][4];
  for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = 0.0f;
  for (int64_t head = 0; head < sizes.heads; ++head) {
    const float* dk = static_cast<const float*>(p.dk.data) + head * p.dk.head_stride;
    const float* dv = static_cast<const float*>(p.dv.data) + head * p.dv.head_stride;
    const float* w_k = static_cast<const float*>(p.w_k) + head * sizes.latent_dim * pitch_k;
    const float* w_v = static_cast<const float*>(p.w_v) + head * sizes.latent_dim * pitch_v;
    add_product(sums, {{dk, p.dk.row_stride, pitch_k}, begin, sizes.num_rows},
                {{w_k, pitch_k, pitch_k}, first, sizes.latent_dim}, tiles);
    add_product(sums, {{dv, p.dv.row_stride, pitch_v}, begin, sizes.num_rows},
                {{w_v, pitch_v, pitch_v}, first, sizes.latent_dim}, tiles);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int32_t row = begin + thread_y() + 16 * (i / 4), lane = first + thread_x() + 16 * (i % 4);
    if (row < sizes.num_rows && lane < sizes.latent_dim)
      static_cast<float*>(p.rows.data)[row * p.rows.row_stride + lane] = sums[i / 4][i % 4];
  }
}

__global__ void add_rotated(const __grid_constant__ RowContraction p) {
  const LatentSizes& sizes = p.sizes;
  const int64_t count = int64_t{sizes.num_rows} * sizes.rotated;
  for (int64_t i = int64_t{blockIdx.x} * kFp32Threads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kFp32Threads) {
    const int64_t lane = i % sizes.rotated, row = i / sizes.rotated;
    const float* dk =
        static_cast<const float*>(p.dk.data) + row * p.dk.row_stride + sizes.made + lane;
    float sum = 0.0f;
    for (int32_t head = 0; head < sizes.heads; ++head) sum += dk[head * p.dk.head_stride];
    static_cast<float*>(p.rows.data)[row * p.rows.row_stride + sizes.latent_dim + lane] = sum;
  }
}

constexpr int32_t kMostBlocks = 2048;

int32_t tiles_for(int32_t count, int32_t size = kFp32Rows) { return (count + size - 1) / size; }
int32_t blocks_for(int64_t count) {
  const int64_t blocks = (count + kFp32Threads - 1) / kFp32Threads;
  return static_cast<int32_t>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

/// Calls launch(T{}) for the element type of the rows.
template <class LaunchAs>
void launch_as(Dtype dtype, LaunchAs launch) {
  if (dtype == Dtype::bf16) return launch(Bf16{});
  if (dtype == Dtype::fp16) return launch(Fp16{});
  launch(0.0f);
}

}  // namespace
}  // namespace device

void launch_row_expansion(const RowExpansion& expansion, Stream stream) {
  const RowExpansion& p = expansion;
  const LatentSizes& sizes = p.sizes;
  if (sizes.num_rows == 0 || sizes.heads == 0) return;
  device::launch_as(p.dtype, [&](auto element) {
    using T = decltype(element);
    const auto make = [&](const void* weights, const DeviceRows& made, int32_t outputs) {
      const device::Product product{p.rows,         made,    weights,
                                    sizes.num_rows, outputs, padded_lanes(sizes.latent_dim)};
      if constexpr (sizeof(T) == 2) {
        launch_kernel(device::expand_rows_by_tensor_cores<T>,
                      {device::tiles_for(sizes.num_rows, device::kRows),
                       device::tiles_for(outputs, device::kColumns), sizes.heads},
                      device::kThreads, 4 * device::kTileBytes, stream, product);
      } else {
        launch_kernel(device::expand_rows<T>,
                      {device::tiles_for(sizes.num_rows), device::tiles_for(outputs), sizes.heads},
                      device::kFp32Threads, device::kFp32SharedBytes, stream, product);
      }
    };
    make(p.w_k, p.k, sizes.made);
    make(p.w_v, p.v, sizes.head_dim_v);
    if (sizes.rotated > 0)
      launch_kernel(device::copy_rotated<T>,
                    device::blocks_for(int64_t{sizes.num_rows} * sizes.heads * sizes.rotated),
                    device::kFp32Threads, 0, stream, p);
  });
}

void launch_row_contraction(const RowContraction& contraction, Stream stream) {
  const RowContraction& p = contraction;
  const LatentSizes& sizes = p.sizes;
  if (sizes.num_rows == 0) return;
  if (p.weights == Dtype::bf16) {
    launch_kernel(device::contract_rows_by_tensor_cores,
                  {device::tiles_for(sizes.num_rows, device::kRows),
                   device::tiles_for(sizes.latent_dim, device::kColumns)},
                  device::kThreads, 4 * device::kTileBytes, stream, p);
  } else {
    launch_kernel(device::contract_rows,
                  {device::tiles_for(sizes.num_rows), device::tiles_for(sizes.latent_dim)},
                  device::kFp32Threads, device::kFp32SharedBytes, stream, p);
  }
  if (sizes.rotated > 0)
    launch_kernel(device::add_rotated, device::blocks_for(int64_t{sizes.num_rows} * sizes.rotated),
                  device::kFp32Threads, 0, stream, p);
}

}  // namespace cpscope::kernels
