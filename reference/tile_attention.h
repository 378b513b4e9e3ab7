#pragma once

#include "reference/aligned_vector.h"
#include "reference/tile_terms.h"
#include "sim/plan/band.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <span>
#include <vector>

namespace cpscope::reference {

/// One head of a token-major tensor: element (row, lane) is data[row * stride + lane].
template <class T>
struct HeadView {
  T* data = nullptr;
  int64_t stride = 0;  // elements between rows

  T* row(int64_t index) const { return data + index * stride; }
};

/// Settings for the tiles of one head.
template <class T>
struct TileSettings {
  const TileTerms<T>* terms = nullptr;  // bias, ALiBi and dropout; null: none
  double scale = 1.0;                   // multiplies q.k
  double softcap = 0.0;                 // 0 = off
  Dtype dtype = Dtype::fp32;
  int32_t dim_qk = 0;
  int32_t dim_v = 0;
  int64_t tile_rows = 128;
  int64_t tile_columns = 384;
};

/// Scratch memory of a thread, kept from one call to the next: fresh pages cost as much as a tenth
/// of the arithmetic.
template <class T>
struct TileScratch {
  AlignedVector<T> q, o, d_out, dq;   // [rows of a strip, head_dim]
  AlignedVector<T> k, v, dk, dv;      // [columns of a segment, head_dim]
  AlignedVector<T> logits, slopes;    // [tile_rows, tile_columns]
  AlignedVector<T> row_max, row_sum;  // [rows] running softmax
  AlignedVector<T> bias_slopes;       // [columns of a tile's row] gradient of the bias
};

/// Arithmetic done, for the speed report. A tile is clipped to the rows and columns that hold a
/// visible cell and then counts whole, masked cells included.
struct TileWork {
  int64_t flops = 0;
  double max_logit = 0.0;  // forward: largest visible logit after scale and cap; -inf when none
};

/// Forward of one head over band slices, tile by tile with an online softmax (Milakov & Gimelshein
/// 2018, arXiv:1805.02867, alg. 3). o: [rows, dim_v] normalised, lse: [rows] with stride
/// lse_stride, natural log; rows that no band covers get 0 and -inf. 16-bit dtypes round P before
/// the product with V, as tensor cores require; sums are kept in T.
template <class T>
TileWork tile_forward(const TileSettings<T>& settings, std::span<const BandSlice> bands,
                      int64_t rows, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                      HeadView<T> o, T* lse, int64_t lse_stride, TileScratch<T>& scratch);

/// Backward of one query head: adds dq to a zeroed view and dk, dv to views that other heads of the
/// group may already have added to. `lse` and `delta` = rowsum(d_out * out) are those of the whole
/// row, so that every tile's share is exact.
template <class T>
TileWork tile_backward(const TileSettings<T>& settings, std::span<const BandSlice> bands,
                       HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<const T> d_out, const T* lse, int64_t lse_stride, const T* delta,
                       HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, TileScratch<T>& scratch);

/// Sum of a[lane] * b[lane], in an order that depends only on the number of elements.
template <class T>
T dot_product(const T* a, const T* b, int64_t lanes);

}  // namespace cpscope::reference
