#pragma once

#include "kernels/attention/fp32_tiles.h"
#include "kernels/device/launch.h"

#include <cstdint>
#include <type_traits>

/// Bodies of the kernels that multiply in fp32 whatever the inputs are: of attention_fp32.cu, and
/// with bias, ALiBi and dropout, or latent rows, of attention_terms.cu.
namespace cpscope::kernels::device {

template <int kLanes>
inline constexpr int kCtasPerSm = kLanes > 128 ? 1 : 2;

/// True for the instance of latent attention, whose V is a part of K.
template <int kLanes>
inline constexpr bool kIsForLatent = kLanes == kMaxLatentDim;

/// Terms of a kernel without bias, ALiBi and dropout.
struct NoTerms {
  static constexpr bool kAny = false;
};

__device__ __forceinline__ int32_t kv_head_of(const AttentionShape& shape, int32_t head) {
  return (shape.first_head + head) / shape.group - shape.first_kv_head;
}

template <class T>
__device__ __forceinline__ Fp32Rows<T> rows_from(const DeviceRows& rows, int32_t head,
                                                 int32_t head_dim, int32_t begin, int32_t end) {
  return {rows_of_head<T>(rows, head, head_dim), begin, end};
}

/// Rows of a launch in its dtype, which T is or which AnyElement takes from the shape.
template <class T>
__device__ __forceinline__ Fp32Rows<T> input_rows(const AttentionShape& shape,
                                                  const DeviceRows& rows, int32_t head,
                                                  int32_t head_dim, int32_t begin, int32_t end) {
  if constexpr (std::is_same_v<T, AnyElement>) {
    const int64_t bytes = shape.dtype == Dtype::fp32 ? 4 : 2;
    const auto* const first = static_cast<const char*>(rows.data) + head * rows.head_stride * bytes;
    return {{reinterpret_cast<const AnyElement*>(first), rows.row_stride, (head_dim + 7) / 8 * 8},
            begin,
            end,
            shape.dtype};
  } else {
    return rows_from<T>(rows, head, head_dim, begin, end);
  }
}

/// A CTA's work item: its tile, the tile's head, and its walk over the tiles of the other side.
struct TileItem {
  OwnedTile tile;
  int32_t head;
  TileWalk<kFp32Rows> walk;
};

/// The item of this CTA among tiles of queries.
__device__ __forceinline__ TileItem query_tile_item(const DeviceTiles& tiles) {
  const WorkItem work = tiles.work[blockIdx.x];
  const OwnedTile tile = tiles.tiles[work.tile];
  return {tile, work.head, {tiles.runs + tile.first_run, tile.num_runs, work.head, work.head + 1}};
}

/// The item of this CTA among tiles of keys, which walks over all query heads of its group.
__device__ __forceinline__ TileItem key_tile_item(const AttentionShape& shape,
                                                  const DeviceTiles& tiles) {
  const WorkItem work = tiles.work[blockIdx.x];
  const OwnedTile tile = tiles.tiles[work.tile];
  const int32_t begin = (shape.first_kv_head + work.head) * shape.group - shape.first_head;
  const int32_t end = begin + shape.group;
  return {tile,
          work.head,
          {tiles.runs + tile.first_run, tile.num_runs, begin < 0 ? 0 : begin,
           end < shape.num_heads ? end : shape.num_heads}};
}

/// Statistics of the thread's four query rows.
__device__ __forceinline__ void load_statistics(const BackwardLaunch& launch, const TileItem& item,
                                                float (&log2_lse)[4], float (&delta)[4]) {
  for (int i = 0; i < 4; ++i) {
    const int32_t row = item.tile.begin + thread_y() + 16 * i;
    const int64_t at = int64_t{item.head} * launch.shape.q_rows + row;
    log2_lse[i] = row < item.tile.end ? launch.log2_lse[at] : kInfinity;
    delta[i] = row < item.tile.end ? launch.delta[at] : 0.0f;
  }
}

/// Visibility of the cells c[i][j] of a tile: bit 4 i + j. Queries are the rows.
__device__ __forceinline__ uint32_t visible_cells(const DeviceTiles& tiles, int32_t q_rows,
                                                  const OwnedTile& own, const WalkedTile& walked) {
  if (!walked.is_masked) return 0xffff;
  uint32_t visible = 0;
  for (int i = 0; i < 4; ++i) {
    const int32_t q = own.begin + thread_y() + 16 * i;
    if (q >= own.end) continue;
    const KeyRange range = tiles.ranges[int64_t{walked.range_set} * q_rows + q];
    for (int j = 0; j < 4; ++j) {
      const int32_t k = walked.begin + thread_x() + 16 * j;
      if (k >= range.lo && k < range.hi && k < walked.end) visible |= 1u << (4 * i + j);
    }
  }
  return visible;
}

/// The terms of the thread's cells in one tile. `kKeysAreRows`: c[i][j] is key row i, query column
/// j. A loop computes them cell by cell, into the thread's own places of the weights, which are
/// free between a product and put_weights(): unrolled, they would be most of the code.
template <class Terms, bool kKeysAreRows>
struct TermCells {
  static constexpr bool kAny = Terms::kAny;
  const Terms& terms;
  Fp32Tiles& tiles;
  uint32_t visible;           // bit i: cell number i is
  int32_t head;               // among all query heads
  int32_t q_begin, kv_begin;  // first rows of the tile's two sides
  int32_t q_end, kv_end;

  __device__ __forceinline__ bool is_visible(int i) const { return (visible >> i & 1) != 0; }

  /// Computes what add_to() adds to the logits, and what scale_kept() multiplies by.
  __device__ __forceinline__ void make_added() const {
    if constexpr (kAny) {
      if (terms.adds()) make(0.0f, [&](int32_t q, int32_t k) { return terms.added(head, q, k); });
    }
  }
  __device__ __forceinline__ void make_kept() const {
    if constexpr (kAny) {
      if (terms.drops()) make(1.0f, [&](int32_t q, int32_t k) { return terms.kept(head, q, k); });
    }
  }
  __device__ __forceinline__ void add_to(float& logit, int i) const {
    if constexpr (kAny) {
      if (terms.adds()) logit += own_weight(tiles, i);
    }
  }
  __device__ __forceinline__ void scale_kept(float& value, int i) const {
    if constexpr (kAny) {
      if (terms.drops()) value *= own_weight(tiles, i);
    }
  }
  /// Takes the gradient of a cell's bias, which add_gradients() adds to the bias.
  __device__ __forceinline__ void put_gradient(float gradient, int i) const {
    if constexpr (kAny) {
      if (terms.has_gradient()) own_weight(tiles, i) = gradient;
    }
  }
  __device__ __forceinline__ void add_gradients() const {
    if constexpr (kAny) {
      if (!terms.has_gradient()) return;
#pragma unroll 1
      for (int i = 0; i < 16; ++i)
        if (holds(i)) terms.add_gradient(head, query(i), key(i), own_weight(tiles, i));
    }
  }

 private:
  __device__ __forceinline__ int32_t query(int i) const {
    return q_begin + (kKeysAreRows ? thread_x() + i % 4 * 16 : thread_y() + i / 4 * 16);
  }
  __device__ __forceinline__ int32_t key(int i) const {
    return kv_begin + (kKeysAreRows ? thread_y() + i / 4 * 16 : thread_x() + i % 4 * 16);
  }
  /// True if the cell is visible and of two rows. Where nothing is masked, cells beyond them count
  /// as visible: their sums are not written, but their terms must not be either.
  __device__ __forceinline__ bool holds(int i) const {
    return is_visible(i) && query(i) < q_end && key(i) < kv_end;
  }
  template <class Term>
  __device__ __forceinline__ void make(float otherwise, const Term& term) const {
#pragma unroll 1
    for (int i = 0; i < 16; ++i)
      own_weight(tiles, i) = holds(i) ? term(query(i), key(i)) : otherwise;
  }
};

/// The cells of a tile whose queries are the rows.
template <class Launch, class Terms>
__device__ __forceinline__ TermCells<Terms, false> query_tile_cells(const Launch& launch,
                                                                    const Terms& terms,
                                                                    const TileItem& item,
                                                                    const WalkedTile& keys,
                                                                    Fp32Tiles& tiles) {
  const AttentionShape& shape = launch.shape;
  return {terms,
          tiles,
          visible_cells(launch.query_tiles, shape.q_rows, item.tile, keys),
          shape.first_head + item.head,
          item.tile.begin,
          keys.begin,
          item.tile.end,
          keys.end};
}

/// Maximum, and sum, over the 16 threads that share rows.
__device__ __forceinline__ float max_over_columns(float value) {
  for (int mask = 8; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}
__device__ __forceinline__ float sum_over_columns(float value) {
  for (int mask = 8; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

/// Running softmax of the thread's four rows.
struct OnlineSoftmax {
  float max[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};  // natural logits
  float sum[4] = {};                                                // of this thread's columns
};

/// Turns products into weights. Returns in `factors` the factors for earlier sums.
template <class Cells>
__device__ __forceinline__ void weigh_tile(const AttentionShape& shape, const Cells& cells,
                                           float (&s)[4][4], OnlineSoftmax& softmax,
                                           float (&factors)[4]) {
  cells.make_added();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float tile_max = -kInfinity;
    for (int j = 0; j < 4; ++j) {
      s[i][j] = logit_of(shape, s[i][j]).value;
      cells.add_to(s[i][j], 4 * i + j);
      if (cells.is_visible(4 * i + j)) tile_max = fmaxf(tile_max, s[i][j]);
    }
    const float max = fmaxf(softmax.max[i], max_over_columns(tile_max));
    // A row without a visible key so far keeps -inf; -inf - -inf must not arise.
    const float base = max == -kInfinity ? 0.0f : max;
    factors[i] = expf(softmax.max[i] - base);
    softmax.max[i] = max;
    softmax.sum[i] *= factors[i];
    for (int j = 0; j < 4; ++j) {
      s[i][j] = cells.is_visible(4 * i + j) ? expf(s[i][j] - base) : 0.0f;
      softmax.sum[i] += s[i][j];
    }
  }
  cells.make_kept();
#pragma unroll
  for (int i = 0; i < 16; ++i) cells.scale_kept(s[i / 4][i % 4], i);
}

/// Writes lse and max_logit. Returns in `factors` the factors that turn the sums of P V into the
/// output.
__device__ __forceinline__ void finish_rows(const ForwardLaunch& launch, int32_t head,
                                            const OwnedTile& tile, const OnlineSoftmax& softmax,
                                            float (&factors)[4]) {
  float largest = -kInfinity;
  for (int i = 0; i < 4; ++i) {
    const float sum = sum_over_columns(softmax.sum[i]);
    factors[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int32_t row = tile.begin + thread_y() + 16 * i;
    if (row >= tile.end) continue;
    if (thread_x() == 0) {
      launch.lse[row * launch.lse_row_stride + head] =
          sum == 0.0f ? -kInfinity : softmax.max[i] + logf(sum);
    }
    // A NaN in the row's data shows in its sum; fmaxf would lose it.
    const float row_max = sum != sum ? sum : softmax.max[i];
    largest = row_max != row_max || row_max > largest ? row_max : largest;
  }
  if (thread_x() == 0 && largest != -kInfinity) atomic_max(launch.max_logit + head, largest);
}

template <int kLanes, class T, class Terms>
__device__ __forceinline__ void run_forward_tile(const ForwardLaunch& launch, const Terms& terms) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = query_tile_item(launch.query_tiles);
  const OwnedTile& tile = item.tile;
  const int32_t kv_head = kv_head_of(shape, item.head);
  const Fp32Rows<T> q = input_rows<T>(shape, launch.q, item.head, qk, tile.begin, tile.end);
  OnlineSoftmax softmax;
  float out[4][kLanes / 16] = {}, factors[4];
  WalkedTile keys;
  while (item.walk.next(keys)) {
    float s[4][4];
    multiply_rows(s, q, input_rows<T>(shape, launch.k, kv_head, qk, keys.begin, keys.end), tiles);
    const auto cells = query_tile_cells(launch, terms, item, keys, tiles);
    weigh_tile(shape, cells, s, softmax, factors);
    for (int i = 0; i < kLanes / 4; ++i) out[i % 4][i / 4] *= factors[i % 4];
    put_weights(s, tiles);
    accumulate_rows<kLanes>(out, input_rows<T>(shape, launch.v, kv_head, v, keys.begin, keys.end),
                            tiles);
  }
  finish_rows(launch, item.head, tile, softmax, factors);
  store_sums<kLanes>(launch.out, item.head, v, out, tile.begin, tile.end, factors);
}

/// Computes P times the cap's slope in `s`, and P in `p`, from products and the row's statistics.
/// Invisible cells weigh 0. They are selected, not multiplied, because their data may be NaN.
/// i: the cell's number.
template <class Cells>
__device__ __forceinline__ void weigh_cell(const AttentionShape& shape, const Cells& cells, int i,
                                           float log2_lse, float& s, float& p) {
  Fp32Logit logit = logit_of(shape, s);
  cells.add_to(logit.value, i);
  p = cells.is_visible(i) ? exp2f(fmaf(logit.value, kLog2E, -log2_lse)) : 0.0f;
  s = p * logit.slope;
}

template <int kLanes, class T, class Terms>
__device__ __forceinline__ void run_query_gradient_tile(const BackwardLaunch& launch,
                                                        const Terms& terms) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = query_tile_item(launch.query_tiles);
  const OwnedTile& tile = item.tile;
  const int32_t kv_head = kv_head_of(shape, item.head);
  const Fp32Rows<T> q = input_rows<T>(shape, launch.q, item.head, qk, tile.begin, tile.end);
  const Fp32Rows<T> d_out = input_rows<T>(shape, launch.d_out, item.head, v, tile.begin, tile.end);
  float log2_lse[4], delta[4];
  load_statistics(launch, item, log2_lse, delta);
  float dq[4][kLanes / 16] = {};
  WalkedTile now;
  while (item.walk.next(now)) {
    const Fp32Rows<T> keys = input_rows<T>(shape, launch.k, kv_head, qk, now.begin, now.end);
    const auto cells = query_tile_cells(launch, terms, item, now, tiles);
    float s[4][4], d_p[4][4];
    multiply_rows(s, q, keys, tiles);
    multiply_rows(d_p, d_out, input_rows<T>(shape, launch.v, kv_head, v, now.begin, now.end),
                  tiles);
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
      s[i / 4][i % 4] = cells.is_visible(i) ? s[i / 4][i % 4] * change : 0.0f;
    }
    cells.add_gradients();
    put_weights(s, tiles);
    accumulate_rows<kLanes>(dq, keys, tiles);
  }
  const float factors[4] = {shape.scale, shape.scale, shape.scale, shape.scale};
  store_sums<kLanes>(launch.dq, item.head, qk, dq, tile.begin, tile.end, factors);
}

/// Data of the thread's four query columns.
struct QueryColumns {
  float log2_lse[4];
  float delta[4];
  uint32_t visible = 0;  // bit 4 i + j: query j sees key i
};

__device__ __forceinline__ QueryColumns load_columns(const BackwardLaunch& launch,
                                                     const OwnedTile& own,
                                                     const WalkedTile& walked) {
  QueryColumns columns;
  const int64_t q_rows = launch.shape.q_rows;
  for (int j = 0; j < 4; ++j) {
    const int32_t q = walked.begin + thread_x() + 16 * j;
    const bool is_there = q < walked.end;
    columns.log2_lse[j] = is_there ? launch.log2_lse[walked.head * q_rows + q] : kInfinity;
    columns.delta[j] = is_there ? launch.delta[walked.head * q_rows + q] : 0.0f;
    KeyRange range;
    if (is_there) range = launch.key_tiles.ranges[walked.range_set * q_rows + q];
    for (int i = 0; i < 4; ++i) {
      const int32_t k = own.begin + thread_y() + 16 * i;
      const bool is_seen = !walked.is_masked || (k >= range.lo && k < range.hi);
      if (is_there && is_seen) columns.visible |= 1u << (4 * i + j);
    }
  }
  return columns;
}

/// kIsLatent: V is the first elements of K, and dk is one sum for the gradient of both.
template <int kLanes, class T, bool kIsLatent = false, class Terms>
__device__ __forceinline__ void run_key_gradient_tile(const BackwardLaunch& launch,
                                                      const Terms& terms) {
  auto& tiles = *reinterpret_cast<Fp32Tiles*>(dynamic_shared());
  const AttentionShape& shape = launch.shape;
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  TileItem item = key_tile_item(shape, launch.key_tiles);
  const OwnedTile& tile = item.tile;
  const Fp32Rows<T> keys = input_rows<T>(shape, launch.k, item.head, qk, tile.begin, tile.end);
  const Fp32Rows<T> values = input_rows<T>(shape, launch.v, item.head, v, tile.begin, tile.end);
  float dk[4][kLanes / 16] = {}, own_dv[4][kLanes / 16] = {};
  auto& dv = kIsLatent ? dk : own_dv;
  WalkedTile now;
  while (item.walk.next(now)) {
    const Fp32Rows<T> q = input_rows<T>(shape, launch.q, now.head, qk, now.begin, now.end);
    const Fp32Rows<T> d_out = input_rows<T>(shape, launch.d_out, now.head, v, now.begin, now.end);
    const QueryColumns columns = load_columns(launch, tile, now);
    const TermCells<Terms, true> cells{
        terms,     tiles,      columns.visible, shape.first_head + now.head,
        now.begin, tile.begin, now.end,         tile.end};
    float s[4][4], d_p[4][4], p[4][4];
    multiply_rows(s, keys, q, tiles);
    cells.make_added();
#pragma unroll
    for (int i = 0; i < 16; ++i)
      weigh_cell(shape, cells, i, columns.log2_lse[i % 4], s[i / 4][i % 4], p[i / 4][i % 4]);
    cells.make_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) cells.scale_kept(p[i / 4][i % 4], i);
    put_weights(p, tiles);
    accumulate_rows<kLanes>(dv, d_out, tiles);
    multiply_rows(d_p, values, d_out, tiles);
    cells.make_kept();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      cells.scale_kept(d_p[i / 4][i % 4], i);
      float d_s = s[i / 4][i % 4] * (d_p[i / 4][i % 4] - columns.delta[i % 4]);
      if (kIsLatent) d_s *= shape.scale;
      s[i / 4][i % 4] = cells.is_visible(i) ? d_s : 0.0f;
    }
    put_weights(s, tiles);
    accumulate_rows<kLanes>(dk, q, tiles);
  }
  const float scale = kIsLatent ? 1.0f : shape.scale;
  const float scales[4] = {scale, scale, scale, scale};
  const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  store_sums<kLanes>(launch.dk, item.head, qk, dk, tile.begin, tile.end, scales);
  if (!kIsLatent) store_sums<kLanes>(launch.dv, item.head, v, dv, tile.begin, tile.end, ones);
}

inline constexpr auto kFp32SharedBytes = static_cast<int32_t>(sizeof(Fp32Tiles));

/// Launches the instance whose head_dims hold the shape's; the fourth one, if there is one, is for
/// latent attention.
template <class Launch, size_t kCount>
void launch_for_lanes(const AttentionShape& shape, int32_t num_work,
                      void (*const (&kernels)[kCount])(Launch), const Launch& launch,
                      Stream stream) {
  if (num_work == 0) return;
  const int32_t lanes = shape.head_dim_qk > shape.head_dim_v ? shape.head_dim_qk : shape.head_dim_v;
  const size_t index = kCount > 3 && shape.is_latent ? 3 : lanes <= 64 ? 0 : lanes <= 128 ? 1 : 2;
  launch_kernel(kernels[index], num_work, kFp32Threads, kFp32SharedBytes, stream, launch);
}

}  // namespace cpscope::kernels::device
