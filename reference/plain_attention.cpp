#include "reference/head_group.h"
#include "reference/key_rows.h"
#include "reference/plain_pieces.h"
#include "reference/row_matrix.h"
#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace cpscope::reference {
namespace {

constexpr int64_t kPlainRowsPerBlock = 128;

/// The roundings of a plain run, and the numbers it multiplies by.
template <class Real>
struct PlainRules {
  Dtype dtype = Dtype::fp32;
  bool has_narrow_products = false;  // 16 bit: P and dS are rounded before the second product
  bool merges_in_dtype = false;      // partial results and accumulators are rounded to dtype
  bool sends_in_dtype = false;       // dK and dV are rounded to dtype where they travel: the
                                     // running sum at every hop, or each share once
  bool rounds_each_term = false;     // thd kernels of TE round a term before they add it
  Real scale = 1;
  Real softcap = 0;
  const PlainFp8* fp8 = nullptr;  // products are rounded to 8 bits
  Real kept_share = 1;            // of the weights, where dropout drops the others
};

template <class Real>
PlainRules<Real> plain_rules(const HeadGroup& group) {
  const Numerics& numerics = group.scenario.numerics;
  const Attention& attention = group.scenario.attention;
  PlainRules<Real> rules;
  rules.dtype = numerics.dtype;
  rules.has_narrow_products = numerics.dtype == Dtype::bf16 || numerics.dtype == Dtype::fp16;
  rules.merges_in_dtype = numerics.accumulate == Accumulate::dtype;
  rules.sends_in_dtype =
      numerics.dkv_wire == WireFormat::dtype && group.hops.shares > 1 && group.hops.sends_shares;
  rules.rounds_each_term =
      group.hops.adds_in_dtype || group.scenario.batch.qkv_format == QkvFormat::thd;
  rules.scale = static_cast<Real>(logit_scale(attention));
  rules.softcap = static_cast<Real>(attention.softcap);
  rules.fp8 = group.fp8;
  rules.kept_share = static_cast<Real>(1.0 - attention.dropout);
  return rules;
}

template <class Real, class Derived>
void round_all(Dtype dtype, Eigen::PlainObjectBase<Derived>& values) {
  Real* data = values.data();
  for (int64_t index = 0; index < values.size(); ++index) {
    data[index] = round_to(dtype, data[index]);
  }
}

/// Casts to 8 bits and back. Without a scale (0) nothing changes.
template <class Real>
void cast_values(Fp8Type type, float scale, int64_t count, Real* values) {
  if constexpr (std::is_same_v<Real, float>) {
    if (scale != 0) quantise_all(type, scale, count, values);
  }
}

/// mxfp8: in place, in blocks of 32.
template <class Real>
void cast_blocks(BlocksAlong along, Rows<Real>& values) {
  if constexpr (std::is_same_v<Real, float>)
    quantise_blocks(along, values.rows(), values.cols(), values.data());
}

/// The rows that are quantised the other way round, if there are any.
template <class Real>
const Rows<Real>& turned_or(const Rows<Real>& turned, const Rows<Real>& rows) {
  return turned.size() > 0 ? turned : rows;
}

/// Data that all row blocks of a unit share.
template <class Real>
struct PlainUnit {
  const HeadGroup& group;
  PlainRules<Real> rules;
  Rows<Real> keys, values;                // keys after RoPE, rounded
  KeyRun piece_keys;                      // hull of the keys that the current piece of queries sees
  Rows<Real> piece_dk, piece_dv;          // of that piece, fp32; zero outside the hull
  Rows<Real> running_dk, running_dv;      // over the pieces so far
  int32_t pieces = 0;                     // finished so far
  Rows<Real> turned_keys, turned_values;  // mxfp8 only, as in PlainFp8
};

/// A normalised partial result of one hop.
template <class Real>
struct PlainPartial {
  Rows<Real> out;    // [rows, head_dim_v]
  Column<Real> lse;  // [rows] -inf if the row sees no key of the hop
};

template <class Real>
struct PlainBlock {
  RowBlock range;
  int32_t head = 0;
  Rows<Real> queries, d_out;  // of these rows
  Rows<Real> logits;          // [rows, keys] complete
  Rows<Real> cap_slopes;      // [rows, keys] derivative of the cap; empty without one
  Rows<Real> kept;            // [rows, keys] 1 where dropout keeps a weight, else 0; empty: all 1
  Rows<Real> out;             // [rows, head_dim_v] merged and rounded
  Column<Real> lse;           // [rows] merged, the sink included
  Column<Real> out_dot;       // [rows] rowsum(d_out * out)
  Rows<Real> turned_queries, turned_d_out;  // mxfp8 only
};

std::span<const KeyRun> runs_of_row(const HeadGroup& group, const RowBlock& range, int64_t row) {
  return group.part.visible.of_row(range.row_begin + row);
}

template <class Real>
void compute_plain_logits(const PlainUnit<Real>& unit, PlainBlock<Real>& block) {
  const RowBlock& range = block.range;
  block.logits.resize(range.rows(), range.keys());
  block.logits.noalias() =
      block.queries * unit.keys.middleRows(range.key_begin, range.keys()).transpose();
  block.logits *= unit.rules.scale;
  const Real softcap = unit.rules.softcap;
  const PairTerms& terms = unit.group.terms;
  const bool is_capped = softcap != Real(0);
  if (is_capped) block.cap_slopes.setZero(range.rows(), range.keys());
  if (terms.drops()) block.kept.setZero(range.rows(), range.keys());
  if (!is_capped && !terms.adds() && !terms.drops()) return;
  const int64_t sequence = unit.group.sequence;
  for (int64_t row = 0; row < range.rows(); ++row) {
    const int64_t i = unit.group.query_position(range.row_begin + row);
    for (const KeyRun& run : runs_of_row(unit.group, range, row)) {
      for (int64_t key = run.begin - range.key_begin; key < run.end - range.key_begin; ++key) {
        const int64_t j = unit.group.key_position(range.key_begin + key);
        Real& logit = block.logits(row, key);
        if (is_capped) {
          logit = softcap * std::tanh(logit / softcap);
          const Real bent = logit / softcap;
          block.cap_slopes(row, key) = Real(1) - bent * bent;
        }
        if (terms.adds()) logit += static_cast<Real>(terms.added(sequence, block.head, i, j));
        if (terms.drops())
          block.kept(row, key) = terms.factor(sequence, block.head, i, j) > 0 ? Real(1) : Real(0);
      }
    }
  }
}

/// Attention of the block's rows to the keys [key_begin, key_end) alone.
template <class Real>
PlainPartial<Real> compute_partial(const PlainUnit<Real>& unit, const PlainBlock<Real>& block,
                                   const KeyRun& hop, HeadSums& sums) {
  const RowBlock& range = block.range;
  Rows<Real> weights = Rows<Real>::Zero(range.rows(), hop.end - hop.begin);
  Column<Real> row_sums = Column<Real>::Ones(range.rows());
  PlainPartial<Real> partial;
  partial.lse.setConstant(range.rows(), static_cast<Real>(no_logit()));
  for (int64_t row = 0; row < range.rows(); ++row) {
    std::vector<KeyRun> runs;
    Real row_max = static_cast<Real>(no_logit());
    for (const KeyRun& run : runs_of_row(unit.group, range, row)) {
      const KeyRun clipped{std::max(run.begin, hop.begin), std::min(run.end, hop.end)};
      if (clipped.begin >= clipped.end) continue;
      runs.push_back(clipped);
      const auto logits = block.logits.row(row).segment(clipped.begin - range.key_begin,
                                                        clipped.end - clipped.begin);
      row_max = std::max(row_max, logits.maxCoeff());
    }
    if (runs.empty()) continue;
    Real row_sum = 0;
    for (const KeyRun& run : runs) {
      const int64_t count = run.end - run.begin;
      auto target = weights.row(row).segment(run.begin - hop.begin, count);
      target = block.logits.row(row).segment(run.begin - range.key_begin, count).array() - row_max;
      exponentiate(&weights(row, run.begin - hop.begin), count);
      row_sum += target.sum();
    }
    row_sums(row) = row_sum;
    partial.lse(row) = row_max + std::log(row_sum);
    sums.max_logit = std::max(sums.max_logit, static_cast<double>(row_max));
  }
  if (block.kept.size() != 0)
    weights.array() *=
        block.kept.middleCols(hop.begin - range.key_begin, hop.end - hop.begin).array();
  const PlainFp8* fp8 = unit.rules.fp8;
  if (fp8 != nullptr) {
    cast_values(Fp8Type::e4m3, fp8->weights, weights.size(), weights.data());
  } else if (unit.rules.has_narrow_products) {
    round_all<Real>(unit.rules.dtype, weights);
  }
  partial.out.resize(range.rows(), unit.values.cols());
  partial.out.noalias() = weights * unit.values.middleRows(hop.begin, hop.end - hop.begin);
  partial.out.array().colwise() /= row_sums * unit.rules.kept_share;
  if (fp8 != nullptr) cast_values(Fp8Type::e4m3, fp8->out, partial.out.size(), partial.out.data());
  if (unit.rules.merges_in_dtype || unit.group.hops.rounds_partials)
    round_all<Real>(unit.rules.dtype, partial.out);
  return partial;
}

/// log(exp(a) + exp(b)); two empty sides stay empty.
template <class Real>
Real join_logits(Real a, Real b) {
  const Real top = std::max(a, b);
  const Real bottom = std::min(a, b);
  if (bottom == -std::numeric_limits<Real>::infinity()) return top;
  return top + std::log1p(std::exp(bottom - top));
}

/// exp(part - whole), 0 when the part is empty.
template <class Real>
Real share_of(Real part, Real whole) {
  if (part == -std::numeric_limits<Real>::infinity()) return Real(0);
  return std::exp(part - whole);
}

/// The sink is added once, after all hops; rows that saw nothing stay empty.
template <class Real>
void join_sink(const PlainUnit<Real>& unit, int32_t head, Column<Real>& lse) {
  const Attention& attention = unit.group.scenario.attention;
  if (attention.softmax_type == SoftmaxType::vanilla) return;
  const Real sink = static_cast<Real>(sink_logit(attention, unit.group.inputs.sink, head));
  for (int64_t row = 0; row < lse.size(); ++row) {
    if (lse(row) != static_cast<Real>(no_logit())) lse(row) = join_logits(lse(row), sink);
  }
}

/// Adds a partial to a running result, both normalised, in the arithmetic of Real.
template <class Real>
void merge_one(const PlainPartial<Real>& partial, PlainPartial<Real>& running) {
  for (int64_t row = 0; row < running.lse.size(); ++row) {
    const Real lse = join_logits(running.lse(row), partial.lse(row));
    running.out.row(row) = running.out.row(row) * share_of(running.lse(row), lse) +
                           partial.out.row(row) * share_of(partial.lse(row), lse);
    running.lse(row) = lse;
  }
}

template <class Real>
void merge_wide(const PlainUnit<Real>& unit, std::vector<PlainPartial<Real>>& partials,
                PlainBlock<Real>& block) {
  PlainPartial<Real>& running = partials.front();
  for (size_t hop = 1; hop < partials.size(); ++hop) merge_one(partials[hop], running);
  block.lse = running.lse;
  join_sink(unit, block.head, block.lse);
  for (int64_t row = 0; row < block.lse.size(); ++row) {
    running.out.row(row) *= share_of(running.lse(row), block.lse(row));
  }
  block.out = std::move(running.out);
}

/// TransformerEngine's merge: first all log-sums, then the outputs, each weighted by the final one
/// and rounded as it is added.
template <class Real>
void merge_two_phase(const PlainUnit<Real>& unit, const std::vector<PlainPartial<Real>>& partials,
                     PlainBlock<Real>& block) {
  block.lse = partials.front().lse;
  for (size_t hop = 1; hop < partials.size(); ++hop) {
    for (int64_t row = 0; row < block.lse.size(); ++row) {
      block.lse(row) = join_logits(block.lse(row), partials[hop].lse(row));
    }
  }
  join_sink(unit, block.head, block.lse);
  block.out.setZero(block.range.rows(), unit.values.cols());
  for (const PlainPartial<Real>& partial : partials) {
    Rows<Real> term = partial.out;
    for (int64_t row = 0; row < term.rows(); ++row) {
      term.row(row) *= share_of(partial.lse(row), block.lse(row));
    }
    if (unit.rules.rounds_each_term) round_all<Real>(unit.rules.dtype, term);
    block.out += term;
    round_all<Real>(unit.rules.dtype, block.out);
  }
}

/// The hops' pieces of the block's hull, in natural order. The row that sees most keys overlaps as
/// many pieces as the schedule has hops.
template <class Real>
std::vector<KeyRun> hops_of(const PlainUnit<Real>& unit, const RowBlock& range) {
  const int32_t num_hops = unit.group.hops.partials;
  if (num_hops == 1) return {{range.key_begin, range.key_end}};
  int64_t longest = 0;
  for (int64_t row = 0; row < range.rows(); ++row) {
    int64_t num_keys = 0;
    for (const KeyRun& run : runs_of_row(unit.group, range, row)) num_keys += run.end - run.begin;
    longest = std::max(longest, num_keys);
  }
  const int64_t length = piece_length(longest, num_hops);
  std::vector<KeyRun> hops;
  for (int64_t key = range.key_begin; key < range.key_end; key += length)
    hops.push_back({key, std::min(key + length, range.key_end)});
  return hops;
}

template <class Real>
void run_plain_forward(const PlainUnit<Real>& unit, PlainBlock<Real>& block, HeadSums& sums,
                       Answer& answer) {
  compute_plain_logits(unit, block);
  std::vector<PlainPartial<Real>> partials;
  for (const KeyRun& hop : hops_of(unit, block.range)) {
    partials.push_back(compute_partial(unit, block, hop, sums));
  }
  if (unit.rules.merges_in_dtype || unit.group.hops.adds_in_dtype) {
    merge_two_phase(unit, partials, block);
  } else {
    merge_wide(unit, partials, block);
  }
  round_all<Real>(unit.rules.dtype, block.out);
  for (int64_t row = 0; row < block.range.rows(); ++row) {
    const int64_t at = unit.group.query_row(block.range.row_begin + row);
    scatter_row(&block.out(row, 0), at, block.head, answer.out);
    answer.lse.values[static_cast<size_t>(at * answer.lse.shape[1] + block.head)] =
        static_cast<double>(block.lse(row));
  }
}

/// Takes the results of a forward from the given answer instead of running it.
template <class Real>
void take_given_forward(const PlainUnit<Real>& unit, PlainBlock<Real>& block) {
  compute_plain_logits(unit, block);
  const Answer& given = *unit.group.wanted.given;
  block.lse.resize(block.range.rows());
  block.out.resize(block.range.rows(), given.out.shape[2]);
  for (int64_t row = 0; row < block.range.rows(); ++row) {
    const int64_t token = unit.group.query_token(block.range.row_begin + row);
    block.lse(row) = static_cast<Real>(
        given.lse.values[static_cast<size_t>(token * given.lse.shape[1] + block.head)]);
    const double* out = given.out.values.data() + row_offset(given.out, token, block.head);
    for (int64_t lane = 0; lane < block.out.cols(); ++lane)
      block.out(row, lane) = static_cast<Real>(out[lane]);
  }
}

/// exp(logit - lse) of the visible pairs, 0 elsewhere and in rows with an lse that is not finite.
template <class Real>
Rows<Real> compute_weights(const PlainUnit<Real>& unit, const PlainBlock<Real>& block) {
  const RowBlock& range = block.range;
  Rows<Real> weights = Rows<Real>::Zero(range.rows(), range.keys());
  for (int64_t row = 0; row < range.rows(); ++row) {
    if (!std::isfinite(block.lse(row))) continue;
    for (const KeyRun& run : runs_of_row(unit.group, range, row)) {
      const int64_t first = run.begin - range.key_begin;
      const int64_t count = run.end - run.begin;
      weights.row(row).segment(first, count) =
          block.logits.row(row).segment(first, count).array() - block.lse(row);
      exponentiate(&weights(row, first), count);
    }
  }
  return weights;
}

template <class Real>
void accumulate_dq(const PlainUnit<Real>& unit, const PlainBlock<Real>& block,
                   const Rows<Real>& d_logits, Answer& answer) {
  const RowBlock& range = block.range;
  const PlainRules<Real>& rules = unit.rules;
  Rows<Real> dq = Rows<Real>::Zero(range.rows(), unit.keys.cols());
  int32_t shares = 0;
  for (const KeyRun& hop : hops_of(unit, range)) {
    const int64_t count = hop.end - hop.begin;
    Rows<Real> term(range.rows(), unit.keys.cols());
    term.noalias() = d_logits.middleCols(hop.begin - range.key_begin, count) *
                     turned_or(unit.turned_keys, unit.keys).middleRows(hop.begin, count);
    term *= rules.scale;
    if (rules.fp8 != nullptr)
      cast_values(rules.fp8->gradients, rules.fp8->dq, term.size(), term.data());
    if (unit.group.hops.rounds_dq) round_all<Real>(rules.dtype, term);
    dq += term;
    const bool leaves_window = ++shares % unit.group.hops.shares_a_rounding == 0;
    if (rules.merges_in_dtype || (unit.group.hops.rounds_dq_sum && leaves_window))
      round_all<Real>(rules.dtype, dq);
  }
  for (int64_t row = 0; row < range.rows(); ++row) {
    rotate_row(unit.group.part.query_turns, range.row_begin + row, -1, &dq(row, 0));
  }
  round_all<Real>(rules.dtype, dq);
  for (int64_t row = 0; row < range.rows(); ++row) {
    scatter_row(&dq(row, 0), unit.group.query_row(range.row_begin + row), block.head, answer.dq);
  }
}

/// The gradient of the bias is that of the complete logits.
template <class Real>
void write_plain_dbias(const PlainUnit<Real>& unit, const RowBlock& range,
                       const Rows<Real>& d_logits, HeadSums& sums) {
  const int64_t keys = unit.group.part.num_keys();
  for (int64_t row = 0; row < range.rows(); ++row) {
    for (int64_t key = 0; key < range.keys(); ++key)
      sums.dbias[static_cast<size_t>((range.row_begin + row) * keys + range.key_begin + key)] =
          static_cast<double>(d_logits(row, key));
  }
}

template <class Real>
void run_plain_backward(PlainUnit<Real>& unit, PlainBlock<Real>& block, HeadSums& sums,
                        Answer& answer) {
  const RowBlock& range = block.range;
  const PlainRules<Real>& rules = unit.rules;
  Rows<Real> weights = compute_weights(unit, block);
  Rows<Real> d_logits(range.rows(), range.keys());
  d_logits.noalias() = block.d_out * turned_or(unit.turned_values, unit.values)
                                         .middleRows(range.key_begin, range.keys())
                                         .transpose();
  if (block.kept.size() != 0) d_logits.array() *= block.kept.array() / rules.kept_share;
  d_logits.array().colwise() -= block.out_dot;
  d_logits.array() *= weights.array();
  if (unit.group.has_bias_gradient()) write_plain_dbias(unit, range, d_logits, sums);
  if (block.cap_slopes.size() != 0) d_logits.array() *= block.cap_slopes.array();
  // In 8 bits a weight is cast before it is divided by the kept share: its scale is for at most 1.
  if (block.kept.size() != 0)
    weights.array() *= block.kept.array() / (rules.fp8 != nullptr ? Real(1) : rules.kept_share);
  Rows<Real> turned_d_logits;  // mxfp8: in blocks along queries
  if (rules.fp8 != nullptr) {
    cast_values(Fp8Type::e4m3, rules.fp8->weights_back, weights.size(), weights.data());
    if (block.kept.size() != 0) weights /= rules.kept_share;
    if (rules.fp8->is_mx) {
      turned_d_logits = d_logits;
      cast_blocks(BlocksAlong::rows, d_logits);
      cast_blocks(BlocksAlong::columns, turned_d_logits);
    } else {
      cast_values(rules.fp8->gradients, rules.fp8->d_logits, d_logits.size(), d_logits.data());
    }
  } else if (rules.has_narrow_products) {
    round_all<Real>(rules.dtype, weights);
    round_all<Real>(rules.dtype, d_logits);
  }
  if (unit.group.wanted.queries) accumulate_dq(unit, block, d_logits, answer);
  if (!unit.group.has_key_gradients()) return;
  KeyRun& touched = unit.piece_keys;
  const bool is_first = touched.begin == touched.end;
  touched = {is_first ? range.key_begin : std::min(touched.begin, range.key_begin),
             is_first ? range.key_end : std::max(touched.end, range.key_end)};
  // A shared row of K and V has one gradient, which is rounded as one.
  Rows<Real>& dv = unit.group.scenario.attention.latent_dim > 0 ? unit.piece_dk : unit.piece_dv;
  dv.middleRows(range.key_begin, range.keys()).leftCols(block.d_out.cols()).noalias() +=
      weights.transpose() * turned_or(block.turned_d_out, block.d_out);
  unit.piece_dk.middleRows(range.key_begin, range.keys()).noalias() +=
      rules.scale * turned_or(turned_d_logits, d_logits).transpose() *
      turned_or(block.turned_queries, block.queries);
}

/// Computes rowsum(d_out * out), and from it the sink's gradient.
template <class Real>
void compute_out_dot(const PlainUnit<Real>& unit, PlainBlock<Real>& block, HeadSums& sums) {
  block.out_dot = (block.d_out.array() * block.out.array()).rowwise().sum();
  const Attention& attention = unit.group.scenario.attention;
  if (attention.softmax_type != SoftmaxType::learnable || !unit.group.wanted.queries) return;
  const Real sink = static_cast<Real>(sink_logit(attention, unit.group.inputs.sink, block.head));
  Real d_sink = 0;
  for (int64_t row = 0; row < block.range.rows(); ++row) {
    if (runs_of_row(unit.group, block.range, row).empty()) continue;
    d_sink -= std::exp(sink - block.lse(row)) * block.out_dot(row);
  }
  sums.d_sink += static_cast<double>(d_sink);
}

template <class Real>
void turn_and_round(const HeadGroup& group, const RotaryTable& turns, int64_t first_row,
                    Rows<Real>& rows) {
  if (!turns.is_on()) return;
  for (int64_t row = 0; row < rows.rows(); ++row)
    rotate_row(turns, first_row + row, +1, &rows(row, 0));
  if (group.fp8 == nullptr) round_all<Real>(group.scenario.numerics.dtype, rows);
}

template <class Real>
void run_rows(PlainUnit<Real>& unit, int32_t head, int64_t begin, int64_t end, HeadSums& sums,
              Answer& answer) {
  const HeadGroup& group = unit.group;
  PlainBlock<Real> block;
  block.range = find_row_block(group.part.visible, begin, end);
  block.head = head;
  // Rows that see nothing keep the answer's initial values.
  if (block.range.keys() == 0) return;
  const auto positions = std::span(group.part.queries)
                             .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  block.queries = gather_rows<Real>(group.inputs.q, group.slot.q_valid_begin(), positions, head);
  turn_and_round(group, group.part.query_turns, begin, block.queries);
  if (group.wanted.given != nullptr) {
    take_given_forward(unit, block);
  } else {
    run_plain_forward(unit, block, sums, answer);
  }
  if (!group.has_backward()) return;
  const int64_t first = group.slot.q_valid_begin();
  const Tensor& d_out = group.fp8 ? group.fp8->d_out_of_delta() : group.inputs.d_out;
  block.d_out = gather_rows<Real>(d_out, first, positions, head);
  compute_out_dot(unit, block, sums);
  if (group.fp8 != nullptr && group.fp8->is_mx) {
    block.d_out = gather_rows<Real>(group.inputs.d_out, first, positions, head);
    block.turned_d_out = gather_rows<Real>(group.fp8->turned.d_out, first, positions, head);
    block.turned_queries = gather_rows<Real>(group.fp8->turned.q, first, positions, head);
    turn_and_round(group, group.part.query_turns, begin, block.turned_queries);
  }
  run_plain_backward(unit, block, sums, answer);
}

/// Adds the finished piece to the running gradients, as one hop of the ring would, and clears it.
template <class Real>
void finish_piece(PlainUnit<Real>& unit) {
  const PlainRules<Real>& rules = unit.rules;
  const bool rounds_share = rules.sends_in_dtype && !unit.group.hops.rounds_running_sum;
  // In a double ring the sums of a window travel unrounded.
  const bool leaves_window = ++unit.pieces % unit.group.hops.shares_a_rounding == 0;
  const bool rounds_sum =
      rules.merges_in_dtype || (rules.sends_in_dtype && !rounds_share && leaves_window);
  const auto round_row = [&](Rows<Real>& rows, int64_t key) {
    for (Real& value : rows.row(key)) value = round_to(rules.dtype, value);
  };
  const auto add = [&](Rows<Real>& piece, Rows<Real>& running, float PlainFp8::*scale) {
    for (int64_t key = unit.piece_keys.begin; key < unit.piece_keys.end; ++key) {
      if (rules.fp8 != nullptr)
        cast_values(rules.fp8->gradients, rules.fp8->*scale, piece.cols(), &piece(key, 0));
      if (rounds_share) round_row(piece, key);
      running.row(key) += piece.row(key);
      piece.row(key).setZero();
      if (rounds_sum) round_row(running, key);
    }
  };
  add(unit.piece_dk, unit.running_dk, &PlainFp8::dk);
  if (unit.running_dv.size() > 0) add(unit.piece_dv, unit.running_dv, &PlainFp8::dv);
  unit.piece_keys = {};
}

template <class Real>
void write_key_gradients(PlainUnit<Real>& unit, Answer& answer) {
  const HeadGroup& group = unit.group;
  for (int64_t key = 0; key < group.part.num_keys(); ++key)
    rotate_row(group.part.key_turns, key, -1, &unit.running_dk(key, 0));
  round_all<Real>(unit.rules.dtype, unit.running_dk);
  round_all<Real>(unit.rules.dtype, unit.running_dv);
  for (int64_t key = 0; key < group.part.num_keys(); ++key) {
    scatter_row(&unit.running_dk(key, 0), group.key_row(key), group.kv_head, answer.dk);
    if (unit.running_dv.size() > 0)
      scatter_row(&unit.running_dv(key, 0), group.key_row(key), group.kv_head, answer.dv);
  }
}

template <class Real>
PlainUnit<Real> start_unit(const HeadGroup& group) {
  PlainUnit<Real> unit{group, plain_rules<Real>(group), {}, {}, {}, {}, {}, {}, {}, 0, {}, {}};
  std::tie(unit.keys, unit.values) = gather_keys<Real>(group, true);
  const Attention& attention = group.scenario.attention;
  turn_and_round(group, group.part.key_turns, 0, unit.keys);
  if (group.fp8 != nullptr && group.fp8->is_mx && group.has_backward()) {
    const RunInputs& turned = group.fp8->turned;
    const int64_t first_key = group.slot.kv_valid_begin();
    unit.turned_keys = gather_rows<Real>(turned.k, first_key, group.part.keys, group.kv_head);
    unit.turned_values = gather_rows<Real>(turned.v, first_key, group.part.keys, group.kv_head);
    turn_and_round(group, group.part.key_turns, 0, unit.turned_keys);
  }
  if (group.has_key_gradients()) {
    unit.piece_dk.setZero(unit.keys.rows(), unit.keys.cols());
    unit.running_dk.setZero(unit.keys.rows(), unit.keys.cols());
    if (attention.latent_dim == 0) {
      unit.piece_dv.setZero(unit.values.rows(), unit.values.cols());
      unit.running_dv.setZero(unit.values.rows(), unit.values.cols());
    }
  }
  return unit;
}

template <class Real>
std::vector<HeadSums> run_group(const HeadGroup& group, Answer& answer) {
  PlainUnit<Real> unit = start_unit<Real>(group);
  const int32_t heads = group.heads_per_group();
  std::vector<HeadSums> sums(static_cast<size_t>(heads), start_sums(group));
  const ShareSize share = size_of_share(group);
  for (const KeyRun& piece : order_shares(group, share.queries)) {
    for (int32_t member = 0; member < heads; ++member) {
      for (int64_t begin = piece.begin, end = 0; begin < piece.end && !group.watch.is_cancelled();
           begin = end) {
        end = end_of_block(group.part, begin, piece.end, kPlainRowsPerBlock);
        run_rows(unit, group.kv_head * heads + member, begin, end,
                 sums[static_cast<size_t>(member)], answer);
        group.watch.add_work(pairs_of_rows(group.part, begin, end));
      }
      const bool ends_share = (member + 1) % share.heads == 0 || member + 1 == heads;
      if (ends_share && group.has_key_gradients()) finish_piece(unit);
    }
  }
  if (group.has_key_gradients()) write_key_gradients(unit, answer);
  return sums;
}

}  // namespace

std::vector<HeadSums> compute_plain_group(const HeadGroup& group, Answer& answer) {
  if (group.scenario.numerics.dtype == Dtype::fp64) return run_group<double>(group, answer);
  return run_group<float>(group, answer);
}

}  // namespace cpscope::reference
