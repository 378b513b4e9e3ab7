#include "reference/tile_attention.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <Eigen/Core>

namespace cpscope::reference {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using ConstMap = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;
template <class T>
using Map = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;

template <class T>
ConstMap<T> rows_of(HeadView<const T> view, int64_t begin, int64_t count, int64_t lanes) {
  return ConstMap<T>(view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride));
}
template <class T>
Map<T> rows_of(HeadView<T> view, int64_t begin, int64_t count, int64_t lanes) {
  return Map<T>(view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride));
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::fp16; }

/// exp(a - b) where -inf - -inf means "nothing yet" and weighs 0.
template <class T>
T safe_exp_difference(T a, T b) {
  return a == -std::numeric_limits<T>::infinity() ? T(0) : std::exp(a - b);
}

/// One tile: rows [q0, q0 + height) x columns [k0, k0 + width) of the buffers, inside one band.
struct Tile {
  int64_t q0, height, k0, width;
  bool is_full;
};

/// Calls visit(tile) for every tile of the band that holds a visible cell.
template <class Visit>
void for_each_tile(const BandSlice& band, const TileSettings& settings, Visit visit) {
  for (int64_t q0 = band.q0; q0 < band.q1; q0 += settings.tile_rows) {
    const int64_t q1 = std::min<int64_t>(q0 + settings.tile_rows, band.q1);
    for (int64_t k0 = band.k0; k0 < band.k1; k0 += settings.tile_columns) {
      const int64_t k1 = std::min<int64_t>(k0 + settings.tile_columns, band.k1);
      const TileClass tile_class = classify_tile(band, q0, q1, k0, k1);
      if (tile_class != TileClass::empty)
        visit(Tile{q0, q1 - q0, k0, k1 - k0, tile_class == TileClass::full});
    }
  }
}

/// Visible columns of a tile's row, relative to the tile.
ColumnRange tile_columns_of(const BandSlice& band, const Tile& tile, int64_t row) {
  if (tile.is_full) return {0, tile.width};
  const ColumnRange seen = columns_of_row(band, tile.q0 + row);
  return {std::clamp<int64_t>(seen.begin - tile.k0, 0, tile.width),
          std::clamp<int64_t>(seen.end - tile.k0, 0, tile.width)};
}

/// Logits of a tile: scale * q.k, then softcap * tanh(. / softcap).
template <class T>
void fill_logits(const TileSettings& settings, const Tile& tile, HeadView<const T> q,
                 HeadView<const T> k, Matrix<T>& logits) {
  auto block = logits.topLeftCorner(tile.height, tile.width);
  block.noalias() = rows_of(q, tile.q0, tile.height, settings.dim_qk) *
                    rows_of(k, tile.k0, tile.width, settings.dim_qk).transpose();
  block *= static_cast<T>(settings.scale);
  if (settings.softcap > 0) {
    const T cap = static_cast<T>(settings.softcap);
    block.array() = cap * (block.array() / cap).tanh();
  }
}

template <class T>
void round_row(Dtype dtype, T* row, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] = round_to(dtype, row[i]);
}

/// Running softmax of the rows of one compute item.
template <class T>
struct RowState {
  std::vector<T> max, sum;
  explicit RowState(int64_t rows)
      : max(static_cast<size_t>(rows), -std::numeric_limits<T>::infinity()),
        sum(static_cast<size_t>(rows), T(0)) {}
};

/// Turns logits into exp(logit - running maximum), rescales what the row has gathered so far.
template <class T>
void soften_tile(const TileSettings& settings, const BandSlice& band, const Tile& tile,
                 Matrix<T>& logits, RowState<T>& state, HeadView<T> o) {
  for (int64_t i = 0; i < tile.height; ++i) {
    const ColumnRange seen = tile_columns_of(band, tile, i);
    T* row = logits.data() + i * logits.cols();
    const int64_t count = seen.end - seen.begin;
    if (count <= 0) {
      std::fill(row, row + tile.width, T(0));
      continue;
    }
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> visible(row + seen.begin, count);
    T& running = state.max[tile.q0 + i];
    const T highest = std::max(running, visible.maxCoeff());
    const T factor = safe_exp_difference(running, highest);
    running = highest;
    visible = (visible - highest).exp();
    state.sum[tile.q0 + i] = state.sum[tile.q0 + i] * factor + visible.sum();
    if (factor != T(1))
      Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(o.row(tile.q0 + i), settings.dim_v) *= factor;
    std::fill(row, row + seen.begin, T(0));
    std::fill(row + seen.end, row + tile.width, T(0));
    if (is_16_bit(settings.dtype)) round_row(settings.dtype, row + seen.begin, count);
  }
}

}  // namespace

template <class T>
TileWork tile_forward(const TileSettings& settings, std::span<const BandSlice> bands, int64_t rows,
                      HeadView<const T> q, HeadView<const T> k, HeadView<const T> v, HeadView<T> o,
                      T* lse, int64_t lse_stride) {
  RowState<T> state(rows);
  TileWork work;
  for (int64_t row = 0; row < rows; ++row) std::fill(o.row(row), o.row(row) + settings.dim_v, T(0));
  Matrix<T> logits(settings.tile_rows, settings.tile_columns);
  for (const BandSlice& band : bands) {
    for_each_tile(band, settings, [&](const Tile& tile) {
      fill_logits(settings, tile, q, k, logits);
      soften_tile(settings, band, tile, logits, state, o);
      rows_of(o, tile.q0, tile.height, settings.dim_v).noalias() +=
          logits.topLeftCorner(tile.height, tile.width) *
          rows_of(v, tile.k0, tile.width, settings.dim_v);
      work.flops += 2 * tile.height * tile.width * (settings.dim_qk + settings.dim_v);
    });
  }
  work.max_logit = -std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    work.max_logit = std::max(work.max_logit, static_cast<double>(state.max[row]));
    const bool sees_nothing = state.sum[row] == T(0);
    lse[row * lse_stride] = sees_nothing ? -std::numeric_limits<T>::infinity()
                                         : state.max[row] + std::log(state.sum[row]);
    if (sees_nothing) continue;
    const T inverse = T(1) / state.sum[row];
    for (int32_t lane = 0; lane < settings.dim_v; ++lane) o.row(row)[lane] *= inverse;
  }
  return work;
}

template <class T>
TileWork tile_backward(const TileSettings& settings, std::span<const BandSlice> bands,
                       HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<const T> d_out, const T* lse, int64_t lse_stride, const T* delta,
                       HeadView<T> dq, HeadView<T> dk, HeadView<T> dv) {
  TileWork work;
  Matrix<T> p(settings.tile_rows, settings.tile_columns),
      ds(settings.tile_rows, settings.tile_columns);
  const T scale = static_cast<T>(settings.scale);
  const T cap = static_cast<T>(settings.softcap);
  for (const BandSlice& band : bands) {
    for_each_tile(band, settings, [&](const Tile& tile) {
      fill_logits(settings, tile, q, k, p);
      ds.topLeftCorner(tile.height, tile.width).noalias() =
          rows_of(d_out, tile.q0, tile.height, settings.dim_v) *
          rows_of(v, tile.k0, tile.width, settings.dim_v).transpose();
      for (int64_t i = 0; i < tile.height; ++i) {
        const ColumnRange seen = tile_columns_of(band, tile, i);
        T* p_row = p.data() + i * p.cols();
        T* ds_row = ds.data() + i * ds.cols();
        const int64_t begin = std::min(seen.begin, seen.end), count = seen.end - begin;
        Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> weight(p_row + begin, count),
            slope(ds_row + begin, count);
        // The cap's derivative needs the logit, which the exponential overwrites.
        if (settings.softcap > 0) {
          slope = (slope - delta[tile.q0 + i]) * scale * (T(1) - (weight / cap).square());
        } else {
          slope = (slope - delta[tile.q0 + i]) * scale;
        }
        weight = (weight - lse[(tile.q0 + i) * lse_stride]).exp();
        slope *= weight;
        for (T* row : {p_row, ds_row}) {
          std::fill(row, row + begin, T(0));
          std::fill(row + begin + count, row + tile.width, T(0));
          if (is_16_bit(settings.dtype)) round_row(settings.dtype, row + begin, count);
        }
      }
      const auto weights = p.topLeftCorner(tile.height, tile.width);
      const auto slopes = ds.topLeftCorner(tile.height, tile.width);
      rows_of(dv, tile.k0, tile.width, settings.dim_v).noalias() +=
          weights.transpose() * rows_of(d_out, tile.q0, tile.height, settings.dim_v);
      rows_of(dq, tile.q0, tile.height, settings.dim_qk).noalias() +=
          slopes * rows_of(k, tile.k0, tile.width, settings.dim_qk);
      rows_of(dk, tile.k0, tile.width, settings.dim_qk).noalias() +=
          slopes.transpose() * rows_of(q, tile.q0, tile.height, settings.dim_qk);
      work.flops += 2 * tile.height * tile.width * (3 * settings.dim_qk + 2 * settings.dim_v);
    });
  }
  return work;
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

}  // namespace cpscope::reference
