#include "reference/altered_attention.h"

#include "reference/latent_rows.h"
#include "reference/rotary_table.h"
#include "reference/row_matrix.h"
#include "sim/base/parallel.h"

#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace cpscope::reference {
namespace {

using Vector = Eigen::Map<Eigen::VectorXd>;
using ConstVector = Eigen::Map<const Eigen::VectorXd>;

/// Rows of the other side that are rotated together.
constexpr int64_t kTokensPerBlock = 1024;
/// Requested rows that share one pass over the other side.
constexpr size_t kRowsPerUnit = 8;

ConstVector row_of(const Tensor& tensor, int64_t token, int32_t head) {
  return {tensor.values.data() + row_offset(tensor, token, head),
          static_cast<Eigen::Index>(tensor.shape[2])};
}

/// The rows of one head of a tensor, rotated block by block. Only the last block is kept.
class RotatedRows {
 public:
  RotatedRows(const Tensor& tensor, int32_t head, const AlteredAttention& altered,
              const std::vector<int64_t>& positions)
      : tensor_(tensor), head_(head), altered_(altered), positions_(positions) {}

  ConstVector row(int64_t token) {
    if (altered_.theta == 0.0) return row_of(tensor_, token, head_);
    const int64_t first = token / kTokensPerBlock * kTokensPerBlock;
    if (first != first_) rotate_from(first);
    return {&rows_(token - first, 0), rows_.cols()};
  }

 private:
  void rotate_from(int64_t first) {
    first_ = first;
    const int64_t end = std::min(tensor_.shape[0], first + kTokensPerBlock);
    rows_.resize(end - first, tensor_.shape[2]);
    const std::vector<int64_t> block(positions_.begin() + first, positions_.begin() + end);
    const RotaryTable table = make_rotary_table(
        altered_.theta, static_cast<int32_t>(tensor_.shape[2]), block, altered_.first_rotated);
    for (int64_t token = first; token < end; ++token) {
      rows_.row(token - first) = row_of(tensor_, token, head_).transpose();
      rotate_row(table, token - first, +1, &rows_(token - first, 0));
    }
  }

  const Tensor& tensor_;
  const int32_t head_;
  const AlteredAttention& altered_;
  const std::vector<int64_t>& positions_;
  int64_t first_ = -1;
  Rows<double> rows_;
};

/// Rotates one row forwards or back.
void turn(const AlteredAttention& altered, int64_t position, int direction, double* row,
          int64_t lanes) {
  if (altered.theta == 0.0) return;
  rotate_row(make_rotary_table(altered.theta, static_cast<int32_t>(lanes), {position},
                               altered.first_rotated),
             0, direction, row);
}

/// A complete logit, and its derivative by q.k.
struct Logit {
  double value, slope;
};

Logit logit_of(const AlteredAttention& altered, double product, double added) {
  const double value = altered.scale * product;
  if (altered.softcap == 0.0) return {value + added, altered.scale};
  const double bent = std::tanh(value / altered.softcap);
  return {altered.softcap * bent + added, altered.scale * (1.0 - bent * bent)};
}

PairTerm term_of(const AlteredAttention& altered, int64_t query, int64_t key, int32_t head) {
  return altered.terms ? altered.terms(query, key, head) : PairTerm{};
}

/// Requested rows that read one KV head.
struct Unit {
  int32_t kv_head = 0;
  std::vector<size_t> rows;  // indices into the request
};

std::vector<Unit> make_units(const std::vector<RowAddress>& rows,
                             const std::vector<int32_t>* kv_head_of) {
  std::map<int32_t, std::vector<Unit>> by_head;
  for (size_t row = 0; row < rows.size(); ++row) {
    const int32_t head =
        kv_head_of == nullptr ? rows[row].head : (*kv_head_of)[static_cast<size_t>(rows[row].head)];
    std::vector<Unit>& units = by_head[head];
    if (units.empty() || units.back().rows.size() == kRowsPerUnit) units.push_back({head, {}});
    units.back().rows.push_back(row);
  }
  std::vector<Unit> all;
  for (auto& [head, units] : by_head)
    all.insert(all.end(), std::make_move_iterator(units.begin()),
               std::make_move_iterator(units.end()));
  return all;
}

/// Everything that the units of one call share.
struct Work {
  const RunInputs& inputs;
  const AlteredAttention& altered;
  const AlteredRequest& request;
  RunWatch& watch;

  int64_t dim_qk() const { return inputs.q.shape[2]; }
  int64_t dim_v() const { return altered.latent_dim > 0 ? altered.latent_dim : inputs.v.shape[2]; }
  /// The row of v; `key` is that of k after rotation.
  ConstVector value_of(const ConstVector& key, int64_t token, int32_t head) const {
    if (altered.latent_dim > 0) return {key.data(), altered.latent_dim};
    return row_of(inputs.v, token, head);
  }
};

QueryParts start_query(const Work& work) {
  const auto ranks = static_cast<size_t>(work.altered.ranks);
  QueryParts parts;
  parts.top.assign(ranks, -std::numeric_limits<double>::infinity());
  parts.sum.assign(ranks, 0.0);
  parts.out.assign(ranks * static_cast<size_t>(work.dim_v()), 0.0);
  if (!work.request.has_gradients) return parts;
  parts.dq_p.assign(ranks * static_cast<size_t>(work.dim_qk()), 0.0);
  parts.dq_1 = parts.dq_p;
  return parts;
}

/// Adds one key to a query's part.
void add_key(const Work& work, const RowAddress& query, double times, int32_t rank,
             const Logit& logit, double factor, const ConstVector& key, const ConstVector& value,
             QueryParts& parts) {
  const auto part = static_cast<size_t>(rank);
  Vector out(parts.out.data() + part * static_cast<size_t>(work.dim_v()), work.dim_v());
  const bool has_gradients = work.request.has_gradients;
  const size_t at = part * static_cast<size_t>(work.dim_qk());
  double* dq_p = has_gradients ? parts.dq_p.data() + at : nullptr;
  double* dq_1 = has_gradients ? parts.dq_1.data() + at : nullptr;
  double& top = parts.top[part];
  if (logit.value > top) {
    const double shrink = std::exp(top - logit.value);
    parts.sum[part] *= shrink;
    out *= shrink;
    if (has_gradients) {
      Vector(dq_p, work.dim_qk()) *= shrink;
      Vector(dq_1, work.dim_qk()) *= shrink;
    }
    top = logit.value;
  }
  const double weight = times * std::exp(logit.value - top);
  parts.sum[part] += weight;
  out += weight * factor * value;
  if (!has_gradients) return;
  const double product = row_of(work.inputs.d_out, query.token, query.head).dot(value);
  Vector(dq_p, work.dim_qk()) += weight * factor * logit.slope * product * key;
  Vector(dq_1, work.dim_qk()) += weight * logit.slope * key;
}

void run_queries(const Work& work, const Unit& unit, AlteredRows& result) {
  const AlteredAttention& altered = work.altered;
  RotatedRows keys(work.inputs.k, unit.kv_head, altered, altered.key_positions);
  Rows<double> queries(static_cast<int64_t>(unit.rows.size()), work.dim_qk());
  for (int64_t i = 0; i < queries.rows(); ++i) {
    const RowAddress& query = work.request.queries[unit.rows[static_cast<size_t>(i)]];
    queries.row(i) = row_of(work.inputs.q, query.token, query.head).transpose();
    if (altered.theta != 0.0)
      turn(altered, altered.query_positions[static_cast<size_t>(query.token)], +1, &queries(i, 0),
           work.dim_qk());
    result.queries[unit.rows[static_cast<size_t>(i)]] = start_query(work);
  }
  for (int64_t token = 0; token < work.inputs.k.shape[0]; ++token) {
    if (token % kTokensPerBlock == 0 && work.watch.is_cancelled()) return;
    for (int64_t i = 0; i < queries.rows(); ++i) {
      const size_t row = unit.rows[static_cast<size_t>(i)];
      const RowAddress& query = work.request.queries[row];
      double times = altered.times(query.token, token);
      if (times == 0.0) continue;
      const PairTerm term = term_of(altered, query.token, token, query.head);
      times *= term.times;
      if (times == 0.0) continue;
      const ConstVector key = keys.row(token);
      add_key(work, query, times, altered.rank_of_key(token),
              logit_of(altered, queries.row(i).dot(key), term.added), term.factor, key,
              work.value_of(key, token, unit.kv_head), result.queries[row]);
    }
  }
  if (altered.theta == 0.0) return;
  for (const size_t row : unit.rows) {
    const int64_t position =
        altered.query_positions[static_cast<size_t>(work.request.queries[row].token)];
    for (std::vector<double>* sums : {&result.queries[row].dq_p, &result.queries[row].dq_1})
      for (size_t at = 0; at < sums->size(); at += static_cast<size_t>(work.dim_qk()))
        turn(altered, position, -1, sums->data() + at, work.dim_qk());
  }
}

/// Adds all queries of one head to the keys of a unit.
void add_queries(const Work& work, const Unit& unit, int32_t head, const Rows<double>& keys,
                 AlteredRows& result) {
  const AlteredAttention& altered = work.altered;
  RotatedRows queries(work.inputs.q, head, altered, altered.query_positions);
  const Tensor& lse = *work.request.lse;
  for (int64_t token = 0; token < work.inputs.q.shape[0]; ++token) {
    if (token % kTokensPerBlock == 0 && work.watch.is_cancelled()) return;
    const ConstVector d_out = row_of(work.inputs.d_out, token, head);
    const double delta = d_out.dot(row_of(*work.request.out, token, head));
    const auto part = static_cast<size_t>(altered.rank_of_query(token));
    for (int64_t i = 0; i < keys.rows(); ++i) {
      const size_t row = unit.rows[static_cast<size_t>(i)];
      const int64_t key = work.request.keys[row].token;
      double times = altered.times(token, key);
      if (times == 0.0) continue;
      const PairTerm term = term_of(altered, token, key, head);
      times *= term.times;
      const int64_t from =
          altered.lse_row ? altered.lse_row(token, altered.rank_of_key(key)) : token;
      const double given = lse.values[static_cast<size_t>(from * lse.shape[1] + head)];
      if (!std::isfinite(given)) continue;
      const ConstVector query = queries.row(token);
      const Logit logit = logit_of(altered, keys.row(i).dot(query), term.added);
      const double weight = times * std::exp(logit.value - given);
      const ConstVector rotated(&keys(i, 0), work.dim_qk());
      const double product = d_out.dot(work.value_of(rotated, key, unit.kv_head));
      KeyParts& parts = result.keys[row];
      Vector(parts.dv.data() + part * static_cast<size_t>(work.dim_v()), work.dim_v()) +=
          weight * term.factor * d_out;
      Vector dk(parts.dk.data() + part * static_cast<size_t>(work.dim_qk()), work.dim_qk());
      dk += weight * (term.factor * product - delta) * logit.slope * query;
      if (altered.latent_dim > 0)
        dk.segment(altered.value_gradients_at, work.dim_v()) +=
            altered.value_gradients * weight * term.factor * d_out;
    }
  }
}

void run_keys(const Work& work, const Unit& unit, AlteredRows& result) {
  const AlteredAttention& altered = work.altered;
  const auto ranks = static_cast<size_t>(altered.ranks);
  Rows<double> keys(static_cast<int64_t>(unit.rows.size()), work.dim_qk());
  for (int64_t i = 0; i < keys.rows(); ++i) {
    const size_t row = unit.rows[static_cast<size_t>(i)];
    const int64_t token = work.request.keys[row].token;
    keys.row(i) = row_of(work.inputs.k, token, unit.kv_head).transpose();
    if (altered.theta != 0.0)
      turn(altered, altered.key_positions[static_cast<size_t>(token)], +1, &keys(i, 0),
           work.dim_qk());
    result.keys[row].dk.assign(ranks * static_cast<size_t>(work.dim_qk()), 0.0);
    result.keys[row].dv.assign(ranks * static_cast<size_t>(work.dim_v()), 0.0);
  }
  for (size_t head = 0; head < altered.kv_head_of.size(); ++head) {
    if (altered.kv_head_of[head] == unit.kv_head)
      add_queries(work, unit, static_cast<int32_t>(head), keys, result);
  }
  if (altered.theta == 0.0) return;
  for (const size_t row : unit.rows) {
    const int64_t position =
        altered.key_positions[static_cast<size_t>(work.request.keys[row].token)];
    std::vector<double>& dk = result.keys[row].dk;
    for (size_t at = 0; at < dk.size(); at += static_cast<size_t>(work.dim_qk()))
      turn(altered, position, -1, dk.data() + at, work.dim_qk());
  }
}

Result<AlteredRows> judge_heads(const RunInputs& inputs, const AlteredAttention& altered,
                                const AlteredRequest& request, const RunControl& control) {
  AlteredRows result{std::vector<QueryParts>(request.queries.size()),
                     std::vector<KeyParts>(request.keys.size())};
  const std::vector<Unit> of_queries = make_units(request.queries, &altered.kv_head_of),
                          of_keys = make_units(request.keys, nullptr);
  const int64_t units = std::ssize(of_queries) + std::ssize(of_keys);
  RunWatch watch(control, units);
  const Work work{inputs, altered, request, watch};
  for_each_index(units, [&](int64_t index) {
    if (watch.is_cancelled()) return;
    if (index < std::ssize(of_queries))
      run_queries(work, of_queries[static_cast<size_t>(index)], result);
    else
      run_keys(work, of_keys[static_cast<size_t>(index - std::ssize(of_queries))], result);
    watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the search for a cause", "parts");
  return result;
}

/// The gradients of one latent row, of those of the keys and values of every head.
KeyParts join_heads(const RunInputs& inputs, const AlteredAttention& altered,
                    const KeyParts* of_heads) {
  const int64_t heads = inputs.w_k.shape[0], lanes = inputs.k.shape[2], dim_qk = inputs.q.shape[2],
                dim_v = inputs.w_v.shape[1];
  KeyParts row;
  row.dk.assign(static_cast<size_t>(altered.ranks * lanes), 0.0);
  for (int32_t head = 0; head < heads; ++head) {
    std::vector<double> dv = of_heads[head].dv;
    for (double& value : dv) value *= altered.value_gradients;
    for (int64_t rank = 0; rank < altered.ranks; ++rank)
      add_head_gradients(inputs, head, of_heads[head].dk.data() + rank * dim_qk,
                         dv.data() + rank * dim_v, row.dk.data() + rank * lanes);
  }
  return row;
}

}  // namespace

Result<AlteredRows> judge_altered(const RunInputs& inputs, const AlteredAttention& altered,
                                  const AlteredRequest& request, const RunControl& control) {
  if (inputs.w_k.shape.empty()) return judge_heads(inputs, altered, request, control);
  const auto heads = static_cast<size_t>(inputs.w_k.shape[0]);
  AlteredRequest of_heads = request;
  of_heads.keys.clear();
  for (const RowAddress& row : request.keys)
    for (size_t head = 0; head < heads; ++head)
      of_heads.keys.push_back({row.token, static_cast<int32_t>(head)});
  Result<AlteredRows> result = judge_heads(expand_rows(inputs), altered, of_heads, control);
  if (!result) return result;
  std::vector<KeyParts> rows;
  for (size_t row = 0; row < request.keys.size(); ++row)
    rows.push_back(join_heads(inputs, altered, &result.value().keys[row * heads]));
  result.value().keys = std::move(rows);
  return result;
}

}  // namespace cpscope::reference
