#include "sim/run/grade/bias_rows.h"

#include <cmath>

namespace cpscope {

Tensor bias_rows(const Tensor& bias) {
  if (bias.shape.size() != 4) return bias;
  Tensor rows = bias;
  rows.shape = {bias.shape[0] * bias.shape[1] * bias.shape[2], 1, bias.shape[3]};
  return rows;
}

std::vector<double> carry_to_bias(const std::vector<double>& errors, const RunInputs& inputs,
                                  const Attention& attention, const std::vector<int64_t>& shape) {
  std::vector<double> carried(static_cast<size_t>(shape[0] * shape[1] * shape[2]), 0.0);
  for (size_t sequence = 0; sequence < inputs.slots.sequences.size(); ++sequence) {
    const SlotSide ids = inputs.slots.sequences[sequence].side(Side::q);
    for (int64_t query = 0; query < ids.valid; ++query) {
      for (int64_t head = 0; head < attention.heads; ++head) {
        const int64_t plane =
            (static_cast<int64_t>(sequence) % shape[0]) * shape[1] + head % shape[1];
        const double error =
            errors[static_cast<size_t>((ids.valid_begin() + query) * attention.heads + head)];
        carried[static_cast<size_t>(plane * shape[2] + query)] += error * error;
      }
    }
  }
  for (double& value : carried) value = std::sqrt(value);
  return carried;
}

void name_bias_row(const BatchSlots& slots, const std::vector<int32_t>& owners,
                   const std::vector<int64_t>& shape, WorstPlace& worst) {
  const int64_t query = worst.token % shape[2], plane = worst.token / shape[2];
  worst.head = static_cast<int32_t>(plane % shape[1]);
  for (auto sequence = static_cast<size_t>(plane / shape[1]); sequence < slots.sequences.size();
       ++sequence) {
    const SlotSide ids = slots.sequences[sequence].side(Side::q);
    if (query >= ids.valid) continue;
    worst.token = ids.valid_begin() + query;
    worst.rank = owners[static_cast<size_t>(worst.token)];
    return;
  }
}

}  // namespace cpscope
