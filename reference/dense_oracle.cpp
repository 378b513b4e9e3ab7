#include "reference/dense_oracle.h"

#include "reference/head_group.h"
#include "sim/base/check.h"
#include "sim/base/parallel.h"

#include <algorithm>
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

double logit_scale(const Attention& attention) {
  if (attention.softmax_scale != 0.0) return attention.softmax_scale;
  return 1.0 / std::sqrt(static_cast<double>(attention.head_dim_qk));
}

double sink_logit(const Attention& attention, const std::vector<double>& learnable, int32_t head) {
  if (attention.softmax_type != SoftmaxType::learnable) return 0.0;
  return learnable[static_cast<size_t>(head)];
}

namespace {

/// A batch that has been looked at once: what all heads of a sequence share.
struct PreparedBatch {
  std::vector<VisibleKeys> visible;  // [sequence]
  std::vector<RotaryTable> rotary;   // [sequence]
};

using GroupFunction = std::vector<HeadSums> (*)(const HeadGroup&, Answer&);

/// One answer in the making.
struct Side {
  GroupFunction compute = nullptr;
  Hops hops;
  Answer answer;
  std::vector<std::vector<HeadSums>> sums;  // [sequence * kv_heads + kv_head][head of the group]
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
    CPSCOPE_CHECK(slot.q_begin >= 0 && slot.q_begin + slot.q_valid <= slots.tokens,
                  "a slot leaves the buffer", slot.q_begin + slot.q_valid, slots.tokens);
    CPSCOPE_CHECK(slot.kv_begin >= 0 && slot.kv_begin + slot.kv_valid <= slots.kv_tokens,
                  "a kv slot leaves the buffer", slot.kv_begin + slot.kv_valid, slots.kv_tokens);
  }
}

void check_inputs(const Scenario& scenario, const RunInputs& inputs) {
  const Attention& attention = scenario.attention;
  CPSCOPE_CHECK(attention.kv_heads > 0 && attention.heads % attention.kv_heads == 0,
                "kv_heads must divide heads", attention.heads, attention.kv_heads);
  const int64_t tokens = inputs.slots.tokens;
  const int64_t kv_tokens = inputs.slots.kv_tokens;
  check_shape(inputs.q, "q", {tokens, attention.heads, attention.head_dim_qk});
  check_shape(inputs.k, "k", {kv_tokens, attention.kv_heads, attention.head_dim_qk});
  check_shape(inputs.v, "v", {kv_tokens, attention.kv_heads, attention.head_dim_v});
  if (scenario.numerics.backward) {
    check_shape(inputs.d_out, "d_out", {tokens, attention.heads, attention.head_dim_v});
  }
  if (attention.softmax_type == SoftmaxType::learnable) {
    CPSCOPE_CHECK(static_cast<int64_t>(inputs.sink.size()) == attention.heads,
                  "one sink logit a head", inputs.sink.size(), attention.heads);
  }
  check_slots(scenario, inputs.slots);
}

/// The answer of a batch that sees nothing; every unit then writes its own rows.
Answer empty_answer(const Scenario& scenario, const RunInputs& inputs, Dtype dtype) {
  const auto heads = static_cast<size_t>(scenario.attention.heads);
  Answer answer;
  std::vector<int64_t> out_shape = inputs.q.shape;
  out_shape[2] = scenario.attention.head_dim_v;
  answer.out = make_filled_tensor("out", out_shape, dtype, 0.0);
  answer.lse = make_filled_tensor("lse", {inputs.q.shape[0], inputs.q.shape[1]}, dtype, no_logit());
  answer.max_logit.assign(heads, no_logit());
  if (!scenario.numerics.backward) return answer;
  answer.dq = make_filled_tensor("dq", inputs.q.shape, dtype, 0.0);
  answer.dk = make_filled_tensor("dk", inputs.k.shape, dtype, 0.0);
  answer.dv = make_filled_tensor("dv", inputs.v.shape, dtype, 0.0);
  if (scenario.attention.softmax_type == SoftmaxType::learnable) answer.d_sink.assign(heads, 0.0);
  return answer;
}

PreparedBatch prepare_batch(const Scenario& scenario, const RunInputs& inputs) {
  const Attention& attention = scenario.attention;
  PreparedBatch prepared;
  const std::vector<SequenceMask> masks = sequence_masks(scenario);
  for (size_t sequence = 0; sequence < inputs.slots.sequences.size(); ++sequence) {
    const SequenceSlot& slot = inputs.slots.sequences[sequence];
    prepared.visible.push_back(find_visible_keys(masks[sequence]));
    prepared.rotary.push_back(make_rotary_table(attention.rope_theta, attention.head_dim_qk, 0,
                                                std::max(slot.q_valid, slot.kv_valid)));
  }
  return prepared;
}

/// Sums over the batch in sequence order, whoever computed them first.
void gather_sums(const Scenario& scenario, int64_t num_sequences, Side& side) {
  const int32_t kv_heads = scenario.attention.kv_heads;
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    size_t head = 0;
    for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      for (const HeadSums& sums : side.sums[static_cast<size_t>(sequence * kv_heads + kv_head)]) {
        double& max_logit = side.answer.max_logit[head];
        max_logit = std::max(max_logit, sums.max_logit);
        if (!side.answer.d_sink.empty()) side.answer.d_sink[head] += sums.d_sink;
        ++head;
      }
    }
  }
}

/// Numbers of the units, the longest sequences first: nobody waits for one at the end.
std::vector<int64_t> order_units(const RunInputs& inputs, int64_t kv_heads, int64_t num_sides) {
  const std::vector<SequenceSlot>& sequences = inputs.slots.sequences;
  std::vector<int64_t> units(sequences.size() * static_cast<size_t>(kv_heads * num_sides));
  std::iota(units.begin(), units.end(), int64_t{0});
  const auto pairs_of = [&](int64_t unit) {
    const SequenceSlot& slot = sequences[static_cast<size_t>(unit / (kv_heads * num_sides))];
    return slot.q_valid * slot.kv_valid;
  };
  std::stable_sort(units.begin(), units.end(),
                   [&](int64_t a, int64_t b) { return pairs_of(a) > pairs_of(b); });
  return units;
}

/// Nothing, or that it was cancelled.
std::optional<Error> run_sides(const Scenario& scenario, const RunInputs& inputs,
                               std::span<Side> sides, const RunControl& control) {
  check_inputs(scenario, inputs);
  const int64_t kv_heads = scenario.attention.kv_heads;
  const auto num_sequences = static_cast<int64_t>(inputs.slots.sequences.size());
  const auto num_sides = static_cast<int64_t>(sides.size());
  const PreparedBatch prepared = prepare_batch(scenario, inputs);
  for (Side& side : sides) {
    const bool is_wide =
        side.compute == compute_exact_group || scenario.numerics.dtype == Dtype::fp64;
    side.answer = empty_answer(scenario, inputs, is_wide ? Dtype::fp64 : Dtype::fp32);
    side.sums.resize(static_cast<size_t>(num_sequences * kv_heads));
  }

  const std::vector<int64_t> units = order_units(inputs, kv_heads, num_sides);
  RunWatch watch(control, static_cast<int64_t>(units.size()));
  for_each_index(static_cast<int64_t>(units.size()), [&](int64_t index) {
    if (watch.is_cancelled()) return;
    const int64_t unit = units[static_cast<size_t>(index)];
    Side& side = sides[static_cast<size_t>(unit % num_sides)];
    const int64_t place = unit / num_sides;
    const auto sequence = static_cast<size_t>(place / kv_heads);
    const HeadGroup group{scenario,
                          inputs,
                          prepared.visible[sequence],
                          prepared.rotary[sequence],
                          static_cast<int64_t>(sequence),
                          static_cast<int32_t>(place % kv_heads),
                          side.hops,
                          watch};
    side.sums[static_cast<size_t>(place)] = side.compute(group, side.answer);
    if (!watch.was_cancelled()) watch.advance();
  });
  if (watch.was_cancelled()) return watch.error("the judgement", "parts");
  for (Side& side : sides) gather_sums(scenario, num_sequences, side);
  return std::nullopt;
}

}  // namespace

Result<Verdict> judge(const Scenario& scenario, const RunInputs& inputs, const Hops& hops,
                      const RunControl& control) {
  CPSCOPE_CHECK(hops.partials >= 1 && hops.shares >= 1, "a plain run has at least one hop",
                hops.partials, hops.shares);
  Side sides[2] = {{compute_exact_group, {}, {}, {}}, {compute_plain_group, hops, {}, {}}};
  if (auto error = run_sides(scenario, inputs, sides, control)) return *std::move(error);
  return Verdict{std::move(sides[0].answer), std::move(sides[1].answer)};
}

Result<Answer> judge_exactly(const Scenario& scenario, const RunInputs& inputs,
                             const RunControl& control) {
  Side sides[1] = {{compute_exact_group, {}, {}, {}}};
  if (auto error = run_sides(scenario, inputs, sides, control)) return *std::move(error);
  return std::move(sides[0].answer);
}

Answer exact_answer(const Scenario& scenario, const RunInputs& inputs) {
  return judge_exactly(scenario, inputs, {}).value();
}

Answer plain_answer(const Scenario& scenario, const RunInputs& inputs, const Hops& hops) {
  CPSCOPE_CHECK(hops.partials >= 1 && hops.shares >= 1, "a plain run has at least one hop",
                hops.partials, hops.shares);
  Side sides[1] = {{compute_plain_group, hops, {}, {}}};
  run_sides(scenario, inputs, sides, {});
  return std::move(sides[0].answer);
}

}  // namespace cpscope::reference
