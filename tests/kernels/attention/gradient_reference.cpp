#include "tests/kernels/attention/gradient_reference.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace cpscope::kernels {
namespace {

bool is_visible(const std::vector<BandSlice>& slices, int32_t q, int32_t k) {
  return std::any_of(slices.begin(), slices.end(), [&](const BandSlice& s) {
    const int32_t offset = (k - s.k0) - (q - s.q0);
    return q >= s.q0 && q < s.q1 && k >= s.k0 && k < s.k1 && offset >= s.lo && offset <= s.hi;
  });
}

int32_t kv_head_of(const AttentionShape& shape, int32_t head) {
  return (shape.first_head + head) / shape.group - shape.first_kv_head;
}

/// Index of the first element of a row of one head.
size_t at(int32_t row, int32_t num_heads, int32_t head, int32_t head_dim) {
  return (static_cast<size_t>(row) * num_heads + head) * head_dim;
}

double dot_from(const std::vector<double>& a, size_t a_begin, const std::vector<double>& b,
                size_t b_begin, int32_t lanes) {
  double sum = 0.0;
  for (int32_t i = 0; i < lanes; ++i) sum += a[a_begin + i] * b[b_begin + i];
  return sum;
}

struct CappedLogit {
  double logit = 0.0;
  double slope = 1.0;
};

CappedLogit capped_logit_of(const GradientProblem& problem, int32_t q, int32_t head, int32_t k) {
  const AttentionShape& shape = problem.shape;
  const double raw =
      shape.scale * dot_from(problem.q, at(q, shape.num_heads, head, shape.head_dim_qk), problem.k,
                             at(k, shape.num_kv_heads, kv_head_of(shape, head), shape.head_dim_qk),
                             shape.head_dim_qk);
  if (problem.alibi.is_on()) return {raw + problem.alibi.term(shape.first_head + head, q, k), 1.0};
  if (shape.softcap == 0.0f) return {raw, 1.0};
  const double t = std::tanh(raw / shape.softcap);
  return {shape.softcap * t, 1.0 - t * t};
}

/// to += weight * row, and the budget by the error of the weight.
void add_row(double weight, double weight_error, const std::vector<double>& row, size_t row_begin,
             int32_t lanes, ExactGradient& to, size_t to_begin) {
  for (int32_t i = 0; i < lanes; ++i) {
    to.value[to_begin + i] += weight * row[row_begin + i];
    to.budget[to_begin + i] += weight_error * std::abs(row[row_begin + i]);
  }
}

void add_pair(const GradientProblem& problem, int32_t head, int32_t q, int32_t k,
              ExactGradients& exact) {
  const AttentionShape& shape = problem.shape;
  const int32_t kv_head = kv_head_of(shape, head);
  const int32_t qk = shape.head_dim_qk, v = shape.head_dim_v;
  const size_t q_at = at(q, shape.num_heads, head, qk),
               k_at = at(k, shape.num_kv_heads, kv_head, qk);
  const size_t o_at = at(q, shape.num_heads, head, v), v_at = at(k, shape.num_kv_heads, kv_head, v);
  const size_t statistic = static_cast<size_t>(head) * shape.q_rows + q;
  const CappedLogit capped = capped_logit_of(problem, q, head, k);
  const double p = std::exp(capped.logit - problem.log2_lse[statistic] * std::log(2.0));
  const double d_p = dot_from(problem.d_out, o_at, problem.v, v_at, v);
  const double unscaled = p * (d_p - problem.delta[statistic]) * capped.slope;
  // Half a step of the dtype, subnormal ones of fp16 included, and a few of fp32 in each factor.
  const double step = shape.dtype == Dtype::fp32 ? 0.0 : unit_roundoff(shape.dtype);
  const double subnormal_step = shape.dtype == Dtype::fp16 ? std::ldexp(1.0, -25) : 1e-30;
  const double fp32_error = 1e-6 * (4.0 + std::abs(capped.logit) + shape.softcap) * p;
  const double p_error = step * p + subnormal_step + fp32_error;
  const double d_s_error = step * std::abs(unscaled) + subnormal_step +
                           fp32_error * (4.0 + std::abs(d_p) + std::abs(problem.delta[statistic]));
  add_row(p, p_error, problem.d_out, o_at, v, exact.dv, v_at);
  add_row(unscaled * shape.scale, d_s_error * std::abs(shape.scale), problem.k, k_at, qk, exact.dq,
          q_at);
  // Latent kernels round dS times the scale: dk is one sum, also of P dO.
  const double scaled_error =
      d_s_error * std::abs(shape.scale) + (shape.is_latent ? subnormal_step : 0.0);
  add_row(unscaled * shape.scale, scaled_error, problem.q, q_at, qk, exact.dk, k_at);
}

/// Copies the first elements of each row of k to v.
void take_values_of_keys(GradientProblem& problem) {
  const auto qk = static_cast<size_t>(problem.shape.head_dim_qk),
             v = static_cast<size_t>(problem.shape.head_dim_v);
  for (size_t row = 0; row * qk < problem.k.size(); ++row)
    std::copy_n(problem.k.begin() + static_cast<std::ptrdiff_t>(row * qk), v,
                problem.v.begin() + static_cast<std::ptrdiff_t>(row * v));
}

/// Adds dv to the first elements of dk.
void join_gradients(const AttentionShape& shape, ExactGradients& exact) {
  const auto qk = static_cast<size_t>(shape.head_dim_qk), v = static_cast<size_t>(shape.head_dim_v);
  for (size_t i = 0; i < exact.dv.value.size(); ++i) {
    const size_t to = i / v * qk + i % v;
    exact.dk.value[to] += exact.dv.value[i];
    exact.dk.budget[to] += exact.dv.budget[i];
  }
  exact.dv = {};
}

}  // namespace

std::vector<BandSlice> random_bands(int32_t q_rows, int32_t kv_rows, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(std::max(1, n)));
  };
  std::vector<BandSlice> slices;
  const int32_t row_cuts = below(3) + 1, column_cuts = below(3) + 1;
  for (int32_t i = 0; i < row_cuts; ++i) {
    for (int32_t j = 0; j < column_cuts; ++j) {
      BandSlice slice{q_rows * i / row_cuts,     q_rows * (i + 1) / row_cuts,
                      kv_rows * j / column_cuts, kv_rows * (j + 1) / column_cuts,
                      -q_rows - kv_rows,         q_rows + kv_rows};
      slice.q0 += below((slice.q1 - slice.q0) / 4);  // padding between the blocks
      slice.k0 += below((slice.k1 - slice.k0) / 4);
      if (below(3) > 0) slice.hi = below(kv_rows) - kv_rows / 4;
      if (below(3) == 0) slice.lo = slice.hi - below(kv_rows);
      if (below(6) > 0 || slices.empty()) slices.push_back(slice);
    }
  }
  return slices;
}

GradientProblem make_gradient_problem(const AttentionShape& shape, std::vector<BandSlice> slices,
                                      uint32_t seed, const tests::AlibiCase& alibi) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  GradientProblem problem{shape, std::move(slices), {}, {}, {}, {}, {}, {}, alibi};
  const auto fill = [&](std::vector<double>& to, int32_t rows, int32_t heads, int32_t head_dim) {
    to.resize(static_cast<size_t>(rows) * heads * head_dim);
    for (double& value : to) value = round_to(shape.dtype, normal(random));
  };
  fill(problem.q, shape.q_rows, shape.num_heads, shape.head_dim_qk);
  fill(problem.k, shape.kv_rows, shape.num_kv_heads, shape.head_dim_qk);
  fill(problem.v, shape.kv_rows, shape.num_kv_heads, shape.head_dim_v);
  if (shape.is_latent) take_values_of_keys(problem);
  fill(problem.d_out, shape.q_rows, shape.num_heads, shape.head_dim_v);
  const size_t num_statistics = static_cast<size_t>(shape.num_heads) * shape.q_rows;
  problem.log2_lse.resize(num_statistics);
  problem.delta.resize(num_statistics);
  for (int32_t head = 0; head < shape.num_heads; ++head) {
    for (int32_t q = 0; q < shape.q_rows; ++q) {
      double sum = 0.0;
      for (int32_t k = 0; k < shape.kv_rows; ++k) {
        if (is_visible(problem.slices, q, k))
          sum += std::exp(capped_logit_of(problem, q, head, k).logit);
      }
      // Some rows have seen keys elsewhere too, some only elsewhere, some none at all.
      if (random() % 2 == 0) sum += std::abs(normal(random)) + 0.1;
      const size_t statistic = static_cast<size_t>(head) * shape.q_rows + q;
      problem.log2_lse[statistic] =
          sum > 0.0 ? static_cast<float>(std::log2(sum)) : std::numeric_limits<double>::infinity();
      problem.delta[statistic] = sum > 0.0 ? static_cast<float>(normal(random)) : 0.0;
    }
  }
  return problem;
}

ExactGradients solve(const GradientProblem& problem) {
  const AttentionShape& shape = problem.shape;
  ExactGradients exact;
  const auto start = [](const std::vector<double>& like) {
    return ExactGradient{std::vector<double>(like.size(), 0.0),
                         std::vector<double>(like.size(), 0.0)};
  };
  exact.dq = start(problem.q);
  exact.dk = start(problem.k);
  exact.dv = start(problem.v);
  exact.q_row_sees.assign(static_cast<size_t>(shape.q_rows), false);
  exact.k_row_seen.assign(static_cast<size_t>(shape.kv_rows), false);
  for (int32_t q = 0; q < shape.q_rows; ++q) {
    for (int32_t k = 0; k < shape.kv_rows; ++k) {
      if (!is_visible(problem.slices, q, k)) continue;
      exact.q_row_sees[q] = exact.k_row_seen[k] = true;
      for (int32_t head = 0; head < shape.num_heads; ++head) add_pair(problem, head, q, k, exact);
    }
  }
  if (shape.is_latent) join_gradients(shape, exact);
  return exact;
}

}  // namespace cpscope::kernels
