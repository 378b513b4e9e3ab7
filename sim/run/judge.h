#pragma once

#include "sim/base/result.h"
#include "sim/base/run_control.h"
#include "sim/plan/batch_slots.h"
#include "sim/run/tensor.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cpscope {

/// dtype fp8, recipes with one scale a tensor: the largest absolute values that the step before has
/// left (sim/run/fp8_history.h). 0 for q, k, v and d_out: those of the tensors themselves.
struct Fp8History {
  double qkv = 0.0;  // of q, k and v together, which share a scale
  double d_out = 0.0;
  double out = 0.0;       // recipe delayed: of the results of a compute item
  double d_logits = 0.0;  // of dS, softmax_scale included
  double dq = 0.0, dk = 0.0, dv = 0.0;
};

/// dropout_mode "framework": the weights that the compute items of a plan keep, of the visible
/// pairs; empty in other modes (sim/run/kept_weights.h).
struct KeptWeights {
  std::vector<int64_t> first, queries, keys;  // [sequence] its first cell, and its lengths
  std::vector<uint8_t> is_kept;               // [sequence, head, query, key] 0 or 1

  bool is_empty() const { return first.empty(); }
  /// Index of a pair of positions.
  size_t cell(int64_t sequence, int32_t head, int64_t query, int64_t key) const {
    const auto at = static_cast<size_t>(sequence);
    return static_cast<size_t>(first[at] + (head * queries[at] + query) * keys[at] + key);
  }
  bool holds(int64_t sequence, int32_t head, int64_t query, int64_t key) const {
    return is_kept[cell(sequence, head, query, key)] != 0;
  }
};

/// The inputs of one run in packed padded order, as every executor and the oracle receive them.
/// Values are already rounded to the scenario's dtype; padding rows may hold NaN.
struct RunInputs {
  BatchSlots slots;
  Tensor q, k, v, d_out;     // d_out is empty when backward is off, v if it is a part of k
  std::vector<double> sink;  // [heads] when softmax_type is learnable, else empty
  // [sequences or 1, heads or 1, longest queries, longest keys], by positions among valid tokens;
  // empty without a bias. Cells beyond a sequence are never read.
  Tensor bias = {};
  Fp8History fp8 = {};    // dtype fp8 only
  KeptWeights kept = {};  // dropout_mode "framework" only
  // Where latent rows are expanded, else empty: the weights that make the first latent_nope_dim
  // elements of a head of k, [heads, latent_nope_dim, latent_dim], and v, [heads, head_dim_v,
  // latent_dim], of the latent elements of a row.
  Tensor w_k = {}, w_v = {};
};

/// The tensor whose rows begin with those of v: v itself, or k if that stands for both
/// (latent_dim); its latent elements are then v, or what v is made of.
inline const Tensor& values_of(const RunInputs& inputs) {
  return inputs.v.shape.empty() ? inputs.k : inputs.v;
}

/// The answer of one side. Empty rows and padding rows: out = 0, lse = -inf, gradients 0. If v is a
/// part of k, dk holds the whole gradient and dv is empty.
struct Answer {
  Tensor out, lse, dq, dk, dv;
  std::vector<double> max_logit;  // [heads], -inf if nothing is visible
  std::vector<double> d_sink;     // [heads] when softmax_type is learnable
  Tensor dbias = {};              // as the bias; 0 where no pair is visible
  /// dtype fp8: tensor cores have added up the logits, and keep about 14 bits of a sum.
  bool has_short_sums = false;
};

/// The length that each row would have if the terms of its sum were independent: the root of the
/// sum of their squares. The error from rounding the terms is proportional to it, also where the
/// terms cancel. The gradient of a logit is a difference, of d_out.v and d_out.out: both count. One
/// number per row of the tensor; empty without a backward. If v is a part of k, dk counts the terms
/// of dv as well, and dv those alone.
struct TermLengths {
  std::vector<double> out, dq, dk, dv;
  std::vector<double> dbias;  // [sequence or 1, head or 1, query]
  // With dropout: as dv, of all weights. The gradient of a key has the errors of dropped ones too.
  std::vector<double> undropped;
};

/// What an independent judge provides for grading: the exact answer in double, and the answer of a
/// plain low-precision run, whose error sets the scale.
struct Verdict {
  Answer exact;
  Answer plain;
  TermLengths terms;  // of the exact answer
  /// dtype fp8, if all rows are judged: the exact answer of the quantised inputs. It parts the
  /// error of the format from that of the implementation.
  Answer of_quantised = {};
};

/// Number of pieces that the graded schedule makes of a row's work; the plain run makes the same
/// number.
struct Hops {
  int32_t partials = 1;            // partial results merged into the out, and dq, of one query
  int32_t shares = 1;              // shares added up into the dk, dv of one key
  bool rounds_running_sum = true;  // the sum of shares is sent on, and rounded at every hop;
                                   // false: each share is rounded once, and summed unrounded
  int32_t shares_a_rounding =
      1;                         // running sums are rounded after so many shares, those of a window
  bool sends_shares = true;      // false: shares stay on their rank, and are not rounded
  bool rounds_partials = false;  // every partial out is rounded to the dtype before it is merged
  bool adds_in_dtype = false;    // partial outs are scaled by the lse of all, rounded to the dtype,
                                 // and added in it
  bool rounds_dq = false;        // every partial dq is rounded to the dtype before it is added
  bool rounds_dq_sum = false;    // the sum of partial dq is sent on, and rounded as that of shares
};

/// An oracle: computes `exact` and `plain` from the inputs with its own implementation of the
/// scenario's mask. The plain run makes as many pieces as the graded schedule. Errors: cancelled.
using Judge = std::function<Result<Verdict>(const Scenario&, const RunInputs&, const Hops&,
                                            const RunControl&)>;

/// The tokens whose rows are judged, packed padded ids, ascending.
struct JudgedRows {
  std::vector<int64_t> query_tokens;  // of out, lse, dq
  std::vector<int64_t> key_tokens;    // of dk, dv

  bool is_empty() const { return query_tokens.empty() && key_tokens.empty(); }
};

/// The same for a few rows of a batch that is too long to judge whole, with work that is linear in
/// its tokens: row i of out, lse and dq is that of query_tokens[i], row i of dk and dv that of
/// key_tokens[i]. The gradients of keys and of the sink need all queries: they are computed from
/// the out and lse of the graded answer, and only if it has both. Errors: cancelled.
using SampledJudge =
    std::function<Result<Verdict>(const Scenario&, const RunInputs&, const Answer& seen,
                                  const JudgedRows&, const Hops&, const RunControl&)>;

/// dk and dv of the keys `pairs.key_tokens`, in their order, from the queries `pairs.query_tokens`
/// alone, exactly; uses the out and lse of `given`, which holds all rows. Errors: cancelled.
using ShareJudge =
    std::function<Result<Answer>(const Scenario&, const RunInputs&, const Answer& given,
                                 const JudgedRows& pairs, const RunControl&)>;

/// Key positions [begin, end) of one sequence.
struct KeyInterval {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The visible keys of every query position of a sequence, ascending and disjoint: [query
/// position][interval].
using VisibleKeysOfSequence = std::function<std::vector<std::vector<KeyInterval>>(int64_t)>;

/// [packed padded id] True if the query sees a key, or if a query sees the key.
struct LiveRows {
  std::vector<bool> queries, keys;
};

/// One row of a tensor: a query token and a query head, or a key token and a KV head.
struct RowAddress {
  int64_t token = 0;  // packed padded id
  int32_t head = 0;

  friend auto operator<=>(const RowAddress&, const RowAddress&) = default;
};

/// What bias, ALiBi and dropout do to one pair.
struct PairTerm {
  double added = 0.0;   // to the logit, after scale and cap
  double factor = 1.0;  // of the weight, after the softmax
  double times = 1.0;   // how often the weight counts in the row's sum
};
/// The terms of query position i, key position j of a sequence and a query head. Called from any
/// thread.
using PairTermsOf = std::function<PairTerm(int64_t sequence, int32_t head, int64_t i, int64_t j)>;

/// Attention with a mistake in it, or without one: what is visible, where rows are rotated to, and
/// what the logits are multiplied with. Tokens are packed padded ids.
struct AlteredAttention {
  /// How often a key counts in the sums of a query; 0: it is not visible. Called from any thread.
  std::function<double(int64_t query, int64_t key)> times;
  std::vector<int64_t> query_positions, key_positions;  // [token] of RoPE; unused without theta
  double theta = 0.0;                                   // 0: no RoPE
  int32_t first_rotated = 0;  // RoPE turns this element of q and k and those behind it
  double scale = 1.0;
  double softcap = 0.0;  // 0: off
  /// Of a query token, a key token and a query head; empty: none.
  std::function<PairTerm(int64_t query, int64_t key, int32_t head)> terms = {};
  // [query head] The KV head that it reads; where latent rows are expanded, the head of the
  // weights.
  std::vector<int32_t> kv_head_of;
  // 0: v is a tensor of its own; else the elements at the front of a rotated row of k that v is.
  int32_t latent_dim = 0;
  // How often the gradient of v is added to that of k, and to which of its elements.
  double value_gradients = 1.0;
  int32_t value_gradients_at = 0;
  /// The query whose lse makes the weights of a pair in the gradients; empty: the query itself.
  std::function<int64_t(int64_t query, int32_t key_rank)> lse_row = {};
  // Results are kept apart by the rank of the other side: a query's by the rank of the key, a key's
  // by the rank of the query.
  std::vector<int32_t> query_ranks, key_ranks;  // [token] below `ranks`; unused if that is 1
  int32_t ranks = 1;

  int32_t rank_of_query(int64_t token) const {
    return ranks == 1 ? 0 : query_ranks[static_cast<size_t>(token)];
  }
  int32_t rank_of_key(int64_t token) const {
    return ranks == 1 ? 0 : key_ranks[static_cast<size_t>(token)];
  }
};

/// Results of one query row, one part for the keys of each rank, without a sink. A sum is that of
/// exp(logit - top) over the part's keys.
struct QueryParts {
  std::vector<double> top;   // [rank] largest logit, -inf if the part sees no key
  std::vector<double> sum;   // [rank] of the weights
  std::vector<double> out;   // [rank, head_dim_v] of the weights times v
  std::vector<double> dq_p;  // [rank, head_dim_qk] of the weights times d_out.v times dlogit/dq
  std::vector<double> dq_1;  // [rank, head_dim_qk] of the weights times dlogit/dq
};

/// Gradients of one key row, one part for the queries of each rank.
struct KeyParts {
  std::vector<double> dk;  // [rank, key_dim], with the gradient of a v that it stands for
  std::vector<double> dv;  // [rank, head_dim_v]; empty where latent rows are expanded
};

/// Rows to compute under an altered question. Rows of keys need the out and lse of all queries.
struct AlteredRequest {
  std::vector<RowAddress> queries, keys;
  bool has_gradients = false;   // also dq_p and dq_1
  const Tensor* out = nullptr;  // [tokens, heads, head_dim_v], for `keys`
  const Tensor* lse = nullptr;  // [tokens, heads], for `keys`
};
struct AlteredRows {
  std::vector<QueryParts> queries;  // [request.queries]
  std::vector<KeyParts> keys;       // [request.keys]
};

/// Computes rows of altered attention in double. Time: linear in the tokens for each row. Errors:
/// cancelled.
using AlteredJudge = std::function<Result<AlteredRows>(const RunInputs&, const AlteredAttention&,
                                                       const AlteredRequest&, const RunControl&)>;

/// True if key position j of a sequence is visible to query position i of it.
using IsVisible = std::function<bool(int64_t sequence, int64_t i, int64_t j)>;

/// The oracle's own implementation of the mask, for the probes and for suspected mistakes.
struct MaskWitness {
  /// Compiles the mask of a scenario once and then answers for one sequence after the other.
  std::function<VisibleKeysOfSequence(const Scenario&)> visible_keys;
  /// Compiles the mask of a scenario once and then answers for one pair after the other.
  std::function<IsVisible(const Scenario&)> is_visible;
  /// Bias, ALiBi and dropout of a scenario; refers to both arguments. Empty where it has none.
  std::function<PairTermsOf(const Scenario&, const RunInputs&)> terms;
  /// The rows that may be non-zero: all except padding, queries that see no key and keys that no
  /// query sees. Linear in the tokens if nearly all rows may be.
  std::function<LiveRows(const Scenario&, const BatchSlots&)> live_rows;
};

/// All functions that grade; they share no code with what is graded.
struct Oracle {
  Judge judge;
  SampledJudge judge_rows;
  ShareJudge shares;
  AlteredJudge altered;
  MaskWitness witness;
};

}  // namespace cpscope
