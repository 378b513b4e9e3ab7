#pragma once

#include "sim/run/dtype.h"
#include "sim/run/judge.h"
#include "sim/run/run_inputs.h"
#include "sim/scenario/scenario.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace cpscope::reference {

/// A scenario with its inputs, small enough to reason about.
struct TinyBatch {
  Scenario scenario;
  RunInputs inputs;
};

/// Numbers in [-1.5, 1.5) from a counter, so that no test depends on the library's own inputs.
class TinyRandom {
 public:
  explicit TinyRandom(uint64_t seed) : state_(seed) {}

  double next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    return (static_cast<double>(z >> 11) / 9007199254740992.0 - 0.5) * 3.0;
  }

 private:
  uint64_t state_;
};

/// Slots in order: `padding` ids after each sequence's valid tokens, or before them if the batch is
/// padded on the left; `tail` ids after the last.
inline BatchSlots make_slots(const Batch& batch, int64_t padding, int64_t tail) {
  BatchSlots slots;
  for (size_t sequence = 0; sequence < batch.lengths.size(); ++sequence) {
    SequenceSlot slot;
    slot.q_begin = slots.tokens;
    slot.q_valid = batch.lengths[sequence];
    slot.q_slot = slot.q_valid + padding;
    slot.kv_begin = slots.kv_tokens;
    slot.kv_valid = batch.kv_lengths[sequence];
    slot.kv_slot = slot.kv_valid + padding;
    if (batch.pad_side == PadSide::left) slot.q_front = slot.kv_front = padding;
    slots.tokens += slot.q_slot;
    slots.kv_tokens += slot.kv_slot;
    slots.sequences.push_back(slot);
  }
  slots.tokens += tail;
  slots.kv_tokens += tail;
  return slots;
}

/// Valid rows are random and rounded to the dtype; every padding row is `padding_value`.
inline Tensor make_rows(const char* name, Dtype dtype, const std::vector<bool>& is_valid,
                        int64_t heads, int64_t lanes, double padding_value, uint64_t seed) {
  Tensor tensor{name, {static_cast<int64_t>(is_valid.size()), heads, lanes}, dtype, {}};
  TinyRandom random(seed);
  for (const bool valid : is_valid) {
    for (int64_t index = 0; index < heads * lanes; ++index) {
      tensor.values.push_back(valid ? round_to(dtype, random.next()) : padding_value);
    }
  }
  return tensor;
}

/// Fills slots (with NaN in every padding row by default) and inputs of a scenario.
inline TinyBatch make_tiny_batch(Scenario scenario,
                                 double padding_value = std::numeric_limits<double>::quiet_NaN(),
                                 int64_t padding = 2, int64_t tail = 3) {
  const Attention& attention = scenario.attention;
  if (scenario.batch.kv_lengths.empty()) scenario.batch.kv_lengths = scenario.batch.lengths;
  TinyBatch tiny;
  tiny.inputs.slots = make_slots(scenario.batch, padding, tail);
  std::vector<bool> is_query(static_cast<size_t>(tiny.inputs.slots.tokens), false);
  std::vector<bool> is_key(static_cast<size_t>(tiny.inputs.slots.kv_tokens), false);
  for (const SequenceSlot& slot : tiny.inputs.slots.sequences) {
    for (int64_t i = 0; i < slot.q_valid; ++i)
      is_query[static_cast<size_t>(slot.q_begin + slot.q_front + i)] = true;
    for (int64_t j = 0; j < slot.kv_valid; ++j)
      is_key[static_cast<size_t>(slot.kv_begin + slot.kv_front + j)] = true;
  }
  const Dtype dtype = scenario.numerics.dtype;
  tiny.inputs.q =
      make_rows("q", dtype, is_query, attention.heads, attention.head_dim_qk, padding_value, 1);
  tiny.inputs.k =
      make_rows("k", dtype, is_key, attention.kv_heads, attention.key_dim(), padding_value, 2);
  if (attention.latent_dim == 0)
    tiny.inputs.v =
        make_rows("v", dtype, is_key, attention.kv_heads, attention.head_dim_v, padding_value, 3);
  if (scenario.numerics.backward) {
    tiny.inputs.d_out = make_rows("d_out", dtype, is_query, attention.heads, attention.head_dim_v,
                                  padding_value, 4);
  }
  if (attention.softmax_type == SoftmaxType::learnable) {
    TinyRandom random(5);
    for (int32_t head = 0; head < attention.heads; ++head) {
      tiny.inputs.sink.push_back(round_to(Dtype::fp32, random.next()));
    }
  }
  if (attention.bias != BiasShape::none) tiny.inputs.bias = make_bias(scenario, true);
  if (attention.expands_rows()) {
    tiny.inputs.w_k = make_row_weights(scenario, InputTensor::w_k);
    tiny.inputs.w_v = make_row_weights(scenario, InputTensor::w_v);
  }
  tiny.scenario = std::move(scenario);
  return tiny;
}

/// One fp64 self-attention scenario with `heads` = KV heads and equal head dims.
inline Scenario make_scenario(std::vector<int64_t> lengths, int32_t heads, int32_t head_dim) {
  Scenario scenario;
  scenario.attention.heads = heads;
  scenario.attention.kv_heads = heads;
  scenario.attention.head_dim_qk = head_dim;
  scenario.attention.head_dim_v = head_dim;
  scenario.batch.lengths = lengths;
  scenario.batch.kv_lengths = std::move(lengths);
  scenario.parallel.cp_size = 2;
  scenario.numerics.dtype = Dtype::fp64;
  return scenario;
}

/// |a - b|2 / |b|2; equal infinities count as equal.
inline double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t index = 0; index < a.size(); ++index) {
    if (std::isinf(b[index]) && a[index] == b[index]) continue;
    difference += (a[index] - b[index]) * (a[index] - b[index]);
    norm += b[index] * b[index];
  }
  if (norm == 0.0) return std::sqrt(difference);
  return std::sqrt(difference / norm);
}

}  // namespace cpscope::reference
