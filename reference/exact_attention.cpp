#include "reference/head_group.h"
#include "reference/key_rows.h"
#include "reference/row_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace cpscope::reference {
namespace {

constexpr int64_t kExactRowsPerBlock = 128;
constexpr double kSmallestLength = std::numeric_limits<double>::min();

/// One query head of a unit, with the data that its row blocks share.
struct ExactHead {
  const HeadGroup& group;
  int32_t head = 0;
  const Rows<double>& keys;             // [num_keys, head_dim_qk] after RoPE
  const Rows<double>& values;           // [num_keys, head_dim_v]
  const Column<double>& key_squares;    // [num_keys] squared lengths of their rows
  const Column<double>& value_squares;  // the same
  Rows<double> queries;                 // [num_queries, head_dim_qk] after RoPE
  Rows<double> d_out;                   // [num_queries, head_dim_v], empty without backward
};

/// Gradients of the unit's keys and values, summed over its query heads, and the squares of their
/// terms. Where v is a part of k, dk is the gradient of both.
struct KeyGradients {
  Rows<double> dk, dv;
  Column<double> dk_squares, dv_squares;
  Column<double> undropped_squares;  // as dv_squares, of all weights; empty without dropout
};

/// One row block: logits, weights and softmax statistics of each row.
struct ExactBlock {
  RowBlock range;
  Rows<double> logits;      // [rows, keys] complete; only visible entries are valid
  Rows<double> cap_slopes;  // [rows, keys] derivative of the cap; empty without one
  Rows<double> kept;        // [rows, keys] factor of the weights after the softmax; empty if all 1
  Rows<double> weights;     // [rows, keys] softmax, 0 where not visible
  Column<double> lse;       // [rows] -inf if nothing is visible
  Column<double> out_dot;   // [rows] rowsum(d_out * out)
};

std::span<const KeyRun> visible_runs(const ExactHead& head, const ExactBlock& block, int64_t row) {
  return head.group.part.visible.of_row(block.range.row_begin + row);
}

void compute_exact_logits(const ExactHead& head, ExactBlock& block) {
  const Attention& attention = head.group.scenario.attention;
  const RowBlock& range = block.range;
  block.logits.resize(range.rows(), range.keys());
  block.logits.noalias() = head.queries.middleRows(range.row_begin, range.rows()) *
                           head.keys.middleRows(range.key_begin, range.keys()).transpose();
  block.logits *= logit_scale(attention);
  const PairTerms& terms = head.group.terms;
  const bool is_capped = attention.softcap != 0.0;
  if (is_capped) block.cap_slopes.setZero(range.rows(), range.keys());
  if (terms.drops()) block.kept.setZero(range.rows(), range.keys());
  if (!is_capped && !terms.adds() && !terms.drops()) return;
  const int64_t sequence = head.group.sequence;
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t i = head.group.query_position(range.row_begin + row);
    for (const KeyRun& run : visible_runs(head, block, row)) {
      for (int64_t key = run.begin - range.key_begin; key < run.end - range.key_begin; ++key) {
        const int64_t j = head.group.key_position(range.key_begin + key);
        double& logit = block.logits(row, key);
        if (is_capped) {
          logit = attention.softcap * std::tanh(logit / attention.softcap);
          block.cap_slopes(row, key) = 1.0 - std::pow(logit / attention.softcap, 2);
        }
        if (terms.adds()) logit += terms.added(sequence, head.head, i, j);
        if (terms.drops()) block.kept(row, key) = terms.factor(sequence, head.head, i, j);
      }
    }
  }
}

/// The weights that multiply values: those that dropout keeps, scaled. Without dropout these are
/// all weights, and nothing is copied; else the product is stored in `product`.
const Rows<double>& kept_weights(const ExactBlock& block, Rows<double>& product) {
  if (block.kept.size() == 0) return block.weights;
  product = block.weights.cwiseProduct(block.kept);
  return product;
}

/// Log-sum-exp of the row's visible logits and the sink.
double lse_with_sink(const ExactHead& head, double row_max, double row_sum) {
  const Attention& attention = head.group.scenario.attention;
  if (attention.softmax_type == SoftmaxType::vanilla) return row_max + std::log(row_sum);
  const double sink = sink_logit(attention, head.group.inputs.sink, head.head);
  const double top = std::max(row_max, sink);
  return top + std::log(std::exp(row_max - top) * row_sum + std::exp(sink - top));
}

void compute_softmax(const ExactHead& head, ExactBlock& block, HeadSums& sums) {
  const RowBlock& range = block.range;
  block.weights.setZero(range.rows(), range.keys());
  block.lse.setConstant(range.rows(), no_logit());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const std::span<const KeyRun> runs = visible_runs(head, block, row);
    if (runs.empty()) continue;
    double row_max = no_logit();
    for (const KeyRun& run : runs) {
      const auto visible =
          block.logits.row(row).segment(run.begin - range.key_begin, run.end - run.begin);
      row_max = std::max(row_max, visible.maxCoeff());
    }
    double row_sum = 0.0;
    for (const KeyRun& run : runs) {
      const int64_t first = run.begin - range.key_begin;
      const int64_t count = run.end - run.begin;
      auto weights = block.weights.row(row).segment(first, count);
      weights = block.logits.row(row).segment(first, count).array() - row_max;
      exponentiate(&block.weights(row, first), count);
      row_sum += weights.sum();
    }
    block.lse(row) = lse_with_sink(head, row_max, row_sum);
    block.weights.row(row) *= std::exp(row_max - block.lse(row));
    sums.max_logit = std::max(sums.max_logit, row_max);
  }
}

/// The same with a given lse; rows with an lse that is not finite get weight 0.
void take_given_softmax(const ExactHead& head, ExactBlock& block) {
  const RowBlock& range = block.range;
  const Answer& given = *head.group.wanted.given;
  block.weights.setZero(range.rows(), range.keys());
  block.lse.setConstant(range.rows(), no_logit());
  block.out_dot.setZero(range.rows());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t query = range.row_begin + row, token = head.group.query_token(query);
    const double lse =
        given.lse.values[static_cast<size_t>(token * given.lse.shape[1] + head.head)];
    if (!std::isfinite(lse)) continue;
    block.lse(row) = lse;
    for (const KeyRun& run : visible_runs(head, block, row)) {
      const int64_t first = run.begin - range.key_begin;
      const int64_t count = run.end - run.begin;
      block.weights.row(row).segment(first, count) =
          block.logits.row(row).segment(first, count).array() - lse;
      exponentiate(&block.weights(row, first), count);
    }
    const double* out = given.out.values.data() + row_offset(given.out, token, head.head);
    for (int64_t lane = 0; lane < head.d_out.cols(); ++lane)
      block.out_dot(row) += head.d_out(query, lane) * out[lane];
  }
}

/// Sum of the squared lengths of a row's terms of out. dtype fp8 casts weights relative to the
/// row's largest one, and those below the smallest normal number have the errors of that number.
/// It counts only if dropout has left out the largest weight.
double squared_length(const ExactHead& head, const ExactBlock& block, int64_t row,
                      const Rows<double>& kept, const Column<double>& squares) {
  const Numerics& numerics = head.group.scenario.numerics;
  const auto weights = kept.row(row).array().transpose();
  if (!numerics.fp8 || block.kept.size() == 0) return (weights.square() * squares).sum();
  constexpr double kSmallestNormal = 0x1p-6;  // of E4M3
  const double scale = numerics.fp8->recipe == Fp8Recipe::mxfp8 ? 16 : 448;
  const double least = kSmallestNormal / scale * block.weights.row(row).maxCoeff();
  const auto factors = block.kept.row(row).array().transpose();
  return (weights.max(least * factors).square() * squares).sum();
}

void write_out(const ExactHead& head, ExactBlock& block, Answer& answer, TermLengths& terms) {
  const RowBlock& range = block.range;
  const auto values = head.values.middleRows(range.key_begin, range.keys());
  const Column<double> squares = head.value_squares.segment(range.key_begin, range.keys());
  Rows<double> out(range.rows(), head.values.cols());
  Rows<double> product;
  const Rows<double>& kept = kept_weights(block, product);
  out.noalias() = kept * values;
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t at = head.group.query_row(range.row_begin + row);
    scatter_row(&out(row, 0), at, head.head, answer.out);
    const auto index = static_cast<size_t>(at * answer.lse.shape[1] + head.head);
    answer.lse.values[index] = block.lse(row);
    terms.out[index] = std::sqrt(squared_length(head, block, row, kept, squares));
  }
  if (head.d_out.size() == 0) return;
  const auto d_out = head.d_out.middleRows(range.row_begin, range.rows());
  block.out_dot = (d_out.array() * out.array()).rowwise().sum();
}

/// Gradient of the sink logit, which needs all keys of a row: its share of each row times
/// -rowsum(d_out * out).
void add_sink_gradient(const ExactHead& head, const ExactBlock& block, HeadSums& sums) {
  const Attention& attention = head.group.scenario.attention;
  if (attention.softmax_type != SoftmaxType::learnable) return;
  const double sink = sink_logit(attention, head.group.inputs.sink, head.head);
  for (int64_t row = 0; row < block.range.rows(); ++row) {
    if (visible_runs(head, block, row).empty()) continue;
    sums.d_sink -= std::exp(sink - block.lse(row)) * block.out_dot(row);
  }
}

/// Adds the squares of what each pair contributes: `factors` [row, key] times a row of a query or
/// key.
void add_squares(const Rows<double>& factors, const Column<double>& query_squares,
                 const RowBlock& range, Column<double>& key_sums) {
  for (int64_t row = 0; row < range.rows(); ++row) {
    key_sums.segment(range.key_begin, range.keys()) +=
        factors.row(row).array().transpose().square() * query_squares(row);
  }
}

void write_dq(const ExactHead& head, const RowBlock& range, const Rows<double>& d_logits,
              const Rows<double>& lengths, Answer& answer, TermLengths& terms) {
  const auto squares = head.key_squares.segment(range.key_begin, range.keys());
  Rows<double> dq(range.rows(), head.keys.cols());
  dq.noalias() = d_logits * head.keys.middleRows(range.key_begin, range.keys());
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t query = range.row_begin + row, at = head.group.query_row(query);
    rotate_row(head.group.part.query_turns, query, -1, &dq(row, 0));
    scatter_row(&dq(row, 0), at, head.head, answer.dq);
    const auto factors = lengths.row(row).array().transpose();
    terms.dq[static_cast<size_t>(at * answer.dq.shape[1] + head.head)] =
        std::sqrt((factors.square() * squares).sum());
  }
}

/// The gradient of the bias is that of the complete logits.
void write_exact_dbias(const ExactHead& head, const RowBlock& range, const Rows<double>& d_logits,
                       const Rows<double>& lengths, HeadSums& sums) {
  const int64_t keys = head.group.part.num_keys();
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t query = range.row_begin + row;
    for (int64_t key = 0; key < range.keys(); ++key)
      sums.dbias[static_cast<size_t>(query * keys + range.key_begin + key)] = d_logits(row, key);
    sums.dbias_squares[static_cast<size_t>(query)] = lengths.row(row).squaredNorm();
  }
}

void run_exact_backward(const ExactHead& head, ExactBlock& block, KeyGradients& gradients,
                        HeadSums& sums, Answer& answer, TermLengths& terms) {
  const Attention& attention = head.group.scenario.attention;
  const RowBlock& range = block.range;
  const auto d_out = head.d_out.middleRows(range.row_begin, range.rows());
  const auto queries = head.queries.middleRows(range.row_begin, range.rows());
  const auto values = head.values.middleRows(range.key_begin, range.keys());

  Rows<double> d_logits(range.rows(), range.keys());
  d_logits.noalias() = d_out * values.transpose();
  if (block.kept.size() != 0) d_logits.array() *= block.kept.array();
  // A gradient is a difference of two numbers, and kernels that keep them in 16 bits round both.
  Rows<double> lengths =
      (d_logits.array().square().colwise() + block.out_dot.square()).sqrt().matrix();
  d_logits.array().colwise() -= block.out_dot;
  for (Rows<double>* factors : {&d_logits, &lengths}) factors->array() *= block.weights.array();
  if (head.group.has_bias_gradient()) write_exact_dbias(head, range, d_logits, lengths, sums);
  for (Rows<double>* factors : {&d_logits, &lengths}) {
    if (attention.softcap != 0.0) factors->array() *= block.cap_slopes.array();
    *factors *= logit_scale(attention);
  }

  if (head.group.wanted.queries) write_dq(head, range, d_logits, lengths, answer, terms);
  if (!head.group.has_key_gradients()) return;
  Rows<double> product;
  const Rows<double>& kept = kept_weights(block, product);
  Rows<double>& dv = attention.latent_dim > 0 ? gradients.dk : gradients.dv;
  dv.middleRows(range.key_begin, range.keys()).leftCols(d_out.cols()).noalias() +=
      kept.transpose() * d_out;
  gradients.dk.middleRows(range.key_begin, range.keys()).noalias() +=
      d_logits.transpose() * queries;
  if (gradients.undropped_squares.size() > 0)
    add_squares(block.weights, d_out.rowwise().squaredNorm(), range, gradients.undropped_squares);
  add_squares(kept, d_out.rowwise().squaredNorm(), range, gradients.dv_squares);
  add_squares(lengths, queries.rowwise().squaredNorm(), range, gradients.dk_squares);
}

void run_exact_block(const ExactHead& head, ExactBlock& block, KeyGradients& gradients,
                     HeadSums& sums, Answer& answer, TermLengths& terms) {
  // Rows that see nothing keep the answer's initial values.
  if (block.range.keys() == 0) return;
  compute_exact_logits(head, block);
  if (head.group.wanted.given != nullptr) {
    take_given_softmax(head, block);
  } else {
    compute_softmax(head, block, sums);
    write_out(head, block, answer, terms);
  }
  if (head.d_out.size() == 0) return;
  if (head.group.wanted.queries) add_sink_gradient(head, block, sums);
  run_exact_backward(head, block, gradients, sums, answer, terms);
}

HeadSums run_head(const ExactHead& head, KeyGradients& gradients, Answer& answer,
                  TermLengths& terms) {
  HeadSums sums = start_sums(head.group);
  const SequencePart& part = head.group.part;
  const int64_t num_rows = part.num_queries();
  for (int64_t begin = 0, end = 0; begin < num_rows && !head.group.watch.is_cancelled();
       begin = end) {
    end = end_of_block(part, begin, num_rows, kExactRowsPerBlock);
    ExactBlock block;
    block.range = find_row_block(part.visible, begin, end);
    run_exact_block(head, block, gradients, sums, answer, terms);
    head.group.watch.add_work(pairs_of_rows(part, begin, end));
  }
  return sums;
}

void turn_rows(const RotaryTable& turns, int direction, Rows<double>& rows) {
  for (int64_t row = 0; row < rows.rows(); ++row) rotate_row(turns, row, direction, &rows(row, 0));
}

/// [key] Whether a query of the part sees the key.
std::vector<bool> keys_seen(const SequencePart& part) {
  std::vector<int64_t> begun(static_cast<size_t>(part.num_keys()) + 1, 0);
  for (int64_t query = 0; query < part.num_queries(); ++query) {
    for (const KeyRun& run : part.visible.of_row(query)) {
      ++begun[static_cast<size_t>(run.begin)];
      --begun[static_cast<size_t>(run.end)];
    }
  }
  std::partial_sum(begun.begin(), begun.end(), begun.begin());
  std::vector<bool> seen;
  for (int64_t key = 0; key < part.num_keys(); ++key)
    seen.push_back(begun[static_cast<size_t>(key)] > 0);
  return seen;
}

void write_exact_key_gradients(const HeadGroup& group, KeyGradients& gradients, Answer& answer,
                               TermLengths& terms) {
  const bool is_latent = group.scenario.attention.latent_dim > 0;
  turn_rows(group.part.key_turns, -1, gradients.dk);
  // Of all weights, also those that dropout leaves out.
  const Column<double>& squares =
      terms.undropped.empty() ? gradients.dv_squares : gradients.undropped_squares;
  const std::vector<bool> seen =
      (squares == 0.0).any() ? keys_seen(group.part) : std::vector<bool>{};
  for (int64_t key = 0; key < group.part.num_keys(); ++key) {
    const int64_t at = group.key_row(key);
    scatter_row(&gradients.dk(key, 0), at, group.kv_head, answer.dk);
    if (!is_latent) scatter_row(&gradients.dv(key, 0), at, group.kv_head, answer.dv);
    const auto index = static_cast<size_t>(at * answer.dk.shape[1] + group.kv_head);
    terms.dv[index] = std::sqrt(gradients.dv_squares(key));
    // No terms mean that no query sees the key, but squares of weights below 1e-162 are 0 too.
    if (squares(key) == 0.0 && seen[static_cast<size_t>(key)]) terms.dv[index] = kSmallestLength;
    terms.dk[index] =
        std::hypot(std::sqrt(gradients.dk_squares(key)), is_latent ? terms.dv[index] : 0.0);
    if (!terms.undropped.empty())
      terms.undropped[index] = std::sqrt(gradients.undropped_squares(key));
  }
}

}  // namespace

std::vector<HeadSums> compute_exact_group(const HeadGroup& group, Answer& answer,
                                          TermLengths& terms) {
  const RunInputs& inputs = group.inputs;
  const SequencePart& part = group.part;
  const int64_t first_query = group.slot.q_valid_begin();
  auto [keys, values] = gather_keys<double>(group, false);
  turn_rows(part.key_turns, +1, keys);
  const Column<double> key_squares = keys.rowwise().squaredNorm(),
                       value_squares = values.rowwise().squaredNorm();
  KeyGradients gradients;
  if (group.has_key_gradients()) {
    gradients.dk.setZero(keys.rows(), keys.cols());
    gradients.dv.setZero(values.rows(), values.cols());
    gradients.dk_squares.setZero(keys.rows());
    gradients.dv_squares.setZero(keys.rows());
    if (group.terms.drops()) gradients.undropped_squares.setZero(keys.rows());
  }

  std::vector<HeadSums> sums;
  const int32_t first_head = group.kv_head * group.heads_per_group();
  for (int32_t member = 0; member < group.heads_per_group(); ++member) {
    ExactHead head{group, first_head + member, keys, values, key_squares, value_squares, {}, {}};
    head.queries = gather_rows<double>(inputs.q, first_query, part.queries, head.head);
    turn_rows(part.query_turns, +1, head.queries);
    if (group.has_backward()) {
      head.d_out = gather_rows<double>(inputs.d_out, first_query, part.queries, head.head);
    }
    sums.push_back(run_head(head, gradients, answer, terms));
  }
  if (group.has_key_gradients()) write_exact_key_gradients(group, gradients, answer, terms);
  return sums;
}

}  // namespace cpscope::reference
