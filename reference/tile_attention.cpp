#include "reference/tile_attention.h"

#include "reference/online_softmax.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <Eigen/Core>

namespace cpscope::reference {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Strided = Eigen::Map<Matrix<std::remove_const_t<T>>, 0, Eigen::OuterStride<>>;
template <class T>
using ConstStrided = Eigen::Map<const Matrix<std::remove_const_t<T>>, 0, Eigen::OuterStride<>>;
template <class T>
using Lane = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Columns whose keys and values are packed at a time: what the scratch memory of one thread is
/// bounded by.
constexpr int64_t kPackedColumns = 4096;

template <class T>
ConstStrided<T> rows_of(HeadView<const T> view, int64_t begin, int64_t count, int64_t lanes) {
  return {view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride)};
}
template <class T>
Strided<T> rows_of(HeadView<T> view, int64_t begin, int64_t count, int64_t lanes) {
  return {view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride)};
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::fp16; }

template <class T>
constexpr T nothing() {
  return -std::numeric_limits<T>::infinity();
}

/// exp in place, of finite values; NaN stays NaN. What would be subnormal becomes 0: Eigen's
/// vectorised exp never gives less than its smallest number, and subnormals slow the product down.
template <class T>
void exponentiate(Lane<T>& values) {
  const T smallest = std::is_same_v<T, float> ? T(-87) : T(-708);
  values = (values < smallest).select(T(0), values.max(smallest).exp());
}

/// Cuts the columns of a band into packed segments, these into strips of rows, and calls
/// visit(segment, strip) with both as tightened bands.
template <class OnSegment, class OnStrip>
void for_each_strip(const Band& band, const TileSettings& settings, OnSegment on_segment,
                    OnStrip on_strip) {
  for (int64_t k0 = band.k0; k0 < band.k1; k0 += kPackedColumns) {
    const Band segment = clip(band, band.q0, band.q1, k0, k0 + kPackedColumns);
    if (segment.q0 == segment.q1) continue;
    on_segment(segment);
    for (int64_t q0 = segment.q0; q0 < segment.q1; q0 += settings.tile_rows) {
      const Band strip = clip(segment, q0, q0 + settings.tile_rows, segment.k0, segment.k1);
      if (strip.q0 != strip.q1) on_strip(segment, strip);
    }
  }
}

/// Calls visit(tile) for every tile of the strip that holds a visible cell, cut to what is visible.
template <class Visit>
void for_each_tile(const Band& strip, const TileSettings& settings, Visit visit) {
  for (int64_t k0 = strip.k0; k0 < strip.k1; k0 += settings.tile_columns) {
    const Band tile = clip(strip, strip.q0, strip.q1, k0, k0 + settings.tile_columns);
    if (tile.q0 != tile.q1) visit(tile);
  }
}

int64_t height_of(const Band& band) { return band.q1 - band.q0; }
int64_t width_of(const Band& band) { return band.k1 - band.k0; }

/// Visible columns of a tile's row, relative to the tile. A tightened tile shows every row
/// something.
ColumnRange columns_in_tile(const Band& tile, bool is_whole, int64_t row) {
  if (is_whole) return {0, width_of(tile)};
  const ColumnRange seen = columns_of_row(tile, tile.q0 + row);
  return {seen.begin - tile.k0, seen.end - tile.k0};
}

/// Zeroes what a row does not see, exactly: a masked key must not weigh even a subnormal.
template <class T>
void clear_masked(T* row, const ColumnRange& seen, int64_t width) {
  std::fill(row, row + seen.begin, T(0));
  std::fill(row + seen.end, row + width, T(0));
}

template <class T>
void round_row(Dtype dtype, Lane<T>& row) {
  if (is_16_bit(dtype)) round_values(dtype, {row.data(), static_cast<size_t>(row.size())});
}

/// Logits from q.k: scale * q.k, then softcap * tanh(. / softcap).
template <class T>
void scale_and_cap(const TileSettings& settings, Lane<T>& logits) {
  logits *= static_cast<T>(settings.scale);
  if (settings.softcap > 0) {
    const T cap = static_cast<T>(settings.softcap);
    logits = cap * (logits / cap).tanh();
  }
}

/// One head's operands without the gaps of the other heads: rows that lie a power of two apart
/// would evict one another from the first cache.
template <class T>
struct Packed {
  Matrix<T> q, k, v, o, d_out;  // q, o, d_out: one strip of rows; k, v: one segment of columns
  Matrix<T> dq, dk, dv;         // dq: one strip, dk, dv: one segment
  Matrix<T> logits, slopes;     // [tile_rows, tile_columns]
};

/// Room for the largest tile that the bands can ask for.
template <class T>
void make_room(const TileSettings& settings, std::span<const BandSlice> bands, Matrix<T>& tile) {
  int64_t rows = 0, columns = 0;
  for (const BandSlice& band : bands) {
    rows = std::max<int64_t>(rows, band.q1 - band.q0);
    columns = std::max<int64_t>(columns, band.k1 - band.k0);
  }
  tile.resize(std::min(rows, settings.tile_rows), std::min(columns, settings.tile_columns));
}

/// Running softmax of the rows of one compute item.
template <class T>
struct RowState {
  std::vector<T> max, sum;
  explicit RowState(int64_t rows)
      : max(static_cast<size_t>(rows), nothing<T>()), sum(static_cast<size_t>(rows), T(0)) {}
};

/// Turns q.k into exp(logit - running maximum), rescales what the row has gathered so far.
template <class T>
void soften_tile(const TileSettings& settings, const Band& tile, int64_t first_row,
                 RowState<T>& state, Packed<T>& packed) {
  const bool is_whole = is_full(tile);
  for (int64_t i = 0; i < height_of(tile); ++i) {
    const ColumnRange seen = columns_in_tile(tile, is_whole, i);
    T* row = packed.logits.data() + i * packed.logits.cols();
    Lane<T> visible(row + seen.begin, seen.end - seen.begin);
    scale_and_cap(settings, visible);
    T& running = state.max[tile.q0 + i];
    const T highest = std::max(running, visible.maxCoeff());
    const T factor = weight_of(running, highest);
    running = highest;
    visible -= highest;
    exponentiate(visible);
    state.sum[tile.q0 + i] = state.sum[tile.q0 + i] * factor + visible.sum();
    if (factor != T(1)) packed.o.row(tile.q0 + i - first_row) *= factor;
    clear_masked(row, seen, width_of(tile));
    round_row(settings.dtype, visible);
  }
}

/// Divides by the softmax sums. Returns the largest logit.
template <class T>
double normalise(const TileSettings& settings, const RowState<T>& state, HeadView<T> o, T* lse,
                 int64_t lse_stride) {
  double max_logit = -std::numeric_limits<double>::infinity();
  for (size_t row = 0; row < state.max.size(); ++row) {
    const auto index = static_cast<int64_t>(row);
    max_logit = std::max(max_logit, static_cast<double>(state.max[row]));
    const bool sees_nothing = state.sum[row] == T(0);
    lse[index * lse_stride] =
        sees_nothing ? nothing<T>() : state.max[row] + std::log(state.sum[row]);
    if (!sees_nothing) Lane<T>(o.row(index), settings.dim_v) *= T(1) / state.sum[row];
  }
  return max_logit;
}

/// Turns q.k into P = exp(logit - lse) and d_out.v into dS = P * (d_out.v - delta) * scale.
template <class T>
void differentiate_tile(const TileSettings& settings, const Band& tile, const T* lse,
                        int64_t lse_stride, const T* delta, Packed<T>& packed) {
  const bool is_whole = is_full(tile);
  const T scale = static_cast<T>(settings.scale), cap = static_cast<T>(settings.softcap);
  for (int64_t i = 0; i < height_of(tile); ++i) {
    const ColumnRange seen = columns_in_tile(tile, is_whole, i);
    T* weight_row = packed.logits.data() + i * packed.logits.cols();
    T* slope_row = packed.slopes.data() + i * packed.slopes.cols();
    Lane<T> weight(weight_row + seen.begin, seen.end - seen.begin);
    Lane<T> slope(slope_row + seen.begin, seen.end - seen.begin);
    scale_and_cap(settings, weight);
    slope = (slope - delta[tile.q0 + i]) * scale;
    // The cap's derivative needs the logit, which the exponential overwrites.
    if (settings.softcap > 0) slope *= T(1) - (weight / cap).square();
    weight -= lse[(tile.q0 + i) * lse_stride];
    exponentiate(weight);
    slope *= weight;
    clear_masked(weight_row, seen, width_of(tile));
    clear_masked(slope_row, seen, width_of(tile));
    round_row(settings.dtype, weight);
    round_row(settings.dtype, slope);
  }
}

}  // namespace

template <class T>
TileWork tile_forward(const TileSettings& settings, std::span<const BandSlice> bands, int64_t rows,
                      HeadView<const T> q, HeadView<const T> k, HeadView<const T> v, HeadView<T> o,
                      T* lse, int64_t lse_stride) {
  RowState<T> state(rows);
  TileWork work;
  rows_of(o, 0, rows, settings.dim_v).setZero();
  Packed<T> packed;
  make_room(settings, bands, packed.logits);
  const auto on_segment = [&](const Band& segment) {
    packed.k = rows_of(k, segment.k0, width_of(segment), settings.dim_qk);
    packed.v = rows_of(v, segment.k0, width_of(segment), settings.dim_v);
  };
  const auto on_strip = [&](const Band& segment, const Band& strip) {
    packed.q = rows_of(q, strip.q0, height_of(strip), settings.dim_qk);
    packed.o = rows_of(o, strip.q0, height_of(strip), settings.dim_v);
    for_each_tile(strip, settings, [&](const Band& tile) {
      const int64_t height = height_of(tile), width = width_of(tile);
      const int64_t row = tile.q0 - strip.q0, column = tile.k0 - segment.k0;
      auto logits = packed.logits.topLeftCorner(height, width);
      logits.noalias() =
          packed.q.middleRows(row, height) * packed.k.middleRows(column, width).transpose();
      soften_tile(settings, tile, strip.q0, state, packed);
      packed.o.middleRows(row, height).noalias() += logits * packed.v.middleRows(column, width);
      work.flops += 2 * height * width * (settings.dim_qk + settings.dim_v);
    });
    rows_of(o, strip.q0, height_of(strip), settings.dim_v) = packed.o;
  };
  for (const BandSlice& band : bands) for_each_strip(band, settings, on_segment, on_strip);
  work.max_logit = normalise(settings, state, o, lse, lse_stride);
  return work;
}

template <class T>
TileWork tile_backward(const TileSettings& settings, std::span<const BandSlice> bands,
                       HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<const T> d_out, const T* lse, int64_t lse_stride, const T* delta,
                       HeadView<T> dq, HeadView<T> dk, HeadView<T> dv) {
  TileWork work;
  Packed<T> packed;
  make_room(settings, bands, packed.logits);
  make_room(settings, bands, packed.slopes);
  const int32_t dim_qk = settings.dim_qk, dim_v = settings.dim_v;
  // dK and dV of a segment are gathered apart and put back when the next one begins.
  Band open{};
  const auto close_segment = [&] {
    if (width_of(open) == 0) return;
    rows_of(dk, open.k0, width_of(open), dim_qk) = packed.dk;
    rows_of(dv, open.k0, width_of(open), dim_v) = packed.dv;
  };
  const auto on_segment = [&](const Band& segment) {
    close_segment();
    open = segment;
    packed.k = rows_of(k, segment.k0, width_of(segment), dim_qk);
    packed.v = rows_of(v, segment.k0, width_of(segment), dim_v);
    packed.dk = rows_of(dk, segment.k0, width_of(segment), dim_qk);
    packed.dv = rows_of(dv, segment.k0, width_of(segment), dim_v);
  };
  const auto on_strip = [&](const Band& segment, const Band& strip) {
    packed.q = rows_of(q, strip.q0, height_of(strip), dim_qk);
    packed.d_out = rows_of(d_out, strip.q0, height_of(strip), dim_v);
    packed.dq = rows_of(dq, strip.q0, height_of(strip), dim_qk);
    for_each_tile(strip, settings, [&](const Band& tile) {
      const int64_t height = height_of(tile), width = width_of(tile);
      const int64_t row = tile.q0 - strip.q0, column = tile.k0 - segment.k0;
      const auto queries = packed.q.middleRows(row, height);
      const auto d_outs = packed.d_out.middleRows(row, height);
      const auto keys = packed.k.middleRows(column, width);
      auto weights = packed.logits.topLeftCorner(height, width);
      auto slopes = packed.slopes.topLeftCorner(height, width);
      weights.noalias() = queries * keys.transpose();
      slopes.noalias() = d_outs * packed.v.middleRows(column, width).transpose();
      differentiate_tile(settings, tile, lse, lse_stride, delta, packed);
      packed.dv.middleRows(column, width).noalias() += weights.transpose() * d_outs;
      packed.dq.middleRows(row, height).noalias() += slopes * keys;
      packed.dk.middleRows(column, width).noalias() += slopes.transpose() * queries;
      work.flops += 2 * height * width * (3 * dim_qk + 2 * dim_v);
    });
    rows_of(dq, strip.q0, height_of(strip), dim_qk) = packed.dq;
  };
  for (const BandSlice& band : bands) for_each_strip(band, settings, on_segment, on_strip);
  close_segment();
  return work;
}

template <class T>
T dot_product(const T* a, const T* b, int64_t lanes) {
  return (ConstStrided<T>(a, 1, lanes, Eigen::OuterStride<>(lanes)).array() *
          ConstStrided<T>(b, 1, lanes, Eigen::OuterStride<>(lanes)).array())
      .sum();
}

template TileWork tile_forward<float>(const TileSettings&, std::span<const BandSlice>, int64_t,
                                      HeadView<const float>, HeadView<const float>,
                                      HeadView<const float>, HeadView<float>, float*, int64_t);
template TileWork tile_forward<double>(const TileSettings&, std::span<const BandSlice>, int64_t,
                                       HeadView<const double>, HeadView<const double>,
                                       HeadView<const double>, HeadView<double>, double*, int64_t);
template TileWork tile_backward<float>(const TileSettings&, std::span<const BandSlice>,
                                       HeadView<const float>, HeadView<const float>,
                                       HeadView<const float>, HeadView<const float>, const float*,
                                       int64_t, const float*, HeadView<float>, HeadView<float>,
                                       HeadView<float>);
template TileWork tile_backward<double>(const TileSettings&, std::span<const BandSlice>,
                                        HeadView<const double>, HeadView<const double>,
                                        HeadView<const double>, HeadView<const double>,
                                        const double*, int64_t, const double*, HeadView<double>,
                                        HeadView<double>, HeadView<double>);
template float dot_product(const float*, const float*, int64_t);
template double dot_product(const double*, const double*, int64_t);

}  // namespace cpscope::reference
