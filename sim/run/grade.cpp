#include "sim/run/grade.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope {
namespace {

constexpr double kRowTolerance = 6.0;

/// Roundings of the accumulator that no plain run can be asked to show: fp32, or fp64 where
/// everything is fp64.
double accumulator_floor(Dtype dtype) {
  return dtype == Dtype::fp64 ? 1e-13 : 8 * unit_roundoff(Dtype::fp32);
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  int64_t count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;  // poison in padding
    sum += value * value;
    ++count;
  }
  return count == 0 ? 0.0 : std::sqrt(sum / static_cast<double>(count));
}

/// Error of one row against the exact one; infinity where one side is -inf and the other is not.
double row_error(const double* seen, const double* exact, int64_t lanes) {
  double sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if (seen[lane] == exact[lane]) continue;
    const double difference = seen[lane] - exact[lane];
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

double row_norm(const double* row, int64_t lanes) {
  double sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane)
    sum += std::isfinite(row[lane]) ? row[lane] * row[lane] : 0.0;
  return std::sqrt(sum);
}

struct Owners {
  std::vector<int32_t> q, kv;  // [packed padded id] rank

  explicit Owners(const Plan& plan)
      : q(static_cast<size_t>(plan.layout.slots.tokens)),
        kv(static_cast<size_t>(plan.layout.slots.kv_tokens)) {
    for (int32_t r = 0; r < plan.layout.cp_size; ++r) {
      for (const TokenRun& run : plan.list(plan.q_lists[r])) {
        for (int64_t token = run.begin; token < run.end; token += run.stride) q[token] = r;
      }
      for (const TokenRun& run : plan.list(plan.kv_lists[r])) {
        for (int64_t token = run.begin; token < run.end; token += run.stride) kv[token] = r;
      }
    }
  }
};

/// One tensor of the three sides.
struct Compared {
  std::string name;
  const Tensor& seen;
  const Tensor& exact;
  const Tensor& plain;
  double magnitude;  // natural size of an element, for the absolute floor
  Dtype rounded_to;  // what the answer's values are rounded to
  double row_share;  // how much of the tensor's rms row counts as a row's size: scalars near zero
                     // have none of their own
  std::vector<int32_t> owner;
};

class Grader {
 public:
  Grader(const Plan& plan, const RunInputs& inputs)
      : plan_(plan), inputs_(inputs), floor_(accumulator_floor(plan.scenario.numerics.dtype)) {}

  TensorGrade grade(const Compared& sides) const {
    TensorGrade grade;
    grade.name = sides.name;
    grade.worst.step = std::max(0, plan_.forward.num_steps - 1);
    if (sides.seen.shape != sides.exact.shape) {
      grade.passed = false;
      grade.rel_l2 = std::numeric_limits<double>::infinity();
      return grade;
    }
    const int64_t heads = sides.exact.shape[1];
    const int64_t lanes = sides.exact.shape.size() > 2 ? sides.exact.shape[2] : 1;
    const int64_t rows = sides.exact.size() / std::max<int64_t>(1, lanes);
    const Sums sums = sum_up(sides, rows, lanes);
    const double floor = floor_ * sides.magnitude;
    // A handful of values has no statistics: there one rounding of the dtype may decide.
    const double scarcity = std::min(
        1.0, 8.0 / std::sqrt(std::max(1.0, static_cast<double>(sums.nonzero_rows * lanes))));
    const double allowed = 2 * sums.plain_error +
                           floor * std::sqrt(static_cast<double>(sides.exact.size())) +
                           scarcity * unit_roundoff(sides.rounded_to) * sums.norm;
    grade.nan = sums.nan;
    grade.rel_l2 = ratio(sums.error, sums.norm);
    grade.budget = ratio(allowed, sums.norm);
    grade.passed = sums.nan == 0 && sums.error <= allowed;
    find_worst_row(sides, sums, rows, heads, lanes, floor, grade);
    return grade;
  }

 private:
  struct Sums {
    double error = 0, plain_error = 0, norm = 0;  // L2 over the tensor
    int64_t nan = 0;
    int64_t nonzero_rows = 0;
  };

  static double ratio(double error, double norm) {
    if (norm > 0) return error / norm;
    return error == 0 ? 0.0 : std::numeric_limits<double>::infinity();
  }

  static Sums sum_up(const Compared& sides, int64_t rows, int64_t lanes) {
    Sums sums;
    for (int64_t row = 0; row < rows; ++row) {
      const double *seen = sides.seen.values.data() + row * lanes,
                   *exact = sides.exact.values.data() + row * lanes;
      const double error = row_error(seen, exact, lanes), norm = row_norm(exact, lanes);
      const double plain_error = row_error(sides.plain.values.data() + row * lanes, exact, lanes);
      sums.error += error * error;
      sums.norm += norm * norm;
      sums.nonzero_rows += norm > 0 ? 1 : 0;
      sums.plain_error += std::isfinite(plain_error) ? plain_error * plain_error : 0.0;
      sums.nan += std::count_if(seen, seen + lanes, [](double value) { return std::isnan(value); });
    }
    sums.error = std::sqrt(sums.error);
    sums.norm = std::sqrt(sums.norm);
    sums.plain_error = std::sqrt(sums.plain_error);
    return sums;
  }

  void find_worst_row(const Compared& sides, const Sums& sums, int64_t rows, int64_t heads,
                      int64_t lanes, double floor, TensorGrade& grade) const {
    const double plain_rel = sums.norm > 0 ? sums.plain_error / sums.norm : 0.0;
    const double rms_row = rows > 0 ? sums.norm / std::sqrt(static_cast<double>(rows)) : 0.0;
    double worst_excess = -1;
    for (int64_t row = 0; row < rows; ++row) {
      const double *seen = sides.seen.values.data() + row * lanes,
                   *exact = sides.exact.values.data() + row * lanes;
      const double error = row_error(seen, exact, lanes), norm = row_norm(exact, lanes);
      const double plain_error = row_error(sides.plain.values.data() + row * lanes, exact, lanes);
      const double explained = (std::isfinite(plain_error) ? plain_error : 0.0) +
                               plain_rel * (norm + sides.row_share * rms_row) +
                               floor * std::sqrt(static_cast<double>(lanes));
      // A row that should be zero has no relative error; its absolute one is in max_abs.
      if (error > 0 && (norm > 0 || !std::isfinite(error))) {
        grade.worst_row_rel_l2 = std::max(grade.worst_row_rel_l2, ratio(error, norm));
      }
      if (error > kRowTolerance * explained) grade.passed = grade.rows_passed = false;
      const double excess = explained > 0
                                ? error / explained
                                : (error > 0 ? std::numeric_limits<double>::infinity() : 0.0);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const double difference = std::abs(seen[lane] - exact[lane]);
        if (seen[lane] != exact[lane] && !(difference <= grade.max_abs)) grade.max_abs = difference;
      }
      if (excess <= worst_excess && !std::isnan(excess)) continue;
      worst_excess = excess;
      name_worst(sides, row, heads, lanes, grade);
    }
  }

  static void name_worst(const Compared& sides, int64_t row, int64_t heads, int64_t lanes,
                         TensorGrade& grade) {
    grade.worst.token = row / heads;
    grade.worst.head = static_cast<int32_t>(row % heads);
    grade.worst.rank = sides.owner.empty() ? 0 : sides.owner[row / heads];
    double furthest = -1;
    for (int64_t i = row * lanes; i < (row + 1) * lanes; ++i) {
      const double difference = std::abs(sides.seen.values[i] - sides.exact.values[i]);
      if (sides.seen.values[i] != sides.exact.values[i] && !(difference <= furthest)) {
        furthest = difference;
        grade.worst.expected = sides.exact.values[i];
        grade.worst.seen = sides.seen.values[i];
      } else if (furthest < 0) {
        grade.worst.expected = sides.exact.values[i];
        grade.worst.seen = sides.seen.values[i];
      }
    }
  }

  const Plan& plan_;
  const RunInputs& inputs_;
  double floor_;
};

Tensor by_head(const char* name, const std::vector<double>& values) {
  return {name, {1, static_cast<int64_t>(values.size())}, Dtype::fp64, values};
}

/// How far d_sink may drift when every row's rowsum(d_out * out) errs by the plain run's relative
/// error of out: a sum of few heads has no statistics of its own.
double sink_gradient_scale(const RunInputs& inputs, const Answer& exact) {
  if (exact.d_sink.empty()) return 0.0;
  const int64_t heads = exact.out.shape[1], lanes = exact.out.shape[2];
  double largest = 0;
  std::vector<double> squares(static_cast<size_t>(heads), 0.0);
  for (int64_t row = 0; row < exact.lse.size(); ++row) {
    if (!std::isfinite(exact.lse.values[row])) continue;
    const double weight = std::exp(inputs.sink[row % heads] - exact.lse.values[row]);
    const double size = weight * row_norm(exact.out.values.data() + row * lanes, lanes) *
                        row_norm(inputs.d_out.values.data() + row * lanes, lanes);
    squares[row % heads] += size * size;
  }
  for (const double square : squares) largest = std::max(largest, std::sqrt(square));
  return largest;
}

}  // namespace

Hops count_hops(const Plan& plan) {
  std::vector<int32_t> partials(plan.buffers.size(), 0), shares(plan.buffers.size(), 0);
  for (const MergeItem& item : plan.forward.merges) ++partials[to_index(item.into)];
  // A share that travels on is summed hop by hop: what counts is how often one row is added to on
  // its way.
  for (const MergeItem& item : plan.backward.merges) {
    if (plan.buffer(item.into).kind == BufferKind::dkv)
      shares[to_index(item.into)] = std::max(shares[to_index(item.into)], item.order + 1);
  }
  for (const TransferItem& item : plan.backward.transfers) {
    if (item.payload == Payload::dkv && item.landing == Landing::add) ++shares[to_index(item.to)];
  }
  Hops hops;
  for (const int32_t count : partials) hops.partials = std::max(hops.partials, count);
  for (const int32_t count : shares) hops.shares = std::max(hops.shares, count);
  return hops;
}

Grade grade_answer(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                   const Verdict& verdict) {
  const Attention& attention = plan.scenario.attention;
  const Owners owners(plan);
  const Grader grader(plan, inputs);
  const double v = root_mean_square(inputs.v.values), k = root_mean_square(inputs.k.values),
               q = root_mean_square(inputs.q.values);
  const double logit = attention.effective_scale() * q * k * attention.head_dim_qk;
  Grade grade;
  const auto add = [&](const char* name, const Tensor& seen, const Tensor& exact,
                       const Tensor& plain, double magnitude, Dtype rounded_to, double row_share,
                       const std::vector<int32_t>& owner) {
    grade.tensors.push_back(
        grader.grade({name, seen, exact, plain, magnitude, rounded_to, row_share, owner}));
  };
  const Dtype dtype = plan.scenario.numerics.dtype;
  // Statistics are never rounded to the dtype.
  const Dtype unrounded = dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  // Rows of few lanes cancel to almost nothing now and then, as scalars do.
  const double out_share = attention.head_dim_v < 8 ? 1.0 : 0.1;
  add("out", answer.out, verdict.exact.out, verdict.plain.out, v, dtype, out_share, owners.q);
  add("lse", answer.lse, verdict.exact.lse, verdict.plain.lse, 1 + logit, unrounded, 1.0, owners.q);
  add("max_logit", by_head("max_logit", answer.max_logit),
      by_head("max_logit", verdict.exact.max_logit), by_head("max_logit", verdict.plain.max_logit),
      1 + logit, unrounded, 1.0, {});
  if (plan.scenario.numerics.backward) {
    const double d_out = root_mean_square(inputs.d_out.values);
    const double slope = d_out * v * std::sqrt(static_cast<double>(attention.head_dim_v)) *
                         attention.effective_scale();
    add("dq", answer.dq, verdict.exact.dq, verdict.plain.dq, slope * k, dtype, 1.0, owners.q);
    add("dk", answer.dk, verdict.exact.dk, verdict.plain.dk, slope * q, dtype, 1.0, owners.kv);
    add("dv", answer.dv, verdict.exact.dv, verdict.plain.dv, d_out, dtype, 1.0, owners.kv);
    if (!verdict.exact.d_sink.empty()) {
      const double out_budget = grade.tensors.front().budget;
      const double drift =
          std::isfinite(out_budget) ? out_budget * sink_gradient_scale(inputs, verdict.exact) : 0.0;
      const double floor = accumulator_floor(plan.scenario.numerics.dtype);
      add("d_sink", by_head("d_sink", answer.d_sink), by_head("d_sink", verdict.exact.d_sink),
          by_head("d_sink", verdict.plain.d_sink), 2 * drift / floor + 1, unrounded, 1.0, {});
    }
  }
  for (const TensorGrade& tensor : grade.tensors) grade.passed = grade.passed && tensor.passed;
  return grade;
}

}  // namespace cpscope
