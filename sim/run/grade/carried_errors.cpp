#include "sim/run/grade/carried_errors.h"

#include <cmath>

namespace cpscope {

double root_mean_square(const BatchSlots& slots, const Tensor& tensor, Side side) {
  if (tensor.values.empty()) return 0.0;
  const size_t width = tensor.values.size() / static_cast<size_t>(slots.tokens_of(side));
  double sum = 0;
  int64_t count = 0;
  for (const SequenceSlot& sequence : slots.sequences) {
    const SlotSide ids = sequence.side(side);
    for (size_t i = static_cast<size_t>(ids.valid_begin()) * width;
         i < static_cast<size_t>(ids.valid_end()) * width; ++i) {
      if (!std::isfinite(tensor.values[i])) continue;
      sum += tensor.values[i] * tensor.values[i];
      ++count;
    }
  }
  return count == 0 ? 0.0 : std::sqrt(sum / static_cast<double>(count));
}

std::vector<double> delta_errors(const Tensor& d_out, const ForwardRows& rows, Dtype dtype) {
  const int64_t heads = rows.out.shape[1], lanes = rows.out.shape[2];
  std::vector<double> errors(rows.lse.values.size(), 0.0);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!std::isfinite(rows.lse.values[row])) continue;  // d_out may be NaN here
    const size_t at = row * static_cast<size_t>(lanes);
    const int64_t token = rows.tokens[row / static_cast<size_t>(heads)],
                  head = static_cast<int64_t>(row) % heads;
    const double* given = d_out.values.data() + (token * heads + head) * lanes;
    const double* out = rows.out.values.data() + at;
    // A row with a small error by chance in the plain run may have the error of other rows.
    const double elsewhere = rows.terms == nullptr
                                 ? 0.0
                                 : rows.plain_rate *
                                       std::hypot((*rows.terms)[row], row_norm(out, lanes)) /
                                       std::sqrt(static_cast<double>(lanes));
    double sum = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const double here = rows.plain_out == nullptr
                              ? 0.0
                              : rows.plain_out->values[at + static_cast<size_t>(lane)] - out[lane];
      const double rounding = std::hypot(typical_rounding(dtype), rows.logit_error) * out[lane];
      const double error = std::hypot(rounding, here, elsewhere);
      sum += std::pow(given[lane] * error, 2);
    }
    if (std::isfinite(sum)) errors[row] = std::sqrt(sum);
  }
  return errors;
}

std::vector<double> carry_to_queries(std::vector<double> errors, double key_length) {
  for (double& error : errors) error *= key_length;
  return errors;
}

std::vector<double> carry_to_keys(const std::vector<double>& errors,
                                  const std::vector<double>& dv_terms, const RunInputs& inputs,
                                  const RowPlaces& keys, const Attention& attention,
                                  double query_length) {
  const int64_t kv_heads = attention.kv_heads, group = attention.heads / kv_heads;
  const double d_out = root_mean_square(inputs.slots, inputs.d_out, Side::q) *
                       std::sqrt(static_cast<double>(attention.head_dim_v));
  const std::vector<SequenceSlot>& sequences = inputs.slots.sequences;
  // [sequence, KV head] the typical error of a delta
  std::vector<double> typical(sequences.size() * static_cast<size_t>(kv_heads), 0.0);
  for (size_t place = 0; place < typical.size(); ++place) {
    const SequenceSlot& slot = sequences[place / static_cast<size_t>(kv_heads)];
    const int64_t kv_head = static_cast<int64_t>(place) % kv_heads;
    double sum = 0;
    int64_t count = 0;
    const SlotSide ids = slot.side(Side::q);
    for (int64_t query = ids.valid_begin(); query < ids.valid_end(); ++query) {
      for (int64_t member = 0; member < group; ++member) {
        const double error = errors[query * attention.heads + kv_head * group + member];
        sum += error * error;
        count += error > 0 ? 1 : 0;
      }
    }
    if (count > 0) typical[place] = std::sqrt(sum / static_cast<double>(count));
  }
  std::vector<double> carried(dv_terms.size(), 0.0);
  for (size_t row = 0; d_out > 0 && row < carried.size(); ++row) {
    const int32_t sequence = keys.sequences[row / static_cast<size_t>(kv_heads)];
    if (sequence < 0) continue;
    const size_t place = static_cast<size_t>(sequence) * static_cast<size_t>(kv_heads) +
                         row % static_cast<size_t>(kv_heads);
    carried[row] = typical[place] * query_length * dv_terms[row] / d_out;
  }
  return carried;
}

std::vector<double> carry_to_sinks(const std::vector<double>& errors, const RunInputs& inputs,
                                   const Tensor& lse) {
  const size_t heads = inputs.sink.size();
  std::vector<double> carried(heads, 0.0);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!std::isfinite(lse.values[row])) continue;
    const double weight = std::exp(inputs.sink[row % heads] - lse.values[row]);
    carried[row % heads] += std::pow(weight * errors[row], 2);
  }
  for (double& value : carried) value = std::sqrt(value);
  return carried;
}

}  // namespace cpscope
