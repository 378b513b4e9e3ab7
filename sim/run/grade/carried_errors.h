#pragma once

// Private to the grade: errors that earlier roundings carry into gradients, beyond those of the
// plain run.

#include "sim/plan/batch_slots.h"
#include "sim/run/dtype.h"
#include "sim/run/grade/tensor_grader.h"
#include "sim/run/judge.h"
#include "sim/scenario/scenario.h"

#include <cstdint>
#include <vector>

namespace cpscope {

/// Of the finite values in the rows of valid tokens: what padding holds must not change a budget. 0
/// if there are none.
double root_mean_square(const BatchSlots& slots, const Tensor& tensor, Side side);

/// Rows of out and lse, for the tokens in `tokens`.
struct ForwardRows {
  const std::vector<int64_t>& tokens;
  const Tensor& out;
  const Tensor& lse;
  // Null if rounding of the answer's own out is not an error.
  const Tensor* plain_out = nullptr;
  const std::vector<double>* terms = nullptr;  // [row] of out
  double plain_rate = 0.0;                     // the plain run's error of out over its lengths
  double logit_error = 0.0;                    // of a weight, from the rounding of a typical logit
};

/// [row of out] Expected error of delta = rowsum(d_out * out), from typical roundings of out and
/// from the errors of the plain run's out, in this row and elsewhere. The gradients of q, k and the
/// sink are differences that contain delta, so this error does not shrink where they cancel.
std::vector<double> delta_errors(const Tensor& d_out, const ForwardRows& rows, Dtype dtype);

/// [row of dq] delta's error times the weighted mean of the keys, which is not longer than a key.
std::vector<double> carry_to_queries(std::vector<double> errors, double key_length);

/// [row of dk] The errors of the deltas of all queries that see a key add up in its row, by their
/// weights. The sum of the squares of these weights follows from dv's terms: they are the weights
/// times d_out.
std::vector<double> carry_to_keys(const std::vector<double>& errors,
                                  const std::vector<double>& dv_terms, const RunInputs& inputs,
                                  const RowPlaces& keys, const Attention& attention,
                                  double query_length);

/// [head] The sink's gradient is the sum of its weight times delta over all rows.
std::vector<double> carry_to_sinks(const std::vector<double>& errors, const RunInputs& inputs,
                                   const Tensor& lse);

}  // namespace cpscope
