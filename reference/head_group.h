#pragma once

#include "reference/pair_terms.h"
#include "reference/plain_fp8.h"
#include "reference/sequence_part.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope::reference {

/// The rows of the answer that an evaluation writes.
struct Wanted {
  bool queries = true;  // out, lse, dq
  bool keys = true;     // dk, dv
  // Gradients are computed from these out and lse, of all tokens; null: from the computed ones.
  const Answer* given = nullptr;
};

/// One unit of the oracle's work: all query heads that read one KV head, in one sequence. Units
/// write disjoint rows of the answer, so they may run at the same time.
struct HeadGroup {
  const Scenario& scenario;
  const RunInputs& inputs;
  const SequencePart& part;
  const SequenceSlot& slot;  // of the part's sequence
  const PairTerms& terms;
  int64_t sequence = 0;  // the part's
  int32_t kv_head = 0;
  Wanted wanted;
  Hops hops;                      // pieces of the plain run
  RunWatch& watch;                // checked between blocks of rows; a cancelled unit skips the rest
  const PlainFp8* fp8 = nullptr;  // of a plain run in 8 bits, whose inputs are the quantised ones

  int32_t heads_per_group() const { return scenario.attention.heads / scenario.attention.kv_heads; }
  bool has_backward() const { return scenario.numerics.backward; }
  bool has_key_gradients() const { return has_backward() && wanted.keys; }
  /// True if the gradient of the bias is wanted.
  bool has_bias_gradient() const {
    return has_backward() && terms.has_bias() && wanted.queries && wanted.keys;
  }
  int64_t query_token(int64_t query) const {
    return slot.q_valid_begin() + part.queries[static_cast<size_t>(query)];
  }
  int64_t key_token(int64_t key) const {
    return slot.kv_valid_begin() + part.keys[static_cast<size_t>(key)];
  }
  int64_t query_position(int64_t query) const { return part.queries[static_cast<size_t>(query)]; }
  int64_t key_position(int64_t key) const { return part.keys[static_cast<size_t>(key)]; }
  int64_t query_row(int64_t query) const { return part.query_rows[static_cast<size_t>(query)]; }
  int64_t key_row(int64_t key) const { return part.key_rows[static_cast<size_t>(key)]; }
};

/// Contribution of one unit to the per-head numbers of the whole batch.
struct HeadSums {
  double max_logit;     // -inf if the head sees nothing in this sequence
  double d_sink = 0.0;  // gradient of the sink logit from this sequence's rows
  // With a bias: [query, key] its gradient, and [query] the sum of the squares of its row's terms.
  std::vector<double> dbias = {}, dbias_squares = {};
};

/// Sums of a head that has seen nothing yet.
HeadSums start_sums(const HeadGroup& group);

/// The logit of an invisible pair: -inf.
double no_logit();

/// The factor of q.k, as in the contract: softmax_scale, or 1/sqrt(head_dim_qk) when that is 0.
double logit_scale(const Attention& attention);

/// The sink logit of a head; only for softmax types that have one.
double sink_logit(const Attention& attention, const std::vector<double>& learnable, int32_t head);

/// The exact attention of one unit in double, written into `answer`, and the lengths of its rows'
/// terms. Returns the sums of the group's heads, in order. Error: about 1e-15 relative
/// (tests/reference/dense_oracle_test.cpp).
std::vector<HeadSums> compute_exact_group(const HeadGroup& group, Answer& answer,
                                          TermLengths& terms);

/// The plain low-precision attention of one unit: fp32 arithmetic (fp64 when the dtype is) with the
/// roundings of dtype, dkv_wire and accumulate, in as many hops in natural order.
std::vector<HeadSums> compute_plain_group(const HeadGroup& group, Answer& answer);

}  // namespace cpscope::reference
