#include "reference/dense_oracle.h"

#include "reference/altered_attention.h"
#include "reference/head_group.h"
#include "reference/latent_rows.h"
#include "sim/base/check.h"
#include "sim/base/parallel.h"
#include "sim/run/dtype.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cpscope::reference {

double no_logit() { return -std::numeric_limits<double>::infinity(); }

HeadSums start_sums(const HeadGroup& group) {
  HeadSums sums{no_logit()};
  if (!group.has_bias_gradient()) return sums;
  const auto queries = static_cast<size_t>(group.part.num_queries());
  sums.dbias.assign(queries * static_cast<size_t>(group.part.num_keys()), 0.0);
  sums.dbias_squares.assign(queries, 0.0);
  return sums;
}

double logit_scale(const Attention& attention) {
  if (attention.softmax_scale != 0.0) return attention.softmax_scale;
  return 1.0 / std::sqrt(static_cast<double>(attention.head_dim_qk));
}

double sink_logit(const Attention& attention, const std::vector<double>& learnable, int32_t head) {
  if (attention.softmax_type != SoftmaxType::learnable) return 0.0;
  return learnable[static_cast<size_t>(head)];
}

namespace {

/// The exact or the plain part of a verdict.
enum class Half { exact, plain };

/// One answer while it is computed.
struct AnswerSide {
  Half half = Half::exact;
  Hops hops = {};
  Wanted wanted = {};
  const RunInputs* inputs = nullptr;  // null: those of the run
  const PlainFp8* fp8 = nullptr;      // of a plain run in 8 bits
  Answer answer = {};
  TermLengths terms = {};                        // of the exact answer
  std::vector<std::vector<HeadSums>> sums = {};  // [sequence * kv_heads + kv_head][head of group]
};

void check_shape(const Tensor& tensor, const char* what, std::vector<int64_t> shape) {
  CPSCOPE_CHECK(tensor.shape.size() == shape.size(), std::string(what) + " has another rank",
                tensor.shape.size(), shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    CPSCOPE_CHECK(tensor.shape[axis] == shape[axis], std::string(what) + " has another shape",
                  tensor.shape[axis], shape[axis]);
  }
  CPSCOPE_CHECK(static_cast<int64_t>(tensor.values.size()) == tensor.size(),
                std::string(what) + " holds another number of values", tensor.values.size(),
                tensor.size());
}

void check_slots(const Scenario& scenario, const BatchSlots& slots) {
  const Batch& batch = scenario.batch;
  CPSCOPE_CHECK(slots.sequences.size() == batch.lengths.size(),
                "slots and scenario disagree about the number of sequences", slots.sequences.size(),
                batch.lengths.size());
  for (size_t sequence = 0; sequence < slots.sequences.size(); ++sequence) {
    const SequenceSlot& slot = slots.sequences[sequence];
    CPSCOPE_CHECK(slot.q_valid == batch.lengths[sequence], "a slot has another length",
                  slot.q_valid, batch.lengths[sequence]);
    CPSCOPE_CHECK(slot.kv_valid == batch.kv_lengths[sequence], "a kv slot has another length",
                  slot.kv_valid, batch.kv_lengths[sequence]);
    for (const Side side : {Side::q, Side::kv}) {
      const SlotSide ids = slot.side(side);
      CPSCOPE_CHECK(ids.begin >= 0 && ids.front >= 0 && ids.valid_end() <= ids.end(),
                    "valid tokens leave their slot", ids.valid_end(), ids.end());
      CPSCOPE_CHECK(ids.end() <= slots.tokens_of(side), "a slot leaves the buffer", ids.end(),
                    slots.tokens_of(side));
    }
  }
}

void check_inputs(const Scenario& scenario, const RunInputs& inputs) {
  const Attention& attention = scenario.attention;
  CPSCOPE_CHECK(attention.kv_heads > 0 && attention.heads % attention.kv_heads == 0,
                "kv_heads must divide heads", attention.heads, attention.kv_heads);
  const int64_t tokens = inputs.slots.tokens;
  const int64_t kv_tokens = inputs.slots.kv_tokens;
  check_shape(inputs.q, "q", {tokens, attention.heads, attention.head_dim_qk});
  check_shape(inputs.k, "k", {kv_tokens, attention.kv_heads, attention.key_dim()});
  if (attention.expands_rows()) {
    check_shape(inputs.w_k, "w_k",
                {attention.heads, attention.latent_nope_dim, attention.latent_dim});
    check_shape(inputs.w_v, "w_v", {attention.heads, attention.head_dim_v, attention.latent_dim});
  } else if (attention.latent_dim == 0) {
    check_shape(inputs.v, "v", {kv_tokens, attention.kv_heads, attention.head_dim_v});
  } else {
    CPSCOPE_CHECK(inputs.v.values.empty() && attention.head_dim_v == attention.latent_dim,
                  "latent attention has no v but the first elements of k", attention.head_dim_v,
                  attention.latent_dim);
  }
  if (scenario.numerics.backward) {
    check_shape(inputs.d_out, "d_out", {tokens, attention.heads, attention.head_dim_v});
  }
  if (attention.softmax_type == SoftmaxType::learnable) {
    CPSCOPE_CHECK(static_cast<int64_t>(inputs.sink.size()) == attention.heads,
                  "one sink logit a head", inputs.sink.size(), attention.heads);
  }
  if (attention.bias != BiasShape::none) {
    const BiasExtents extents = bias_extents(attention, scenario.batch);
    check_shape(inputs.bias, "bias",
                {extents.sequences, extents.heads, extents.queries, extents.keys});
  }
  check_slots(scenario, inputs.slots);
}

/// Initialises an answer as if no row saw a key; every unit then writes its own rows.
void start_answer(const Scenario& scenario, int64_t query_rows, int64_t key_rows,
                  AnswerSide& side) {
  const Attention& attention = scenario.attention;
  const bool is_wide = side.half == Half::exact || scenario.numerics.dtype == Dtype::fp64;
  const Dtype dtype = is_wide ? Dtype::fp64 : Dtype::fp32;
  const int64_t heads = attention.heads, kv_heads = attention.kv_heads;
  Answer& answer = side.answer;
  answer.out = make_filled_tensor("out", {query_rows, heads, attention.head_dim_v}, dtype, 0.0);
  answer.lse = make_filled_tensor("lse", {query_rows, heads}, dtype, no_logit());
  answer.max_logit.assign(static_cast<size_t>(heads), no_logit());
  side.terms.out.assign(static_cast<size_t>(query_rows * heads), 0.0);
  if (!scenario.numerics.backward) return;
  answer.dq = make_filled_tensor("dq", {query_rows, heads, attention.head_dim_qk}, dtype, 0.0);
  answer.dk = make_filled_tensor("dk", {key_rows, kv_heads, attention.head_dim_qk}, dtype, 0.0);
  if (attention.latent_dim == 0)
    answer.dv = make_filled_tensor("dv", {key_rows, kv_heads, attention.head_dim_v}, dtype, 0.0);
  side.terms.dq.assign(static_cast<size_t>(query_rows * heads), 0.0);
  side.terms.dk.assign(static_cast<size_t>(key_rows * kv_heads), 0.0);
  side.terms.dv.assign(static_cast<size_t>(key_rows * kv_heads), 0.0);
  if (attention.dropout > 0) side.terms.undropped = side.terms.dv;
  if (attention.softmax_type == SoftmaxType::learnable)
    answer.d_sink.assign(static_cast<size_t>(heads), 0.0);
  if (attention.bias == BiasShape::none || !side.wanted.queries || !side.wanted.keys) return;
  const BiasExtents extents = bias_extents(attention, scenario.batch);
  answer.dbias = make_filled_tensor(
      "dbias", {extents.sequences, extents.heads, extents.queries, extents.keys}, dtype, 0.0);
  side.terms.dbias.assign(static_cast<size_t>(extents.sequences * extents.heads * extents.queries),
                          0.0);
}

/// [sequence] Its queries and keys to evaluate.
using Parts = std::vector<SequencePart>;

/// Calls make(mask, slot) for every sequence.
template <class Make>
Parts make_parts(const Scenario& scenario, const RunInputs& inputs, Make make) {
  Parts parts;
  const std::vector<SequenceMask> masks = sequence_masks(scenario);
  for (size_t sequence = 0; sequence < masks.size(); ++sequence)
    parts.push_back(make(masks[sequence], inputs.slots.sequences[sequence]));
  return parts;
}

/// Adds one head's gradient of the bias to the cells that it shares with other heads and sequences.
void share_bias_gradient(const PairTerms& terms, const SequencePart& part, int64_t sequence,
                         int32_t head, const HeadSums& sums, AnswerSide& side) {
  if (sums.dbias.empty()) return;
  Tensor& dbias = side.answer.dbias;
  for (int64_t query = 0; query < part.num_queries(); ++query) {
    const size_t first = terms.cell(sequence, head, part.queries[static_cast<size_t>(query)], 0);
    for (int64_t key = 0; key < part.num_keys(); ++key)
      dbias.values[first + static_cast<size_t>(part.keys[static_cast<size_t>(key)])] +=
          sums.dbias[static_cast<size_t>(query * part.num_keys() + key)];
    side.terms.dbias[first / static_cast<size_t>(dbias.shape[3])] +=
        sums.dbias_squares[static_cast<size_t>(query)];
  }
}

/// The last step of dbias: lengths of its rows' terms from their squares, and the rounding of a
/// plain run.
void finish_bias_gradient(const Numerics& numerics, AnswerSide& side) {
  for (double& value : side.terms.dbias) value = std::sqrt(value);
  if (side.half == Half::plain) round_values(numerics.dtype, side.answer.dbias.values);
}

/// Sums over the batch in sequence order, whatever the order of computation.
void gather_sums(const Scenario& scenario, const Parts& parts, const PairTerms& terms,
                 AnswerSide& side) {
  const int32_t kv_heads = scenario.attention.kv_heads;
  const int64_t num_sequences = std::ssize(parts);
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    size_t head = 0;
    for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (const HeadSums& sums : side.sums[static_cast<size_t>(sequence * kv_heads + kv_head)]) {
        double& max_logit = side.answer.max_logit[head];
        max_logit = std::max(max_logit, sums.max_logit);
        if (!side.answer.d_sink.empty()) side.answer.d_sink[head] += sums.d_sink;
        share_bias_gradient(terms, parts[static_cast<size_t>(sequence)], sequence,
                            static_cast<int32_t>(head), sums, side);
        ++head;
      }
    }
  }
}

/// Numbers of the units, largest first, so that no long unit is left at the end.
std::vector<int64_t> order_units(const Parts& parts, int64_t kv_heads, int64_t num_sides) {
  std::vector<int64_t> units(parts.size() * static_cast<size_t>(kv_heads * num_sides));
  std::iota(units.begin(), units.end(), int64_t{0});
  const auto pairs_of = [&](int64_t unit) {
    const SequencePart& part = parts[static_cast<size_t>(unit / (kv_heads * num_sides))];
    return part.num_queries() * part.num_keys();
  };
  std::stable_sort(units.begin(), units.end(),
                   [&](int64_t a, int64_t b) { return pairs_of(a) > pairs_of(b); });
  return units;
}

int64_t count_units(const Scenario& scenario, const Parts& parts,
                    std::span<const AnswerSide> sides) {
  return std::ssize(parts) * scenario.attention.kv_heads * std::ssize(sides);
}

/// Visible pairs of all units.
double total_pairs(const Scenario& scenario, const Parts& parts,
                   std::span<const AnswerSide> sides) {
  double pairs = 0;
  for (const SequencePart& part : parts) pairs += pairs_of_rows(part, 0, part.num_queries());
  return pairs * scenario.attention.heads * static_cast<double>(sides.size());
}

/// Computes the answers of all sides, which are initialised. Returns an error if cancelled.
std::optional<Error> run_sides(const Scenario& scenario, const RunInputs& inputs,
                               const Parts& parts, std::span<AnswerSide> sides, RunWatch& watch) {
  const int64_t kv_heads = scenario.attention.kv_heads;
  const auto num_sequences = static_cast<int64_t>(parts.size());
  const auto num_sides = static_cast<int64_t>(sides.size());
  for (AnswerSide& side : sides) side.sums.resize(static_cast<size_t>(num_sequences * kv_heads));
  const PairTerms terms(scenario, inputs);
  const std::vector<int64_t> units = order_units(parts, kv_heads, num_sides);
  for_each_index(static_cast<int64_t>(units.size()), [&](int64_t index) {
    if (watch.is_cancelled()) return;
    const int64_t unit = units[static_cast<size_t>(index)];
    AnswerSide& side = sides[static_cast<size_t>(unit % num_sides)];
    const int64_t place = unit / num_sides;
    const auto sequence = static_cast<size_t>(place / kv_heads);
    const HeadGroup group{scenario,
                          side.inputs ? *side.inputs : inputs,
                          parts[sequence],
                          inputs.slots.sequences[sequence],
                          terms,
                          static_cast<int64_t>(sequence),
                          static_cast<int32_t>(place % kv_heads),
                          side.wanted,
                          side.hops,
                          watch,
                          side.fp8};
    if (!group.part.is_empty()) {
      side.sums[static_cast<size_t>(place)] =
          side.half == Half::exact ? compute_exact_group(group, side.answer, side.terms)
                                   : compute_plain_group(group, side.answer);
    }
    if (!watch.was_cancelled()) watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the judgement", "parts");
  for (AnswerSide& side : sides) {
    gather_sums(scenario, parts, terms, side);
    finish_bias_gradient(scenario.numerics, side);
    side.sums.clear();
  }
  return std::nullopt;
}

void contract_rows(const LatentHeads& rows, std::span<AnswerSide> sides) {
  for (AnswerSide& side : sides)
    rows.contract(side.half == Half::plain, side.answer,
                  side.half == Half::exact ? &side.terms : nullptr);
}

std::optional<Error> run_whole(const Scenario& asked, const RunInputs& inputs,
                               std::span<AnswerSide> sides, const RunControl& control) {
  check_inputs(asked, inputs);
  const LatentHeads rows(asked, inputs);
  const Scenario& scenario = rows.scenario();
  const Parts parts =
      make_parts(scenario, inputs, [&](const SequenceMask& mask, const SequenceSlot& slot) {
        return choose_part(scenario, mask, slot);
      });
  for (AnswerSide& side : sides)
    start_answer(scenario, inputs.slots.tokens, inputs.slots.kv_tokens, side);
  RunWatch watch(control, count_units(scenario, parts, sides), total_pairs(scenario, parts, sides));
  if (auto error = run_sides(scenario, inputs, parts, sides, watch)) return error;
  contract_rows(rows, sides);
  return std::nullopt;
}

void check_hops(const Hops& hops) {
  CPSCOPE_CHECK(hops.partials >= 1 && hops.shares >= 1, "a plain run has at least one hop",
                hops.partials, hops.shares);
}

/// What plain runs quantise; nothing without dtype fp8.
std::optional<PlainFp8> find_fp8(const Scenario& scenario, const RunInputs& inputs) {
  if (!scenario.numerics.fp8) return std::nullopt;
  return make_plain_fp8(scenario, inputs);
}

void quantise_side(const std::optional<PlainFp8>& fp8, AnswerSide& side) {
  if (!fp8) return;
  side.inputs = &fp8->inputs;
  if (side.half == Half::plain) side.fp8 = &*fp8;
}

/// [head] The gradient of the sink's logit from a given out and lse.
template <class Real>
std::vector<double> sink_gradients(const RunInputs& inputs, const Tensor& d_out,
                                   const Answer& given) {
  const auto heads = static_cast<int64_t>(inputs.sink.size());
  const int64_t lanes = given.out.shape[2];
  std::vector<Real> sums(static_cast<size_t>(heads), Real(0));
  for (const SequenceSlot& slot : inputs.slots.sequences) {
    const SlotSide ids = slot.side(Side::q);
    for (int64_t row = ids.valid_begin() * heads; row < ids.valid_end() * heads; ++row) {
      const double lse = given.lse.values[static_cast<size_t>(row)];
      if (!std::isfinite(lse)) continue;
      const auto head = static_cast<size_t>(row % heads);
      Real dot = 0;
      for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
        const auto at = static_cast<size_t>(i);
        dot += static_cast<Real>(d_out.values[at]) * static_cast<Real>(given.out.values[at]);
      }
      sums[head] -= std::exp(static_cast<Real>(inputs.sink[head]) - static_cast<Real>(lse)) * dot;
    }
  }
  return {sums.begin(), sums.end()};
}

/// The exact and the plain answer of a few rows, while they are computed.
struct SampledSides {
  Parts parts;
  std::array<AnswerSide, 2> sides;
};

template <class Make>
SampledSides start_sample(const Scenario& scenario, const RunInputs& inputs, const Wanted& wanted,
                          const Hops& hops, const JudgedRows& rows, Make make) {
  SampledSides sampled{make_parts(scenario, inputs, make),
                       {AnswerSide{.half = Half::exact, .wanted = wanted},
                        AnswerSide{.half = Half::plain, .hops = hops, .wanted = wanted}}};
  for (AnswerSide& side : sampled.sides)
    start_answer(scenario, wanted.queries ? std::ssize(rows.query_tokens) : 0,
                 wanted.keys ? std::ssize(rows.key_tokens) : 0, side);
  return sampled;
}

}  // namespace

Result<Verdict> judge(const Scenario& scenario, const RunInputs& inputs, const Hops& hops,
                      const RunControl& control) {
  check_hops(hops);
  const std::optional<PlainFp8> fp8 = find_fp8(scenario, inputs);
  AnswerSide sides[3] = {
      {.half = Half::exact}, {.half = Half::plain, .hops = hops}, {.half = Half::exact}};
  quantise_side(fp8, sides[1]);
  quantise_side(fp8, sides[2]);
  const auto computed = std::span(sides).first(fp8 ? 3 : 2);
  if (auto error = run_whole(scenario, inputs, computed, control)) return *std::move(error);
  return Verdict{std::move(sides[0].answer), std::move(sides[1].answer), std::move(sides[0].terms),
                 std::move(sides[2].answer)};
}

Result<Verdict> judge_rows(const Scenario& asked, const RunInputs& inputs, const Answer& seen,
                           const JudgedRows& rows, const Hops& hops, const RunControl& control) {
  check_hops(hops);
  check_inputs(asked, inputs);
  const LatentHeads heads(asked, inputs);
  const Scenario& scenario = heads.scenario();
  const std::optional<PlainFp8> fp8 = find_fp8(scenario, inputs);
  const bool has_keys =
      scenario.numerics.backward && !seen.out.values.empty() && !seen.lse.values.empty();
  SampledSides of_queries =
      start_sample(scenario, inputs, {.queries = true, .keys = false}, hops, rows,
                   [&](const SequenceMask& mask, const SequenceSlot& slot) {
                     return choose_part(scenario, mask, slot, {.queries = &rows.query_tokens});
                   });
  SampledSides of_keys =
      start_sample(scenario, inputs, {.queries = false, .keys = true, .given = &seen}, hops, rows,
                   [&](const SequenceMask& mask, const SequenceSlot& slot) {
                     return has_keys ? choose_part(scenario, mask, slot, {.keys = &rows.key_tokens})
                                     : SequencePart{};
                   });
  RunWatch watch(control,
                 count_units(scenario, of_queries.parts, of_queries.sides) +
                     count_units(scenario, of_keys.parts, of_keys.sides),
                 total_pairs(scenario, of_queries.parts, of_queries.sides) +
                     total_pairs(scenario, of_keys.parts, of_keys.sides));
  for (SampledSides* sampled : {&of_queries, &of_keys}) {
    quantise_side(fp8, sampled->sides[1]);
    if (auto error = run_sides(scenario, inputs, sampled->parts, sampled->sides, watch))
      return *std::move(error);
    contract_rows(heads, sampled->sides);
  }
  Verdict verdict{std::move(of_queries.sides[0].answer),
                  std::move(of_queries.sides[1].answer),
                  std::move(of_queries.sides[0].terms),
                  {}};
  // max_logit and d_sink need every row.
  for (Answer* answer : {&verdict.exact, &verdict.plain}) {
    answer->max_logit.clear();
    answer->d_sink.clear();
  }
  if (!has_keys) return verdict;
  for (const auto tensor : {&Answer::dk, &Answer::dv}) {
    verdict.exact.*tensor = std::move(of_keys.sides[0].answer.*tensor);
    verdict.plain.*tensor = std::move(of_keys.sides[1].answer.*tensor);
  }
  verdict.terms.dk = std::move(of_keys.sides[0].terms.dk);
  verdict.terms.dv = std::move(of_keys.sides[0].terms.dv);
  verdict.terms.undropped = std::move(of_keys.sides[0].terms.undropped);
  if (!inputs.sink.empty()) {
    const Tensor& d_out = fp8 ? fp8->d_out_of_delta() : inputs.d_out;
    verdict.exact.d_sink = sink_gradients<double>(inputs, inputs.d_out, seen);
    verdict.plain.d_sink = scenario.numerics.dtype == Dtype::fp64
                               ? sink_gradients<double>(inputs, d_out, seen)
                               : sink_gradients<float>(inputs, d_out, seen);
  }
  return verdict;
}

Result<Answer> shares_of_queries(const Scenario& asked, const RunInputs& inputs,
                                 const Answer& given, const JudgedRows& pairs,
                                 const RunControl& control) {
  check_inputs(asked, inputs);
  const LatentHeads rows(asked, inputs);
  const Scenario& scenario = rows.scenario();
  const Parts parts =
      make_parts(scenario, inputs, [&](const SequenceMask& mask, const SequenceSlot& slot) {
        return choose_part(scenario, mask, slot,
                           {.queries = &pairs.query_tokens, .keys = &pairs.key_tokens});
      });
  AnswerSide side{.half = Half::exact, .wanted = {.queries = false, .keys = true, .given = &given}};
  start_answer(scenario, 0, std::ssize(pairs.key_tokens), side);
  RunWatch watch(control, count_units(scenario, parts, {&side, 1}),
                 total_pairs(scenario, parts, {&side, 1}));
  if (auto error = run_sides(scenario, inputs, parts, {&side, 1}, watch)) return *std::move(error);
  rows.contract(false, side.answer, nullptr);
  return std::move(side.answer);
}

Oracle dense_oracle() {
  return {.judge = judge,
          .judge_rows = judge_rows,
          .shares = shares_of_queries,
          .altered = judge_altered,
          .witness = mask_witness()};
}

Result<Answer> judge_exactly(const Scenario& scenario, const RunInputs& inputs,
                             const RunControl& control) {
  AnswerSide sides[1] = {{.half = Half::exact}};
  if (auto error = run_whole(scenario, inputs, sides, control)) return *std::move(error);
  return std::move(sides[0].answer);
}

Answer exact_answer(const Scenario& scenario, const RunInputs& inputs) {
  return judge_exactly(scenario, inputs, {}).value();
}

Answer plain_answer(const Scenario& scenario, const RunInputs& inputs, const Hops& hops) {
  check_hops(hops);
  const std::optional<PlainFp8> fp8 = find_fp8(scenario, inputs);
  AnswerSide sides[1] = {{.half = Half::plain, .hops = hops}};
  quantise_side(fp8, sides[0]);
  run_whole(scenario, inputs, sides, {});
  return std::move(sides[0].answer);
}

}  // namespace cpscope::reference
