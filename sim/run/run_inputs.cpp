#include "sim/run/run_inputs.h"

#include "sim/base/parallel.h"
#include "sim/run/inputs.h"

#include <algorithm>
#include <limits>

namespace cpscope {
namespace {

/// Places of all ids of one side, in packed padded order.
std::vector<TokenPlace> places_of(const BatchSlots& slots, Side side) {
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

Tensor make_input(const Scenario& scenario, InputTensor which, std::string name,
                  const std::vector<TokenPlace>& places, int32_t heads, int32_t lanes,
                  bool poison) {
  Tensor tensor{std::move(name),
                {static_cast<int64_t>(places.size()), heads, lanes},
                scenario.numerics.dtype,
                {}};
  tensor.values.resize(static_cast<size_t>(tensor.size()));
  const int64_t row_size = int64_t{heads} * lanes;
  for_each_index(static_cast<int64_t>(places.size()), [&](int64_t token) {
    double* row = tensor.values.data() + token * row_size;
    if (poison && !places[token].is_valid) {
      std::fill_n(row, row_size, std::numeric_limits<double>::quiet_NaN());
      return;
    }
    for (int32_t head = 0; head < heads; ++head)
      fill_input_row(scenario.numerics, which, places[token], head, row + int64_t{head} * lanes,
                     lanes);
  });
  return tensor;
}

}  // namespace

std::vector<bool> valid_ids(const BatchSlots& slots, Side side) {
  std::vector<bool> valid(static_cast<size_t>(slots.tokens_of(side)), false);
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide slot = sequence.side(side);
    std::fill_n(valid.begin() + slot.valid_begin(), slot.valid, true);
  }
  return valid;
}

RunInputs make_run_inputs(const Scenario& scenario, const BatchSlots& slots, bool poison) {
  const Attention& attention = scenario.attention;
  const std::vector<TokenPlace> q_places = places_of(slots, Side::q),
                                kv_places = places_of(slots, Side::kv);
  RunInputs inputs;
  inputs.slots = slots;
  inputs.q = make_input(scenario, InputTensor::q, "q", q_places, attention.heads,
                        attention.head_dim_qk, poison);
  inputs.k = make_input(scenario, InputTensor::k, "k", kv_places, attention.kv_heads,
                        attention.head_dim_qk, poison);
  inputs.v = make_input(scenario, InputTensor::v, "v", kv_places, attention.kv_heads,
                        attention.head_dim_v, poison);
  if (scenario.numerics.backward) {
    inputs.d_out = make_input(scenario, InputTensor::d_out, "d_out", q_places, attention.heads,
                              attention.head_dim_v, poison);
  }
  if (attention.softmax_type == SoftmaxType::learnable)
    inputs.sink = sink_logits(scenario.numerics, attention.heads);
  return inputs;
}

int64_t run_inputs_bytes(const Scenario& scenario, const BatchSlots& slots) {
  const Attention& attention = scenario.attention;
  const int64_t q_side =
      slots.tokens * attention.heads *
      (attention.head_dim_qk + (scenario.numerics.backward ? attention.head_dim_v : 0));
  const int64_t kv_side =
      slots.kv_tokens * attention.kv_heads * (attention.head_dim_qk + attention.head_dim_v);
  return (q_side + kv_side) * static_cast<int64_t>(sizeof(double));
}

}  // namespace cpscope
