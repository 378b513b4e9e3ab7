#pragma once

// Private to the grade: dbias as rows of keys, one for each query of each head and sequence, or of
// all that share it.

#include "sim/plan/batch_slots.h"
#include "sim/run/grade/tensor_grade.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// [sequences or 1, heads or 1, queries, keys] as [rows, 1, keys].
Tensor bias_rows(const Tensor& bias);

/// [row of dbias] Every cell has the error of a delta times a weight: together at most that of the
/// delta. Heads and sequences that share the row add theirs. `errors`: [token, head] of the deltas.
std::vector<double> carry_to_bias(const std::vector<double>& errors, const RunInputs& inputs,
                                  const Attention& attention, const std::vector<int64_t>& shape);

/// Names the first token and head that read a row of dbias, whose number is in `worst.token`.
/// `owners`: [packed padded id of a query].
void name_bias_row(const BatchSlots& slots, const std::vector<int32_t>& owners,
                   const std::vector<int64_t>& shape, WorstPlace& worst);

}  // namespace cpscope
