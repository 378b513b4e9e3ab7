#include "sim/run/run_inputs.h"

#include "sim/base/parallel.h"
#include "sim/run/dtype.h"
#include "sim/run/fp8_history.h"
#include "sim/run/kept_weights.h"
#include "sim/scenario/score_terms.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope {
namespace {

Tensor make_input(const Scenario& scenario, InputTensor which, std::string name,
                  const std::vector<TokenPlace>& places, int32_t heads, int32_t lanes,
                  bool poison) {
  Tensor tensor{std::move(name),
                {static_cast<int64_t>(places.size()), heads, lanes},
                scenario.numerics.dtype,
                {}};
  tensor.values.resize(static_cast<size_t>(tensor.size()));
  const int64_t row_size = int64_t{heads} * lanes;
  // Starting a thread takes longer than a few thousand values.
  const int threads = tensor.size() < 4096 ? 1 : 0;
  const auto fill = [&](int64_t token) {
    double* row = tensor.values.data() + token * row_size;
    if (poison && !places[token].is_valid) {
      std::fill_n(row, row_size, std::numeric_limits<double>::quiet_NaN());
      return;
    }
    for (int32_t head = 0; head < heads; ++head)
      fill_input_row(scenario.numerics, which, places[token], head, row + int64_t{head} * lanes,
                     lanes);
  };
  for_each_index(static_cast<int64_t>(places.size()), fill, threads);
  return tensor;
}

}  // namespace

std::vector<TokenPlace> places_of_ids(const BatchSlots& slots, Side side) {
  const int64_t tokens = slots.tokens_of(side);
  std::vector<TokenPlace> places;
  places.reserve(static_cast<size_t>(tokens));
  for (size_t s = 0; s < slots.sequences.size(); ++s) {
    const SlotSide slot = slots.sequences[s].side(side);
    for (int64_t id = slot.begin; id < slot.end(); ++id) {
      const bool is_valid = slot.is_valid(id);
      const int64_t first = is_valid ? slot.valid_begin() : slot.begin;
      places.push_back({static_cast<int64_t>(s), id - first, is_valid});
    }
  }
  for (int64_t p = 0; static_cast<int64_t>(places.size()) < tokens; ++p)
    places.push_back({-1, p, false});
  return places;
}

std::vector<bool> valid_ids(const BatchSlots& slots, Side side) {
  std::vector<bool> valid(static_cast<size_t>(slots.tokens_of(side)), false);
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    std::fill_n(valid.begin() + slot.valid_begin(), slot.valid, true);
  }
  return valid;
}

Tensor make_run_input(const Scenario& scenario, const BatchSlots& slots, InputTensor which,
                      bool poison) {
  const Attention& attention = scenario.attention;
  if (which == InputTensor::v && attention.latent_dim > 0) return {};
  const bool is_of_keys = which == InputTensor::k || which == InputTensor::v;
  const bool has_v_lanes = which == InputTensor::v || which == InputTensor::d_out;
  constexpr const char* kNames[] = {"q", "k", "v", "d_out"};
  return make_input(scenario, which, kNames[static_cast<size_t>(which)],
                    places_of_ids(slots, is_of_keys ? Side::kv : Side::q),
                    is_of_keys ? attention.kv_heads : attention.heads,
                    has_v_lanes               ? attention.head_dim_v
                    : which == InputTensor::k ? attention.key_dim()
                                              : attention.head_dim_qk,
                    poison);
}

Tensor make_row_weights(const Scenario& scenario, InputTensor which) {
  const Attention& attention = scenario.attention;
  const bool is_of_k = which == InputTensor::w_k;
  const int64_t rows = is_of_k ? attention.latent_nope_dim : attention.head_dim_v;
  Tensor weights =
      make_filled_tensor(is_of_k ? "w_k" : "w_v", {attention.heads, rows, attention.latent_dim},
                         scenario.numerics.dtype, 0.0);
  const double length = std::sqrt(static_cast<double>(attention.latent_dim));
  for_each_index(attention.heads * rows, [&](int64_t row) {
    double* const first = weights.values.data() + row * attention.latent_dim;
    fill_input_row(scenario.numerics, which,
                   {.sequence = 0, .position = row % rows, .is_valid = true},
                   static_cast<int32_t>(row / rows), first, attention.latent_dim);
    for (int32_t lane = 0; lane < attention.latent_dim; ++lane)
      first[lane] = round_to(scenario.numerics.dtype, first[lane] / length);
  });
  return weights;
}

Tensor make_bias(const Scenario& scenario, bool poison) {
  const Batch& batch = scenario.batch;
  const BiasExtents extents = bias_extents(scenario.attention, batch);
  const double beyond = poison ? std::numeric_limits<double>::quiet_NaN() : 0.0;
  Tensor bias =
      make_filled_tensor("bias", {extents.sequences, extents.heads, extents.queries, extents.keys},
                         scenario.numerics.dtype, beyond);
  for_each_index(extents.sequences * extents.heads * extents.queries, [&](int64_t row) {
    const int64_t query = row % extents.queries, plane = row / extents.queries;
    const auto sequence = static_cast<size_t>(plane / extents.heads);
    const bool is_shared = extents.sequences == 1;
    if (!is_shared && query >= batch.lengths[sequence]) return;
    const int64_t keys = is_shared ? extents.keys : batch.kv_lengths[sequence];
    fill_input_row(scenario.numerics, InputTensor::bias,
                   {.sequence = plane / extents.heads, .position = query, .is_valid = true},
                   static_cast<int32_t>(plane % extents.heads),
                   bias.values.data() + row * extents.keys, static_cast<int32_t>(keys));
  });
  return bias;
}

RunInputs make_run_inputs(const Scenario& scenario, const BatchSlots& slots, bool poison) {
  RunInputs inputs;
  inputs.slots = slots;
  inputs.q = make_run_input(scenario, slots, InputTensor::q, poison);
  inputs.k = make_run_input(scenario, slots, InputTensor::k, poison);
  inputs.v = make_run_input(scenario, slots, InputTensor::v, poison);
  if (scenario.numerics.backward)
    inputs.d_out = make_run_input(scenario, slots, InputTensor::d_out, poison);
  if (scenario.attention.softmax_type == SoftmaxType::learnable)
    inputs.sink = sink_logits(scenario.numerics, scenario.attention.heads);
  if (scenario.attention.bias != BiasShape::none) inputs.bias = make_bias(scenario, poison);
  inputs.fp8 = history_before(scenario, slots);
  if (scenario.attention.expands_rows()) {
    inputs.w_k = make_row_weights(scenario, InputTensor::w_k);
    inputs.w_v = make_row_weights(scenario, InputTensor::w_v);
  }
  return inputs;
}

RunInputs make_run_inputs(const Plan& plan, bool poison) {
  RunInputs inputs = make_run_inputs(plan.scenario, plan.layout.slots, poison);
  inputs.kept = draw_by_item(plan);
  return inputs;
}

int64_t run_inputs_bytes(const Scenario& scenario, const BatchSlots& slots) {
  const Attention& attention = scenario.attention;
  const int64_t q_side =
      slots.tokens * attention.heads *
      (attention.head_dim_qk + (scenario.numerics.backward ? attention.head_dim_v : 0));
  const int64_t kv_side =
      slots.kv_tokens * attention.kv_heads * (attention.key_dim() + attention.own_head_dim_v());
  const int64_t bias = bias_extents(attention, scenario.batch).cells();
  const int64_t weights = attention.expands_rows()
                              ? int64_t{attention.heads} * attention.latent_dim *
                                    (attention.latent_nope_dim + attention.head_dim_v)
                              : 0;
  return (q_side + kv_side + bias + weights) * static_cast<int64_t>(sizeof(double));
}

int64_t head_gradients_bytes(const Scenario& scenario, const BatchSlots& slots) {
  const Attention& attention = scenario.attention;
  if (!attention.expands_rows() || !scenario.numerics.backward) return 0;
  constexpr int64_t kAnswers = 2;
  return kAnswers * slots.kv_tokens * attention.heads *
         (attention.head_dim_qk + attention.head_dim_v) * static_cast<int64_t>(sizeof(double));
}

}  // namespace cpscope
