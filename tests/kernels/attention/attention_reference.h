#pragma once

#include "kernels/dispatch/attention_dispatch.h"
#include "sim/plan/band.h"
#include "tests/kernels/attention/alibi_case.h"

#include <cstdint>
#include <string>
#include <vector>

/// One compute item evaluated densely in fp64 from its bands: the reference for the attention
/// kernels. Does not use tiles or ranges.
namespace cpscope::tests {

/// Rows of several heads on the host.
struct HostRows {
  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  std::vector<double> values;  // [row][head][element]

  HostRows() = default;
  HostRows(int32_t rows, int32_t heads, int32_t dim)
      : num_rows(rows),
        num_heads(heads),
        head_dim(dim),
        values(static_cast<size_t>(rows) * static_cast<size_t>(heads) * static_cast<size_t>(dim)) {}

  double* at(int32_t row, int32_t head) {
    return values.data() + (int64_t{row} * num_heads + head) * head_dim;
  }
  const double* at(int32_t row, int32_t head) const {
    return values.data() + (int64_t{row} * num_heads + head) * head_dim;
  }
};

/// A compute item: its shape and its visible pairs.
struct AttentionCase {
  kernels::AttentionShape shape;
  std::vector<BandSlice> slices;
  uint64_t seed = 0;  // of its inputs
  AlibiCase alibi = {};

  bool sees(int32_t q, int32_t k) const;
  bool query_sees_any(int32_t q) const;
  bool key_is_seen(int32_t k) const;
  int32_t kv_head(int32_t head) const {
    return (shape.first_head + head) / shape.group - shape.first_kv_head;
  }
};

/// For messages: shape, bands, seed.
std::string describe(const AttentionCase& item);

/// Inputs, rounded to the case's dtype.
struct AttentionInputs {
  HostRows q, k, v, d_out;
};

/// Normally distributed numbers; q is `sharpness` times larger, which makes some weights dominate.
AttentionInputs draw_inputs(const AttentionCase& item, double sharpness = 1.0);

/// Makes v the first elements of k, as latent attention has it.
void take_values_of_keys(AttentionInputs& inputs);

enum class Precision {
  exact,  // fp64 throughout
  plain   // weights and gradients of logits are rounded to the dtype before products
};

/// out is 0 and lse -inf for rows without a visible key; max_logit is -inf if no row sees a key.
struct ForwardAnswer {
  HostRows out;
  std::vector<double> lse;        // [row][head] natural log
  std::vector<double> max_logit;  // [head]
};

ForwardAnswer evaluate_forward(const AttentionCase& item, const AttentionInputs& inputs,
                               Precision precision);

struct BackwardAnswer {
  HostRows dq, dk, dv;
};

/// Gradients for `forward`, the answer of the whole row (exact, even if `precision` is plain).
BackwardAnswer evaluate_backward(const AttentionCase& item, const AttentionInputs& inputs,
                                 const ForwardAnswer& forward, Precision precision);

/// rowsum(d_out * out), 0 for rows without a visible key: [row][head].
std::vector<double> evaluate_delta(const AttentionInputs& inputs, const ForwardAnswer& forward);

/// Largest |a - b|; NaN if either holds one. Equal infinities differ by 0.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);
double largest_magnitude(const std::vector<double>& values);

}  // namespace cpscope::tests
