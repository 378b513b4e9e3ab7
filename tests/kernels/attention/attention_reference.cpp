#include "tests/kernels/attention/attention_reference.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

namespace cpscope::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, int32_t count) {
  double sum = 0.0;
  for (int32_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

struct Logit {
  double value = 0.0;
  double slope = 0.0;  // with respect to q.k
};

Logit logit_of(const AttentionCase& item, const AttentionInputs& inputs, int32_t q, int32_t head,
               int32_t k) {
  const kernels::AttentionShape& shape = item.shape;
  const double scale = shape.scale, cap = shape.softcap;
  const double scaled =
      scale * dot(inputs.q.at(q, head), inputs.k.at(k, item.kv_head(head)), shape.head_dim_qk);
  if (item.alibi.is_on()) return {scaled + item.alibi.term(shape.first_head + head, q, k), scale};
  if (shape.softcap == 0.0f) return {scaled, scale};
  const double bent = std::tanh(scaled / cap);
  return {cap * bent, scale * (1.0 - bent * bent)};
}

double rounded(double value, Precision precision, Dtype dtype) {
  return precision == Precision::plain ? round_to(dtype, value) : value;
}

HostRows draw_rows(int32_t rows, int32_t heads, int32_t dim, double size, Dtype dtype,
                   std::mt19937_64& random) {
  HostRows drawn(rows, heads, dim);
  std::normal_distribution<double> normal(0.0, size);
  for (double& value : drawn.values) value = round_to(dtype, normal(random));
  return drawn;
}

/// Evaluates one row of one head.
void evaluate_row(const AttentionCase& item, const AttentionInputs& inputs, Precision precision,
                  int32_t q, int32_t head, ForwardAnswer& answer) {
  const int32_t kv_head = item.kv_head(head);
  std::vector<int32_t> keys;
  std::vector<double> logits;
  double largest = -kInfinity;
  for (int32_t k = 0; k < item.shape.kv_rows; ++k) {
    if (!item.sees(q, k)) continue;
    keys.push_back(k);
    logits.push_back(logit_of(item, inputs, q, head, k).value);
    largest = std::max(largest, logits.back());
  }
  double& lse = answer.lse[static_cast<size_t>(q) * static_cast<size_t>(item.shape.num_heads) +
                           static_cast<size_t>(head)];
  lse = -kInfinity;
  if (keys.empty()) return;
  double sum = 0.0;
  double* out = answer.out.at(q, head);
  for (size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(logits[i] - largest);
    sum += weight;
    const double used = rounded(weight, precision, item.shape.dtype);
    const double* v = inputs.v.at(keys[i], kv_head);
    for (int32_t lane = 0; lane < item.shape.head_dim_v; ++lane) out[lane] += used * v[lane];
  }
  for (int32_t lane = 0; lane < item.shape.head_dim_v; ++lane) out[lane] /= sum;
  lse = largest + std::log(sum);
  double& max_logit = answer.max_logit[static_cast<size_t>(head)];
  max_logit = std::max(max_logit, largest);
}

}  // namespace

bool AttentionCase::sees(int32_t q, int32_t k) const {
  return std::any_of(slices.begin(), slices.end(), [&](const BandSlice& slice) {
    const int32_t distance = (k - slice.k0) - (q - slice.q0);
    return q >= slice.q0 && q < slice.q1 && k >= slice.k0 && k < slice.k1 && distance >= slice.lo &&
           distance <= slice.hi;
  });
}

bool AttentionCase::query_sees_any(int32_t q) const {
  for (int32_t k = 0; k < shape.kv_rows; ++k) {
    if (sees(q, k)) return true;
  }
  return false;
}

bool AttentionCase::key_is_seen(int32_t k) const {
  for (int32_t q = 0; q < shape.q_rows; ++q) {
    if (sees(q, k)) return true;
  }
  return false;
}

std::string describe(const AttentionCase& item) {
  const kernels::AttentionShape& shape = item.shape;
  std::string text = fmt::format(
      "{} q {} x {} heads from {}, kv {} x {} heads from {}, group {}, dims {}/{}, scale {}, cap "
      "{}{}, seed {}\n",
      shape.dtype == Dtype::bf16 ? "bf16" : (shape.dtype == Dtype::fp16 ? "fp16" : "fp32"),
      shape.q_rows, shape.num_heads, shape.first_head, shape.kv_rows, shape.num_kv_heads,
      shape.first_kv_head, shape.group, shape.head_dim_qk, shape.head_dim_v, shape.scale,
      shape.softcap, item.alibi.is_on() ? ", ALiBi" : "", item.seed);
  for (const BandSlice& s : item.slices)
    text +=
        fmt::format("  q [{}, {}) k [{}, {}) lo {} hi {}\n", s.q0, s.q1, s.k0, s.k1, s.lo, s.hi);
  return text;
}

void take_values_of_keys(AttentionInputs& inputs) {
  for (int32_t row = 0; row < inputs.k.num_rows; ++row)
    std::copy_n(inputs.k.at(row, 0), inputs.v.head_dim, inputs.v.at(row, 0));
}

AttentionInputs draw_inputs(const AttentionCase& item, double sharpness) {
  std::mt19937_64 random(item.seed);
  const kernels::AttentionShape& shape = item.shape;
  AttentionInputs inputs;
  inputs.q =
      draw_rows(shape.q_rows, shape.num_heads, shape.head_dim_qk, sharpness, shape.dtype, random);
  inputs.k =
      draw_rows(shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk, 1.0, shape.dtype, random);
  inputs.v =
      draw_rows(shape.kv_rows, shape.num_kv_heads, shape.head_dim_v, 1.0, shape.dtype, random);
  if (shape.is_latent) take_values_of_keys(inputs);
  inputs.d_out =
      draw_rows(shape.q_rows, shape.num_heads, shape.head_dim_v, 1.0, shape.dtype, random);
  return inputs;
}

ForwardAnswer evaluate_forward(const AttentionCase& item, const AttentionInputs& inputs,
                               Precision precision) {
  const kernels::AttentionShape& shape = item.shape;
  ForwardAnswer answer{
      HostRows(shape.q_rows, shape.num_heads, shape.head_dim_v),
      std::vector<double>(static_cast<size_t>(shape.q_rows) * static_cast<size_t>(shape.num_heads)),
      std::vector<double>(static_cast<size_t>(shape.num_heads), -kInfinity)};
  for (int32_t q = 0; q < shape.q_rows; ++q) {
    for (int32_t head = 0; head < shape.num_heads; ++head)
      evaluate_row(item, inputs, precision, q, head, answer);
  }
  return answer;
}

BackwardAnswer evaluate_backward(const AttentionCase& item, const AttentionInputs& inputs,
                                 const ForwardAnswer& forward, Precision precision) {
  const kernels::AttentionShape& shape = item.shape;
  const std::vector<double> delta = evaluate_delta(inputs, forward);
  BackwardAnswer answer{HostRows(shape.q_rows, shape.num_heads, shape.head_dim_qk),
                        HostRows(shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk),
                        HostRows(shape.kv_rows, shape.num_kv_heads, shape.head_dim_v)};
  for (int32_t q = 0; q < shape.q_rows; ++q) {
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      const size_t place =
          static_cast<size_t>(q) * static_cast<size_t>(shape.num_heads) + static_cast<size_t>(head);
      const int32_t kv_head = item.kv_head(head);
      const double* d_out = inputs.d_out.at(q, head);
      for (int32_t k = 0; k < shape.kv_rows; ++k) {
        if (!item.sees(q, k)) continue;
        const Logit logit = logit_of(item, inputs, q, head, k);
        const double weight = std::exp(logit.value - forward.lse[place]);
        const double d_weight = dot(d_out, inputs.v.at(k, kv_head), shape.head_dim_v);
        const double used_weight = rounded(weight, precision, shape.dtype);
        // The kernels multiply by the scale at the end.
        const double d_product =
            rounded(weight * (d_weight - delta[place]) * logit.slope / shape.scale, precision,
                    shape.dtype) *
            shape.scale;
        for (int32_t lane = 0; lane < shape.head_dim_v; ++lane)
          answer.dv.at(k, kv_head)[lane] += used_weight * d_out[lane];
        for (int32_t lane = 0; lane < shape.head_dim_qk; ++lane) {
          answer.dq.at(q, head)[lane] += d_product * inputs.k.at(k, kv_head)[lane];
          answer.dk.at(k, kv_head)[lane] += d_product * inputs.q.at(q, head)[lane];
        }
      }
    }
  }
  return answer;
}

std::vector<double> evaluate_delta(const AttentionInputs& inputs, const ForwardAnswer& forward) {
  std::vector<double> delta(forward.lse.size(), 0.0);
  for (size_t i = 0; i < delta.size(); ++i) {
    if (forward.lse[i] == -kInfinity) continue;
    const size_t dim = static_cast<size_t>(forward.out.head_dim);
    delta[i] = dot(inputs.d_out.values.data() + i * dim, forward.out.values.data() + i * dim,
                   forward.out.head_dim);
  }
  return delta;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0.0 : std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const bool is_same_infinity = std::isinf(a[i]) && std::isinf(b[i]) && (a[i] > 0) == (b[i] > 0);
    const double difference = is_same_infinity ? 0.0 : std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace cpscope::tests
