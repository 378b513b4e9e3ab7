// Forward, dq, and dk with dv of one compute item of dtype fp8.
//
// The kernels of attention_fp32.cu on quantised rows. Inputs are codes held as bf16 numbers, which
// are widened as they are staged; scales multiply products and results:
//   forward S = Q K^T, online softmax, P = cast(448 exp(S - max)), O = (O rescaled) + P V
//   dq      P = exp(S - lse), dP = dO V^T, dS = cast(P (dP - delta) scale), dQ += dS K
//   dk, dv  the same transposed: dV += cast(P)^T dO, dK += dS^T Q
// The row sum is that of the weights before their cast; the running maximum is that of the keys up
// to the tile's last one. Bias, ALiBi and dropout as in attention_terms.cu, in the same instances;
// a weight that is kept is enlarged after its cast. With latent attention V is a part of K. mxfp8
// casts dS in blocks along the streamed rows, in shared memory. A block ends where its sequence,
// its padding or the tile ends.
//
// Grid, block and shared memory: as attention_fp32.cu. Registers: at most 255 a thread.
// Accuracy: sums in fp32; a cast rounds as sim/run/fp8.h.
// Source: cuDNN's FP8 attention as its front end documents it, TransformerEngine's recipes.
#include "kernels/attention/attention_fp8.h"
#include "kernels/attention/fp32_kernels.h"
#include "kernels/attention/fp8_numbers.h"
#include "kernels/attention/row_terms.h"
#include "kernels/device/fp8_values.h"

namespace cpscope::kernels {
namespace device {
namespace {

/// A launch, its FP8 and its terms, as one parameter of a kernel. The terms keep weights as they
/// are: `kept_scale` is applied after their cast, whose scale is for weights of at most 1.
template <class Launch>
struct WithFp8 {
  Launch launch;
  Fp8Numbers fp8;
  ScoreTermRows terms;
  float kept_scale = 1.0f;
};

/// The kernels' parameter.
template <class Launch>
WithFp8<Launch> with_fp8(const Launch& launch) {
  WithFp8<Launch> given{launch, *launch.fp8, {}, 1.0f};
  if (!launch.shape.has_terms) return given;
  given.terms = *launch.terms;
  given.kept_scale = given.terms.kept_scale;
  given.terms.kept_scale = 1.0f;
  return given;
}

__device__ __forceinline__ void scale_cells(float (&c)[4][4], float factor) {
#pragma unroll
  for (int i = 0; i < 16; ++i) c[i / 4][i % 4] *= factor;
}

/// Casts the thread's own stored weights times `scale`, and multiplies them by `factor`. A loop
/// that is not unrolled, because casts are long and would be most of the code.
__device__ __forceinline__ void cast_own_weights(Fp32Tiles& tiles, Fp8Type type, float scale,
                                                 float factor) {
#pragma unroll 1
  for (int i = 0; i < 16; ++i)
    own_weight(tiles, i) = scale_to_fp8(type, own_weight(tiles, i), scale) * factor;
}

/// Writes the rows below `end` of the sums, each times its factor. If `scale` is set, each thread
/// then casts what it has written, in a loop as above.
template <int kLanes>
__device__ __forceinline__ void store_cast_sums(const DeviceRows& to, int32_t head,
                                                int32_t head_dim, const float (&c)[4][kLanes / 16],
                                                int32_t begin, int32_t end,
                                                const float (&factors)[4], Fp8Type type,
                                                float scale) {
  store_sums<kLanes>(to, head, head_dim, c, begin, end, factors);
  if (scale == 0.0f) return;
  const float descale = 1.0f / scale;
  const HeadRows<float> rows = rows_of_head<float>(to, head, head_dim);
#pragma unroll 1
  for (int32_t row = begin + thread_y(); row < end && row < begin + kFp32Rows; row += 16) {
#pragma unroll 1
    for (int32_t lane = thread_x() * 4; lane < rows.lanes; lane += 64) {
      auto* const quad = const_cast<float*>(rows.first) + row * rows.stride + lane;
      for (int e = 0; e < 4; ++e) quad[e] = scale_to_fp8(type, quad[e], scale) * descale;
    }
  }
}

/// Casts the stored weights in blocks of columns with one number in `blocks`; columns are the rows
/// [begin, end) of the streamed side. A thread takes the blocks that begin in its 16 columns of a
/// row. Waits before and not after.
__device__ __forceinline__ void cast_column_blocks(Fp32Tiles& tiles, const int32_t* blocks,
                                                   int32_t begin, int32_t end) {
  __syncthreads();  // the weights are stored
  const int32_t columns = end - begin < kFp32Rows ? end - begin : kFp32Rows;
  const auto row = static_cast<int32_t>(threadIdx.x) / 4;
  const int32_t first = static_cast<int32_t>(threadIdx.x) % 4 * 16;
  float* const weights = tiles.weights + row * kFp32WideStride;
  // A column may lie in a block that begins before the thread's own ones; another thread has it.
#pragma unroll 1
  for (int32_t column = first; column < first + 16 && column < columns;) {
    const int32_t block = blocks[begin + column];
    const bool continues = column > 0 && blocks[begin + column - 1] == block;
    if (block < 0 || continues) {
      ++column;
      continue;
    }
    float amax = 0.0f;
    int32_t last = column;
    for (; last < columns && blocks[begin + last] == block; ++last)
      amax = max_or_nan(amax, fabsf(weights[last]));
    const float descale = block_descale_of(amax);
    for (; column < last; ++column)
      weights[column] = quantise_in_block_of(weights[column], descale);
  }
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    forward_fp8(const __grid_constant__ WithFp8<ForwardLaunch> given) {
  const ForwardLaunch& launch = given.launch;
  const Fp8Numbers& fp8 = given.fp8;
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = query_tile_item(launch.query_tiles);
  const OwnedTile& tile = item.tile;
  const int32_t kv_head = kv_head_of(shape, item.head);
  const Fp32Rows<Bf16> q = rows_from<Bf16>(fp8.q, item.head, qk, tile.begin, tile.end);
  OnlineSoftmax softmax;
  float out[4][kLanes / 16] = {}, factors[4];
  const RowTerms terms{given.terms};
  WalkedTile keys;
  while (item.walk.next(keys)) {
    float s[4][4];
    multiply_rows(s, q, rows_from<Bf16>(fp8.k, kv_head, qk, keys.begin, keys.end), tiles);
    scale_cells(s, fp8.descale * fp8.descale);
    const auto cells = query_tile_cells(launch, terms, item, keys, tiles);
    weigh_tile(shape, cells, s, softmax, factors);
#pragma unroll
    for (int i = 0; i < kLanes / 4; ++i) out[i % 4][i / 4] *= factors[i % 4];
    put_weights(s, tiles);
    cast_own_weights(tiles, Fp8Type::e4m3, fp8.weights, 1.0f);
    accumulate_rows<kLanes>(out, rows_from<Bf16>(fp8.v, kv_head, v, keys.begin, keys.end), tiles);
  }
  finish_rows(launch, item.head, tile, softmax, factors);
  for (int i = 0; i < 4; ++i) factors[i] *= fp8.descale / fp8.weights * given.kept_scale;
  store_cast_sums<kLanes>(launch.out, item.head, v, out, tile.begin, tile.end, factors,
                          Fp8Type::e4m3, fp8.out);
}

/// dS of a cell before its cast. `s`: P times the cap's slope; `change`: the gradient of P, after
/// dropout, minus the row's delta.
__device__ __forceinline__ float logit_slope(const AttentionShape& shape, bool is_visible, float s,
                                             float change) {
  return is_visible ? s * change * shape.scale : 0.0f;
}

/// The factor of sums of dS times q or k.
__device__ __forceinline__ float slope_factor(const Fp8Numbers& fp8) {
  return fp8.is_mx ? 1.0f : fp8.descale / fp8.d_logits;
}

/// Casts the stored dS in blocks of columns, or with one scale and then times `factor`.
__device__ __forceinline__ void cast_slopes(Fp32Tiles& tiles, const Fp8Numbers& fp8,
                                            const int32_t* blocks, const WalkedTile& columns,
                                            float factor) {
  if (fp8.is_mx) {
    cast_column_blocks(tiles, blocks, columns.begin, columns.end);
  } else {
    cast_own_weights(tiles, fp8.gradients, fp8.d_logits, factor);
  }
}

template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    query_gradient_fp8(const __grid_constant__ WithFp8<BackwardLaunch> given) {
  const BackwardLaunch& launch = given.launch;
  const Fp8Numbers& fp8 = given.fp8;
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = query_tile_item(launch.query_tiles);
  const OwnedTile& tile = item.tile;
  const int32_t kv_head = kv_head_of(shape, item.head);
  const Fp32Rows<Bf16> q = rows_from<Bf16>(fp8.q, item.head, qk, tile.begin, tile.end);
  const Fp32Rows<Bf16> d_out = rows_from<Bf16>(fp8.d_out, item.head, v, tile.begin, tile.end);
  float log2_lse[4], delta[4];
  load_statistics(launch, item, log2_lse, delta);
  float dq[4][kLanes / 16] = {};
  const RowTerms terms{given.terms};
  const float d_p_factor = fp8.descale * fp8.d_out_descale * given.kept_scale;
  WalkedTile now;
  while (item.walk.next(now)) {
    const auto cells = query_tile_cells(launch, terms, item, now, tiles);
    float s[4][4], d_p[4][4];
    multiply_rows(s, q, rows_from<Bf16>(fp8.k, kv_head, qk, now.begin, now.end), tiles);
    multiply_rows(d_p, d_out, rows_from<Bf16>(fp8.v, kv_head, v, now.begin, now.end), tiles);
    scale_cells(s, fp8.descale * fp8.descale);
    scale_cells(d_p, d_p_factor);
    cells.make_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) cells.scale_kept(d_p[i / 4][i % 4], i);
    cells.make_added();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float p;
      weigh_cell(shape, cells, i, log2_lse[i / 4], s[i / 4][i % 4], p);
      const float change = d_p[i / 4][i % 4] - delta[i / 4];
      cells.put_gradient(p * change, i);
      s[i / 4][i % 4] = logit_slope(shape, cells.is_visible(i), s[i / 4][i % 4], change);
    }
    cells.add_gradients();
    put_weights(s, tiles);
    cast_slopes(tiles, fp8, fp8.kv_blocks.numbers, now, 1.0f);
    accumulate_rows<kLanes>(dq, rows_from<Bf16>(fp8.turned_k, kv_head, qk, now.begin, now.end),
                            tiles);
  }
  const float factor = slope_factor(fp8), factors[4] = {factor, factor, factor, factor};
  store_cast_sums<kLanes>(launch.dq, item.head, qk, dq, tile.begin, tile.end, factors,
                          fp8.gradients, fp8.dq);
}

/// With latent attention dk is one sum for the gradients of K and V, so that their factors apply to
/// the weights.
template <int kLanes>
__global__ void __launch_bounds__(kFp32Threads, 1)
    key_gradient_fp8(const __grid_constant__ WithFp8<BackwardLaunch> given) {
  const BackwardLaunch& launch = given.launch;
  const Fp8Numbers& fp8 = given.fp8;
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = key_tile_item(shape, launch.key_tiles);
  const OwnedTile& tile = item.tile;
  const Fp32Rows<Bf16> keys = rows_from<Bf16>(fp8.k, item.head, qk, tile.begin, tile.end);
  const Fp32Rows<Bf16> values = rows_from<Bf16>(fp8.v, item.head, v, tile.begin, tile.end);
  float dk[4][kLanes / 16] = {}, own_dv[4][kLanes / 16] = {};
  constexpr bool kIsLatent = kIsForLatent<kLanes>;
  auto& dv = kIsLatent ? dk : own_dv;
  const RowTerms terms{given.terms};
  const float d_p_factor = fp8.descale * fp8.d_out_descale * given.kept_scale;
  const float k_factor = slope_factor(fp8),
              v_factor = fp8.d_out_descale / fp8.weights * given.kept_scale;
  WalkedTile now;
  while (item.walk.next(now)) {
    const QueryColumns columns = load_columns(launch, tile, now);
    const TermCells<RowTerms, true> cells{
        terms,     tiles,      columns.visible, shape.first_head + now.head,
        now.begin, tile.begin, now.end,         tile.end};
    float s[4][4], d_p[4][4], p[4][4];
    multiply_rows(s, keys, rows_from<Bf16>(fp8.q, now.head, qk, now.begin, now.end), tiles);
    scale_cells(s, fp8.descale * fp8.descale);
    cells.make_added();
#pragma unroll
    for (int i = 0; i < 16; ++i)
      weigh_cell(shape, cells, i, columns.log2_lse[i % 4], s[i / 4][i % 4], p[i / 4][i % 4]);
    cells.make_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) cells.scale_kept(p[i / 4][i % 4], i);
    put_weights(p, tiles);
    cast_own_weights(tiles, Fp8Type::e4m3, fp8.weights, kIsLatent ? v_factor : 1.0f);
    accumulate_rows<kLanes>(dv, rows_from<Bf16>(fp8.turned_d_out, now.head, v, now.begin, now.end),
                            tiles);
    multiply_rows(d_p, values, rows_from<Bf16>(fp8.d_out, now.head, v, now.begin, now.end), tiles);
    scale_cells(d_p, d_p_factor);
    cells.make_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      cells.scale_kept(d_p[i / 4][i % 4], i);
      s[i / 4][i % 4] = logit_slope(shape, cells.is_visible(i), s[i / 4][i % 4],
                                    d_p[i / 4][i % 4] - columns.delta[i % 4]);
    }
    put_weights(s, tiles);
    cast_slopes(tiles, fp8, fp8.q_blocks.numbers, now, kIsLatent ? k_factor : 1.0f);
    accumulate_rows<kLanes>(dk, rows_from<Bf16>(fp8.turned_q, now.head, qk, now.begin, now.end),
                            tiles);
  }
  const float last = kIsLatent ? 1.0f : k_factor;
  const float k_factors[4] = {last, last, last, last};
  const float v_factors[4] = {v_factor, v_factor, v_factor, v_factor};
  store_cast_sums<kLanes>(launch.dk, item.head, qk, dk, tile.begin, tile.end, k_factors,
                          fp8.gradients, fp8.dk);
  if (!kIsLatent) {
    store_cast_sums<kLanes>(launch.dv, item.head, v, dv, tile.begin, tile.end, v_factors,
                            fp8.gradients, fp8.dv);
  }
}

}  // namespace
}  // namespace device

void launch_fp8_forward(const ForwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(launch.shape, launch.query_tiles.num_work,
                           {device::forward_fp8<64>, device::forward_fp8<128>,
                            device::forward_fp8<256>, device::forward_fp8<kMaxLatentDim>},
                           device::with_fp8(launch), stream);
}

void launch_fp8_query_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(
      launch.shape, launch.query_tiles.num_work,
      {device::query_gradient_fp8<64>, device::query_gradient_fp8<128>,
       device::query_gradient_fp8<256>, device::query_gradient_fp8<kMaxLatentDim>},
      device::with_fp8(launch), stream);
}

void launch_fp8_key_gradient(const BackwardLaunch& launch, Stream stream) {
  device::launch_for_lanes(launch.shape, launch.key_tiles.num_work,
                           {device::key_gradient_fp8<64>, device::key_gradient_fp8<128>,
                            device::key_gradient_fp8<256>, device::key_gradient_fp8<kMaxLatentDim>},
                           device::with_fp8(launch), stream);
}

}  // namespace cpscope::kernels
