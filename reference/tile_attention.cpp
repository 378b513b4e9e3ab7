#include "reference/tile_attention.h"

#include "reference/online_softmax.h"
#include "reference/round_rows.h"

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
using Dense = Eigen::Map<Matrix<T>>;
template <class T>
using Lane = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Columns whose keys and values are packed at a time; it bounds the scratch memory of a thread.
constexpr int64_t kPackedColumns = 4096;

template <class T>
ConstStrided<T> rows_of(HeadView<const T> view, int64_t begin, int64_t count, int64_t lanes) {
  return ConstStrided<T>(view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride));
}
template <class T>
Strided<T> rows_of(HeadView<T> view, int64_t begin, int64_t count, int64_t lanes) {
  return Strided<T>(view.row(begin), count, lanes, Eigen::OuterStride<>(view.stride));
}

template <class T>
constexpr T nothing() {
  return -std::numeric_limits<T>::infinity();
}

/// exp in place, of finite values; NaN stays NaN. Results below the smallest normal number become
/// about that number: subnormals would slow every later product down.
template <class T>
void exponentiate_lanes(Lane<T>& values) {
  const T lowest = std::is_same_v<T, float> ? T(-87) : T(-708);
  values = values.max(lowest).exp();
}

/// Cuts the columns of a band into packed segments, these into strips of rows, and calls
/// on_segment(segment), on_strip(strip), both tightened bands.
template <class T, class OnSegment, class OnStrip>
void for_each_strip(const Band& band, const TileSettings<T>& settings, OnSegment on_segment,
                    OnStrip on_strip) {
  for (int64_t k0 = band.k0; k0 < band.k1; k0 += kPackedColumns) {
    const Band segment = clip(band, band.q0, band.q1, k0, k0 + kPackedColumns);
    if (segment.q0 == segment.q1) continue;
    on_segment(segment);
    for (int64_t q0 = segment.q0; q0 < segment.q1; q0 += settings.tile_rows) {
      const Band strip = clip(segment, q0, q0 + settings.tile_rows, segment.k0, segment.k1);
      if (strip.q0 != strip.q1) on_strip(strip);
    }
  }
}

/// Calls visit(tile) for every tile of the strip that holds a visible cell, clipped to the visible
/// part.
template <class T, class Visit>
void for_each_tile(const Band& strip, const TileSettings<T>& settings, Visit visit) {
  for (int64_t k0 = strip.k0; k0 < strip.k1; k0 += settings.tile_columns) {
    const Band tile = clip(strip, strip.q0, strip.q1, k0, k0 + settings.tile_columns);
    if (tile.q0 != tile.q1) visit(tile);
  }
}

int64_t height_of(const Band& band) { return band.q1 - band.q0; }
int64_t width_of(const Band& band) { return band.k1 - band.k0; }
bool holds_columns(const Band& open, const Band& segment) {
  return open.k0 <= segment.k0 && segment.k1 <= open.k1;
}

/// Visible columns of a tile's row, relative to the tile. In a tightened tile every row sees
/// something.
ColumnRange columns_in_tile(const Band& tile, bool is_whole, int64_t row) {
  if (is_whole) return {0, width_of(tile)};
  const ColumnRange seen = columns_of_row(tile, tile.q0 + row);
  return {seen.begin - tile.k0, seen.end - tile.k0};
}

/// Sets cells that a row does not see to exactly zero: a masked key must not have even a subnormal
/// weight.
template <class T>
void clear_masked(T* row, const ColumnRange& seen, int64_t width) {
  std::fill(row, row + seen.begin, T(0));
  std::fill(row + seen.end, row + width, T(0));
}

template <class T>
void round_lane(Dtype dtype, Lane<T>& lane) {
  round_rows(dtype, {lane.data(), static_cast<size_t>(lane.size())});
}

/// Logits from q.k: scale * q.k, then softcap * tanh(. / softcap).
template <class T>
void scale_and_cap(const TileSettings<T>& settings, Lane<T>& logits) {
  logits *= static_cast<T>(settings.scale);
  if (settings.softcap > 0) {
    const T cap = static_cast<T>(settings.softcap);
    logits = cap * (logits / cap).tanh();
  }
}

/// A dense block in scratch memory; the memory never shrinks.
template <class T>
Dense<T> shape(AlignedVector<T>& memory, int64_t rows, int64_t columns) {
  const auto size = static_cast<size_t>(rows * columns);
  if (memory.size() < size) memory.resize(size);
  return Dense<T>(memory.data(), rows, columns);
}

/// Copies rows of one head without the gaps of the other heads: rows at a distance of a power of
/// two would evict one another from the L1 cache.
template <class T, class View>
void pack(AlignedVector<T>& memory, View view, int64_t begin, int64_t count, int64_t lanes) {
  T* target = shape(memory, count, lanes).data();
  for (int64_t row = 0; row < count; ++row) {
    // Because of the gaps the processor does not prefetch the next rows by itself.
    for (int64_t lane = 0; lane < lanes; lane += 64 / static_cast<int64_t>(sizeof(T)))
      __builtin_prefetch(view.row(begin + std::min(row + 8, count - 1)) + lane);
    std::copy_n(view.row(begin + row), lanes, target + row * lanes);
  }
}

/// Turns q.k into exp(logit - running maximum) and rescales the sums so far of the rows. `gathered`
/// is the strip that begins at `first_row`.
template <class T>
void soften_tile(const TileSettings<T>& settings, const Band& tile, int64_t first_row,
                 Dense<T> gathered, TileScratch<T>& scratch) {
  const bool is_whole = is_full(tile);
  for (int64_t i = 0; i < height_of(tile); ++i) {
    const ColumnRange seen = columns_in_tile(tile, is_whole, i);
    T* row = scratch.logits.data() + i * settings.tile_columns;
    Lane<T> visible(row + seen.begin, seen.end - seen.begin);
    scale_and_cap(settings, visible);
    const TileTerms<T>* terms = settings.terms;
    const int64_t query = tile.q0 + i, first = tile.k0 + seen.begin;
    if (terms != nullptr) terms->add(query, first, visible.data(), visible.size());
    T& running = scratch.row_max[tile.q0 + i];
    T& sum = scratch.row_sum[tile.q0 + i];
    const T highest = std::max(running, visible.maxCoeff());
    const T factor = weight_of(running, highest);
    running = highest;
    visible -= highest;
    exponentiate_lanes(visible);
    if (terms != nullptr && terms->drops() && terms->numbers().sums_kept)
      terms->drop(query, first, visible.data(), visible.size(), T(1));
    sum = sum * factor + visible.sum();
    if (terms != nullptr && terms->drops())
      terms->drop(query, first, visible.data(), visible.size(), T(1));
    if (factor != T(1)) gathered.row(tile.q0 + i - first_row) *= factor;
    clear_masked(row, seen, width_of(tile));
    round_lane(settings.dtype, visible);
  }
}

/// Divides by the softmax sums. Returns the largest logit.
template <class T>
double normalise(const TileSettings<T>& settings, int64_t rows, const TileScratch<T>& scratch,
                 HeadView<T> o, T* lse, int64_t lse_stride) {
  double max_logit = -std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    const T max = scratch.row_max[row], sum = scratch.row_sum[row];
    max_logit = std::max(max_logit, static_cast<double>(max));
    const bool sees_nothing = sum == T(0);
    lse[row * lse_stride] = sees_nothing ? nothing<T>() : max + std::log(sum);
    const bool drops = settings.terms != nullptr && settings.terms->drops();
    const T scale = drops ? static_cast<T>(settings.terms->numbers().scale) : T(1);
    if (!sees_nothing) Lane<T>(o.row(row), settings.dim_v) *= scale / sum;
  }
  return max_logit;
}

/// Turns q.k into P = exp(logit - lse) and d_out.v into dS = P * (d_out.v - delta) * scale.
template <class T>
void differentiate_tile(const TileSettings<T>& settings, const Band& tile, const T* lse,
                        int64_t lse_stride, const T* delta, TileScratch<T>& scratch) {
  const bool is_whole = is_full(tile);
  const T scale = static_cast<T>(settings.scale), cap = static_cast<T>(settings.softcap);
  for (int64_t i = 0; i < height_of(tile); ++i) {
    const ColumnRange seen = columns_in_tile(tile, is_whole, i);
    T* weight_row = scratch.logits.data() + i * settings.tile_columns;
    T* slope_row = scratch.slopes.data() + i * settings.tile_columns;
    Lane<T> weight(weight_row + seen.begin, seen.end - seen.begin);
    Lane<T> slope(slope_row + seen.begin, seen.end - seen.begin);
    scale_and_cap(settings, weight);
    const TileTerms<T>* terms = settings.terms;
    const int64_t query = tile.q0 + i, first = tile.k0 + seen.begin;
    const bool drops = terms != nullptr && terms->drops();
    const T kept = drops ? static_cast<T>(terms->numbers().scale) : T(1);
    if (drops) terms->drop(query, first, slope.data(), slope.size(), kept);
    const bool wants_dbias = terms != nullptr && terms->wants_dbias();
    Lane<T> bias_slope(scratch.bias_slopes.data(), wants_dbias ? slope.size() : 0);
    if (wants_dbias) bias_slope = slope - delta[query];
    slope = (slope - delta[query]) * scale;
    // The derivative of softcap needs the logit, which the exponential overwrites.
    if (settings.softcap > 0) slope *= T(1) - (weight / cap).square();
    if (terms != nullptr) terms->add(query, first, weight.data(), weight.size());
    weight -= lse[query * lse_stride];
    exponentiate_lanes(weight);
    slope *= weight;
    if (wants_dbias) {
      bias_slope *= weight;
      terms->add_dbias(query, first, bias_slope.data(), bias_slope.size());
    }
    if (drops) terms->drop(query, first, weight.data(), weight.size(), kept);
    clear_masked(weight_row, seen, width_of(tile));
    clear_masked(slope_row, seen, width_of(tile));
    round_lane(settings.dtype, weight);
    round_lane(settings.dtype, slope);
  }
}

}  // namespace

template <class T>
TileWork tile_forward(const TileSettings<T>& settings, std::span<const BandSlice> bands,
                      int64_t rows, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                      HeadView<T> o, T* lse, int64_t lse_stride, TileScratch<T>& scratch) {
  TileWork work;
  const int32_t dim_qk = settings.dim_qk, dim_v = settings.dim_v;
  scratch.row_max.assign(static_cast<size_t>(rows), nothing<T>());
  scratch.row_sum.assign(static_cast<size_t>(rows), T(0));
  rows_of(o, 0, rows, dim_v).setZero();
  Dense<T> tile_memory = shape(scratch.logits, settings.tile_rows, settings.tile_columns);
  Band open{};
  const auto on_segment = [&](const Band& segment) {
    if (holds_columns(open, segment)) return;
    open = segment;
    pack(scratch.k, k, open.k0, width_of(open), dim_qk);
    pack(scratch.v, v, open.k0, width_of(open), dim_v);
  };
  const auto on_strip = [&](const Band& strip) {
    pack(scratch.q, q, strip.q0, height_of(strip), dim_qk);
    pack(scratch.o, o, strip.q0, height_of(strip), dim_v);
    const Dense<T> queries = shape(scratch.q, height_of(strip), dim_qk);
    const Dense<T> keys = shape(scratch.k, width_of(open), dim_qk);
    const Dense<T> values = shape(scratch.v, width_of(open), dim_v);
    Dense<T> gathered = shape(scratch.o, height_of(strip), dim_v);
    for_each_tile(strip, settings, [&](const Band& tile) {
      const int64_t height = height_of(tile), width = width_of(tile);
      const int64_t row = tile.q0 - strip.q0, column = tile.k0 - open.k0;
      auto logits = tile_memory.topLeftCorner(height, width);
      logits.noalias() =
          queries.middleRows(row, height) * keys.middleRows(column, width).transpose();
      soften_tile(settings, tile, strip.q0, gathered, scratch);
      gathered.middleRows(row, height).noalias() += logits * values.middleRows(column, width);
      work.flops += 2 * height * width * (dim_qk + dim_v);
    });
    rows_of(o, strip.q0, height_of(strip), dim_v) = gathered;
  };
  for (const BandSlice& band : bands) for_each_strip(band, settings, on_segment, on_strip);
  work.max_logit = normalise(settings, rows, scratch, o, lse, lse_stride);
  return work;
}

template <class T>
TileWork tile_backward(const TileSettings<T>& settings, std::span<const BandSlice> bands,
                       HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<const T> d_out, const T* lse, int64_t lse_stride, const T* delta,
                       HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, TileScratch<T>& scratch) {
  TileWork work;
  const int32_t dim_qk = settings.dim_qk, dim_v = settings.dim_v;
  Dense<T> weight_memory = shape(scratch.logits, settings.tile_rows, settings.tile_columns);
  Dense<T> slope_memory = shape(scratch.slopes, settings.tile_rows, settings.tile_columns);
  shape(scratch.bias_slopes, 1, settings.tile_columns);
  // dK and dV of the open segment are accumulated in scratch memory and written back when another
  // segment is opened.
  Band open{};
  const auto close_segment = [&] {
    if (width_of(open) == 0) return;
    rows_of(dk, open.k0, width_of(open), dim_qk) = shape(scratch.dk, width_of(open), dim_qk);
    rows_of(dv, open.k0, width_of(open), dim_v) = shape(scratch.dv, width_of(open), dim_v);
  };
  const auto on_segment = [&](const Band& segment) {
    if (holds_columns(open, segment)) return;
    close_segment();
    open = segment;
    pack(scratch.k, k, open.k0, width_of(open), dim_qk);
    pack(scratch.v, v, open.k0, width_of(open), dim_v);
    pack(scratch.dk, dk, open.k0, width_of(open), dim_qk);
    pack(scratch.dv, dv, open.k0, width_of(open), dim_v);
  };
  const auto on_strip = [&](const Band& strip) {
    pack(scratch.q, q, strip.q0, height_of(strip), dim_qk);
    pack(scratch.d_out, d_out, strip.q0, height_of(strip), dim_v);
    pack(scratch.dq, dq, strip.q0, height_of(strip), dim_qk);
    Dense<T> strip_dq = shape(scratch.dq, height_of(strip), dim_qk);
    for_each_tile(strip, settings, [&](const Band& tile) {
      const int64_t height = height_of(tile), width = width_of(tile);
      const int64_t row = tile.q0 - strip.q0, column = tile.k0 - open.k0;
      const auto queries = shape(scratch.q, height_of(strip), dim_qk).middleRows(row, height);
      const auto d_outs = shape(scratch.d_out, height_of(strip), dim_v).middleRows(row, height);
      const auto keys = shape(scratch.k, width_of(open), dim_qk).middleRows(column, width);
      const auto values = shape(scratch.v, width_of(open), dim_v).middleRows(column, width);
      auto weights = weight_memory.topLeftCorner(height, width);
      auto slopes = slope_memory.topLeftCorner(height, width);
      weights.noalias() = queries * keys.transpose();
      slopes.noalias() = d_outs * values.transpose();
      differentiate_tile(settings, tile, lse, lse_stride, delta, scratch);
      shape(scratch.dv, width_of(open), dim_v).middleRows(column, width).noalias() +=
          weights.transpose() * d_outs;
      strip_dq.middleRows(row, height).noalias() += slopes * keys;
      shape(scratch.dk, width_of(open), dim_qk).middleRows(column, width).noalias() +=
          slopes.transpose() * queries;
      work.flops += 2 * height * width * (3 * dim_qk + 2 * dim_v);
    });
    rows_of(dq, strip.q0, height_of(strip), dim_qk) = strip_dq;
  };
  for (const BandSlice& band : bands) for_each_strip(band, settings, on_segment, on_strip);
  close_segment();
  return work;
}

template <class T>
T dot_product(const T* a, const T* b, int64_t lanes) {
  using Row = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
  return (Row(a, lanes) * Row(b, lanes)).sum();
}

template TileWork tile_forward<float>(const TileSettings<float>&, std::span<const BandSlice>,
                                      int64_t, HeadView<const float>, HeadView<const float>,
                                      HeadView<const float>, HeadView<float>, float*, int64_t,
                                      TileScratch<float>&);
template TileWork tile_backward<float>(const TileSettings<float>&, std::span<const BandSlice>,
                                       HeadView<const float>, HeadView<const float>,
                                       HeadView<const float>, HeadView<const float>, const float*,
                                       int64_t, const float*, HeadView<float>, HeadView<float>,
                                       HeadView<float>, TileScratch<float>&);
template TileWork tile_forward<double>(const TileSettings<double>&, std::span<const BandSlice>,
                                       int64_t, HeadView<const double>, HeadView<const double>,
                                       HeadView<const double>, HeadView<double>, double*, int64_t,
                                       TileScratch<double>&);
template TileWork tile_backward<double>(const TileSettings<double>&, std::span<const BandSlice>,
                                        HeadView<const double>, HeadView<const double>,
                                        HeadView<const double>, HeadView<const double>,
                                        const double*, int64_t, const double*, HeadView<double>,
                                        HeadView<double>, HeadView<double>, TileScratch<double>&);
template float dot_product(const float*, const float*, int64_t);
template double dot_product(const double*, const double*, int64_t);

}  // namespace cpscope::reference
