#include "reference/quantised_tiles.h"

#include "reference/online_softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <Eigen/Core>

namespace cpscope::reference {
namespace {

using Table = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using TableView = Eigen::Map<const Table>;

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

TableView rows_in(const HeadCopy& copy, int64_t begin, int64_t end) {
  return TableView(copy.row(begin), end - begin, copy.lanes);
}

HeadCopy copy_rows(HeadView<const float> view, int64_t rows, int64_t lanes) {
  HeadCopy copy{lanes, {}};
  copy.values.reserve(static_cast<size_t>(rows * lanes));
  for (int64_t row = 0; row < rows; ++row)
    copy.values.insert(copy.values.end(), view.row(row), view.row(row) + lanes);
  return copy;
}

/// Quantises `count` values `stride` apart that share a scale. One NaN makes all of them NaN.
float cast_block(float* first, int64_t stride, int64_t count) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float size = std::abs(first[i * stride]);
    amax = size > amax || std::isnan(size) ? size : amax;
    if (std::isnan(amax)) break;
  }
  const float descale = std::isnan(amax) ? amax : block_descale(amax);
  for (int64_t i = 0; i < count; ++i)
    first[i * stride] = quantise_in_block(first[i * stride], descale);
  return descale;
}

/// Calls visit(begin, end) for every stretch of [from, to) with one block number; padding, -1, is
/// left out.
template <class Visit>
void for_each_block(std::span<const int32_t> blocks, int64_t from, int64_t to, Visit visit) {
  for (int64_t begin = from, end = from; begin < to; begin = end) {
    const int32_t block = blocks[static_cast<size_t>(begin)];
    while (end < to && blocks[static_cast<size_t>(end)] == block) ++end;
    if (block >= 0) visit(begin, end);
  }
}

/// Blocks along each row; rows of padding, which may hold anything, are left as they are.
void cast_along_rows(HeadCopy& copy) {
  const int64_t rows = copy.lanes == 0 ? 0 : std::ssize(copy.values) / copy.lanes;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t lane = 0; lane < copy.lanes; lane += kMxBlock)
      cast_block(copy.values.data() + row * copy.lanes + lane, 1,
                 std::min(kMxBlock, copy.lanes - lane));
  }
}

void cast_along_tokens(HeadCopy& copy, std::span<const int32_t> blocks) {
  for_each_block(blocks, 0, std::ssize(blocks), [&](int64_t begin, int64_t end) {
    for (int64_t lane = 0; lane < copy.lanes; ++lane)
      cast_block(copy.values.data() + begin * copy.lanes + lane, copy.lanes, end - begin);
  });
}

/// A mistake of the fault gallery: what was cast along tokens is multiplied with the descale that k
/// has in the same place.
void read_with_key_scales(const HeadCopy& plain_k, const HeadCopy& plain_v,
                          std::span<const int32_t> blocks, HeadCopy& v) {
  for_each_block(blocks, 0, std::ssize(blocks), [&](int64_t begin, int64_t end) {
    for (int64_t lane = 0; lane < v.lanes; ++lane) {
      float amax = 0;
      for (int64_t row = begin; row < end; ++row)
        amax = std::max(amax, std::abs(plain_v.row(row)[lane]));
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = std::min(lane, plain_k.lanes - 1) / kMxBlock * kMxBlock;
        float key_amax = 0;
        for (int64_t i = first; i < std::min(first + kMxBlock, plain_k.lanes); ++i)
          key_amax = std::max(key_amax, std::abs(plain_k.row(row)[i]));
        v.values[static_cast<size_t>(row * v.lanes + lane)] *=
            block_descale(key_amax) / block_descale(amax);
      }
    }
  });
}

/// Calls visit(tile) for every tile of the bands that holds a visible cell.
template <class Visit>
void for_each_quantised_tile(std::span<const BandSlice> bands, Visit visit) {
  for (const Band band : bands) {
    for (int64_t q0 = band.q0; q0 < band.q1; q0 += kQuantisedTile) {
      const Band strip = clip(band, q0, q0 + kQuantisedTile, band.k0, band.k1);
      if (strip.q0 == strip.q1) continue;
      for (int64_t k0 = strip.k0; k0 < strip.k1; k0 += kQuantisedTile) {
        const Band tile = clip(strip, strip.q0, strip.q1, k0, k0 + kQuantisedTile);
        if (tile.q0 != tile.q1) visit(tile);
      }
    }
  }
}

float scaled_and_capped(const TileSettings<float>& settings, float product) {
  const float logit = product * static_cast<float>(settings.scale);
  const auto cap = static_cast<float>(settings.softcap);
  return cap > 0 ? cap * std::tanh(logit / cap) : logit;
}

/// Columns of a row that it sees, in the tile's own numbers.
ColumnRange seen_columns(const Band& tile, int64_t row) {
  const ColumnRange seen = columns_of_row(tile, tile.q0 + row);
  return {seen.begin - tile.k0, seen.end - tile.k0};
}

float cast_weight(float weight, float scale) {
  return quantise(Fp8Type::e4m3, weight, scale, 1.0f / scale);
}

void clear_unseen(float* row, const ColumnRange& seen, int64_t width) {
  std::fill(row, row + seen.begin, 0.0f);
  std::fill(row + seen.end, row + width, 0.0f);
}

/// The factor of weights that dropout keeps. It is applied after their cast, whose scale is for
/// weights of at most 1.
float kept_scale(const TileSettings<float>& settings) {
  const bool drops = settings.terms != nullptr && settings.terms->drops();
  return drops ? static_cast<float>(settings.terms->numbers().scale) : 1.0f;
}

/// Bias, ALiBi and dropout of the columns that a row of a tile sees; pointers are to its column 0.
class RowTerms {
 public:
  RowTerms(const TileSettings<float>& settings, const Band& tile, int64_t row,
           const ColumnRange& seen)
      : terms_(settings.terms),
        row_(tile.q0 + row),
        first_(tile.k0 + seen.begin),
        begin_(seen.begin),
        count_(seen.end - seen.begin) {}

  bool sums_kept() const { return terms_ != nullptr && terms_->numbers().sums_kept; }
  void add(float* logits) const {
    if (terms_ != nullptr) terms_->add(row_, first_, logits + begin_, count_);
  }
  void drop(float* weights, float kept) const {
    if (terms_ != nullptr && terms_->drops())
      terms_->drop(row_, first_, weights + begin_, count_, kept);
  }
  void add_dbias(const float* gradient) const {
    if (terms_ != nullptr && terms_->wants_dbias())
      terms_->add_dbias(row_, first_, gradient + begin_, count_);
  }

 private:
  const TileTerms<float>* terms_;
  int64_t row_, first_, begin_, count_;
};

}  // namespace

void cast_rows(Fp8Type type, float scale, int64_t rows, int64_t lanes, HeadView<float> values) {
  if (scale == 0) return;
  const float descale = 1.0f / scale;
  for (int64_t row = 0; row < rows; ++row) {
    float* first = values.row(row);
    for (int64_t lane = 0; lane < lanes; ++lane)
      first[lane] = quantise(type, first[lane], scale, descale);
  }
}

QuantisedOperands make_operands(const TileSettings<float>& settings, const QuantisedRules& rules,
                                HeadView<const float> q, HeadView<const float> k,
                                HeadView<const float> v, HeadView<const float> d_out,
                                std::vector<int32_t> q_blocks, std::vector<int32_t> kv_blocks,
                                int64_t q_rows, int64_t kv_rows) {
  QuantisedOperands operands;
  operands.q = copy_rows(q, q_rows, settings.dim_qk);
  operands.k = copy_rows(k, kv_rows, settings.dim_qk);
  operands.v = copy_rows(v, kv_rows, settings.dim_v);
  operands.q_blocks = std::move(q_blocks);
  operands.kv_blocks = std::move(kv_blocks);
  const bool is_backward = d_out.data != nullptr;
  if (is_backward) {
    operands.turned_q = operands.q;
    operands.turned_k = operands.k;
    operands.turned_v = operands.v;
    operands.d_out = operands.turned_d_out = copy_rows(d_out, q_rows, settings.dim_v);
  }
  if (!rules.is_mx) return operands;
  const HeadCopy plain_k = operands.k, plain_v = operands.v;
  cast_along_rows(operands.q);
  cast_along_rows(operands.k);
  cast_along_tokens(operands.v, operands.kv_blocks);
  if (rules.reads_values_with_key_scales)
    read_with_key_scales(plain_k, plain_v, operands.kv_blocks, operands.v);
  cast_along_tokens(operands.turned_q, operands.q_blocks);
  cast_along_tokens(operands.turned_k, operands.kv_blocks);
  cast_along_rows(operands.turned_v);
  cast_along_rows(operands.d_out);
  cast_along_tokens(operands.turned_d_out, operands.q_blocks);
  return operands;
}

TileWork quantised_forward(const TileSettings<float>& settings, const QuantisedRules& rules,
                           std::span<const BandSlice> bands, const QuantisedOperands& operands,
                           HeadView<float> o, float* lse, int64_t lse_stride) {
  const int64_t rows = std::ssize(operands.q.values) / settings.dim_qk;
  TileWork work;
  std::vector<float> row_max(static_cast<size_t>(rows), kNoLogit),
      row_sum(static_cast<size_t>(rows), 0.0f);
  Table gathered = Table::Zero(rows, settings.dim_v), weights;
  for_each_quantised_tile(bands, [&](const Band& tile) {
    const int64_t height = tile.q1 - tile.q0, width = tile.k1 - tile.k0;
    weights.noalias() =
        rows_in(operands.q, tile.q0, tile.q1) * rows_in(operands.k, tile.k0, tile.k1).transpose();
    for (int64_t i = 0; i < height; ++i) {
      const ColumnRange seen = seen_columns(tile, i);
      float* row = weights.data() + i * width;
      float& running = row_max[static_cast<size_t>(tile.q0 + i)];
      const RowTerms terms(settings, tile, i, seen);
      for (int64_t j = seen.begin; j < seen.end; ++j) row[j] = scaled_and_capped(settings, row[j]);
      terms.add(row);
      float highest = running;
      for (int64_t j = seen.begin; j < seen.end; ++j) highest = std::max(highest, row[j]);
      const float factor = weight_of(running, highest);
      running = highest;
      for (int64_t j = seen.begin; j < seen.end; ++j) row[j] = std::exp(row[j] - highest);
      if (terms.sums_kept()) terms.drop(row, 1.0f);
      float sum = 0;
      for (int64_t j = seen.begin; j < seen.end; ++j)
        sum += rules.sums_rounded_weights ? cast_weight(row[j], rules.weights) : row[j];
      terms.drop(row, 1.0f);
      for (int64_t j = seen.begin; j < seen.end; ++j) row[j] = cast_weight(row[j], rules.weights);
      clear_unseen(row, seen, width);
      float& total = row_sum[static_cast<size_t>(tile.q0 + i)];
      total = total * factor + sum;
      gathered.row(tile.q0 + i) *= factor;
    }
    gathered.middleRows(tile.q0, height).noalias() +=
        weights * rows_in(operands.v, tile.k0, tile.k1);
    work.flops += 2 * height * width * (settings.dim_qk + settings.dim_v);
  });
  work.max_logit = -std::numeric_limits<double>::infinity();
  for (int64_t row = 0; row < rows; ++row) {
    const float highest = row_max[static_cast<size_t>(row)],
                sum = row_sum[static_cast<size_t>(row)];
    const bool sees_nothing = sum == 0.0f;
    work.max_logit = std::max(work.max_logit, static_cast<double>(highest));
    lse[row * lse_stride] = sees_nothing ? kNoLogit : highest + std::log(sum);
    const float factor = sees_nothing ? 0.0f : kept_scale(settings) / sum;
    for (int64_t lane = 0; lane < settings.dim_v; ++lane)
      o.row(row)[lane] = sees_nothing ? 0.0f : gathered(row, lane) * factor;
  }
  cast_rows(Fp8Type::e4m3, rules.out, rows, settings.dim_v, o);
  return work;
}

TileWork quantised_backward(const TileSettings<float>& settings, const QuantisedRules& rules,
                            std::span<const BandSlice> bands, const QuantisedOperands& operands,
                            const float* lse, int64_t lse_stride, const float* delta,
                            HeadView<float> dq, HeadView<float> dk, HeadView<float> dv) {
  const int64_t rows = std::ssize(operands.q.values) / settings.dim_qk,
                kv_rows = std::ssize(operands.k.values) / settings.dim_qk;
  const auto scale = static_cast<float>(settings.scale), cap = static_cast<float>(settings.softcap);
  const float kept = kept_scale(settings);
  TileWork work;
  std::vector<float> capped(static_cast<size_t>(kQuantisedTile));
  Table weights, slopes, turned_slopes;
  Table sum_dq = Table::Zero(rows, settings.dim_qk), sum_dk = Table::Zero(kv_rows, settings.dim_qk),
        sum_dv = Table::Zero(kv_rows, settings.dim_v);
  for_each_quantised_tile(bands, [&](const Band& tile) {
    const int64_t height = tile.q1 - tile.q0, width = tile.k1 - tile.k0;
    weights.noalias() =
        rows_in(operands.q, tile.q0, tile.q1) * rows_in(operands.k, tile.k0, tile.k1).transpose();
    slopes.noalias() = rows_in(operands.d_out, tile.q0, tile.q1) *
                       rows_in(operands.turned_v, tile.k0, tile.k1).transpose();
    for (int64_t i = 0; i < height; ++i) {
      const ColumnRange seen = seen_columns(tile, i);
      float *weight = weights.data() + i * width, *slope = slopes.data() + i * width;
      const float row_lse = lse[(tile.q0 + i) * lse_stride], row_delta = delta[tile.q0 + i];
      const RowTerms terms(settings, tile, i, seen);
      terms.drop(slope, kept);
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        weight[j] = capped[j] = scaled_and_capped(settings, weight[j]);
        slope[j] -= row_delta;
      }
      terms.add(weight);
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        weight[j] = std::exp(weight[j] - row_lse);
        slope[j] *= weight[j];
      }
      terms.add_dbias(slope);
      terms.drop(weight, 1.0f);
      for (int64_t j = seen.begin; j < seen.end; ++j) {
        float value = slope[j] * scale;
        if (cap > 0) value *= 1.0f - (capped[j] / cap) * (capped[j] / cap);
        weight[j] = cast_weight(weight[j], rules.weights_back) * kept;
        slope[j] = rules.is_mx
                       ? value
                       : quantise(rules.gradients, value, rules.d_logits, 1.0f / rules.d_logits);
      }
      clear_unseen(weight, seen, width);
      clear_unseen(slope, seen, width);
    }
    if (rules.is_mx) {
      turned_slopes = slopes;
      for_each_block(operands.kv_blocks, tile.k0, tile.k1, [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < height; ++i)
          cast_block(slopes.data() + i * width + begin - tile.k0, 1, end - begin);
      });
      for_each_block(operands.q_blocks, tile.q0, tile.q1, [&](int64_t begin, int64_t end) {
        for (int64_t j = 0; j < width; ++j)
          cast_block(turned_slopes.data() + (begin - tile.q0) * width + j, width, end - begin);
      });
    }
    sum_dv.middleRows(tile.k0, width).noalias() +=
        weights.transpose() * rows_in(operands.turned_d_out, tile.q0, tile.q1);
    sum_dq.middleRows(tile.q0, height).noalias() +=
        slopes * rows_in(operands.turned_k, tile.k0, tile.k1);
    sum_dk.middleRows(tile.k0, width).noalias() +=
        (rules.is_mx ? turned_slopes : slopes).transpose() *
        rows_in(operands.turned_q, tile.q0, tile.q1);
    work.flops += 2 * height * width * (3 * settings.dim_qk + 2 * settings.dim_v);
  });
  const auto add = [](const Table& sum, HeadView<float> into) {
    for (int64_t row = 0; row < sum.rows(); ++row) {
      for (int64_t lane = 0; lane < sum.cols(); ++lane) into.row(row)[lane] += sum(row, lane);
    }
  };
  add(sum_dq, dq);
  add(sum_dk, dk);
  add(sum_dv, dv);
  cast_rows(rules.gradients, rules.dq, rows, settings.dim_qk, dq);
  return work;
}

}  // namespace cpscope::reference
