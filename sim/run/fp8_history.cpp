#include "sim/run/fp8_history.h"

#include "sim/run/run_inputs.h"

#include <algorithm>
#include <cmath>

namespace cpscope {
namespace {

/// Sizes of a tensor's valid rows.
struct RowSizes {
  double amax = 0.0;    // largest |element|
  double length = 0.0;  // largest length of one head's row
};

/// Of the first `used` elements of every row.
RowSizes sizes_of(const Tensor& tensor, const BatchSlots& slots, Side side, int64_t used) {
  RowSizes sizes;
  if (tensor.values.empty()) return sizes;
  const int64_t heads = tensor.shape[1], lanes = tensor.shape[2];
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide ids = sequence.side(side);
    for (int64_t row = ids.valid_begin() * heads; row < ids.valid_end() * heads; ++row) {
      double squares = 0;
      for (int64_t i = row * lanes; i < row * lanes + used; ++i) {
        const double value = std::abs(tensor.values[static_cast<size_t>(i)]);
        sizes.amax = std::max(sizes.amax, value);
        squares += value * value;
      }
      sizes.length = std::max(sizes.length, std::sqrt(squares));
    }
  }
  return sizes;
}

}  // namespace

Fp8History history_of(const Scenario& scenario, const RunInputs& inputs) {
  const Attention& attention = scenario.attention;
  const int64_t qk = attention.head_dim_qk, lanes_v = attention.head_dim_v;
  const RowSizes q = sizes_of(inputs.q, inputs.slots, Side::q, qk),
                 k = sizes_of(inputs.k, inputs.slots, Side::kv, qk),
                 v = sizes_of(values_of(inputs), inputs.slots, Side::kv, lanes_v),
                 d_out = sizes_of(inputs.d_out, inputs.slots, Side::q, lanes_v);
  int64_t longest = 1;
  for (const SequenceSlot& sequence : inputs.slots.sequences)
    longest = std::max(longest, sequence.q_valid);
  const double readers =
      std::sqrt(static_cast<double>(longest * (attention.heads / attention.kv_heads)));
  Fp8History history;
  history.qkv = std::max({q.amax, k.amax, v.amax});
  history.d_out = d_out.amax;
  // Dropout enlarges the weights that it keeps.
  const double enlarged = 1 / (1 - attention.dropout);
  history.out = enlarged * v.amax;
  history.d_logits = enlarged * attention.effective_scale() * d_out.length * v.length / 2;
  history.dq = 4 * history.d_logits * k.amax;
  history.dk = history.d_logits * q.amax * readers;
  history.dv = enlarged * d_out.amax * readers;
  // A shared row of K and V has one gradient.
  if (attention.has_v_in_k()) history.dk += history.dv;
  return history;
}

namespace {

/// The number of steps whose tensors have this many values of each kind.
constexpr int64_t kValuesOfHistory = 1024, kMostSteps = 64;

int64_t count_steps(const RunInputs& inputs, const BatchSlots& slots) {
  int64_t q_rows = 0, kv_rows = 0;
  for (const SequenceSlot& sequence : slots.sequences) {
    q_rows += sequence.q_valid;
    kv_rows += sequence.kv_valid;
  }
  int64_t fewest = kValuesOfHistory;
  const auto count = [&](const Tensor& tensor, int64_t rows) {
    if (!tensor.shape.empty()) fewest = std::min(fewest, rows * tensor.shape[1] * tensor.shape[2]);
  };
  count(inputs.q, q_rows), count(inputs.d_out, q_rows);
  count(inputs.k, kv_rows), count(inputs.v, kv_rows);
  return std::min(kMostSteps, (kValuesOfHistory + fewest - 1) / std::max<int64_t>(1, fewest));
}

}  // namespace

Fp8History history_before(const Scenario& scenario, const BatchSlots& slots) {
  if (!scenario.numerics.fp8 || scenario.numerics.fp8->recipe == Fp8Recipe::mxfp8) return {};
  Scenario before = scenario;
  before.numerics.fp8.reset();  // those steps need no history
  before.attention.bias = BiasShape::none;
  Fp8History history;
  for (int64_t step = 0, steps = 1; step < steps; ++step) {
    --before.numerics.seed;
    const RunInputs inputs = make_run_inputs(before, slots, false);
    if (step == 0) steps = count_steps(inputs, slots);
    const Fp8History one = history_of(before, inputs);
    for (double Fp8History::*amax :
         {&Fp8History::qkv, &Fp8History::d_out, &Fp8History::out, &Fp8History::d_logits,
          &Fp8History::dq, &Fp8History::dk, &Fp8History::dv})
      history.*amax = std::max(history.*amax, one.*amax);
  }
  if (scenario.numerics.fp8->recipe == Fp8Recipe::current) history.qkv = history.d_out = 0;
  return history;
}

Fp8History history_of_record(const Scenario& scenario, const RunInputs& inputs) {
  if (!scenario.numerics.fp8 || scenario.numerics.fp8->recipe == Fp8Recipe::mxfp8) return {};
  Fp8History history = history_of(scenario, inputs);
  history.qkv = history.d_out = 0;
  return history;
}

}  // namespace cpscope
