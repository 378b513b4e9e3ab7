#include "sim/run/grade.h"

#include "sim/run/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace cpscope {
namespace {

/// Rows of fewer lanes cancel to almost nothing now and then, as scalars do.
constexpr int64_t kLanesThatNeverCancel = 8;

/// Relative root mean square error of one rounding to nearest: half a unit in the last place,
/// uniformly distributed (1/sqrt(3)), over a significand between 1 and 2 (1/sqrt(2)).
double typical_rounding(Dtype dtype) { return unit_roundoff(dtype) / std::sqrt(6.0); }

/// An error made of `draws` equal independent ones strays from its expectation s by t*s,
/// t = kSigmas/sqrt(2*draws). The answer may then err (1 + t)*s while twice the plain run's error
/// is 2*(1 - t)*s. Returns what is missing between them, in units of s: nothing from 162 draws on.
double missing_statistics(double draws) {
  const double stray = kSigmas / std::sqrt(2 * std::max(1.0, draws));
  return std::max(0.0, 1 + stray - 2 * std::max(0.0, 1 - stray));
}

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
  std::vector<double> carried;  // [row] expected error that roundings upstream carry in, or empty
  // Errors that are independent of each other, at most: rows may be many that share few of them.
  double sources = std::numeric_limits<double>::infinity();
};

class Grader {
 public:
  Grader(const Plan& plan, const GradeOptions& options)
      : plan_(plan), options_(options), floor_(accumulator_floor(plan.scenario.numerics.dtype)) {}

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
    const double size = std::sqrt(static_cast<double>(sides.exact.size()));
    const double allowed = 2 * sums.plain_error + floor_ * (sides.magnitude * size + sums.norm) +
                           missing_statistics(sums.draws) * sums.expected_error;
    grade.nan = sums.nan;
    grade.rel_l2 = ratio(sums.error, sums.norm);
    grade.budget = ratio(allowed, sums.norm);
    grade.budget_l2 = allowed;
    // A budget that is no number, or infinite, would forgive everything.
    grade.passed = sums.nan == 0 && std::isfinite(allowed) && sums.error <= allowed;
    find_worst_row(sides, sums, rows, heads, lanes, grade);
    return grade;
  }

 private:
  struct Sums {
    double error = 0, plain_error = 0, norm = 0;  // L2 over the tensor
    double expected_error = 0;                    // of one rounding of all that is stored, L2
    double draws = 0;  // rows that share the expected error, were it spread evenly over them
    int64_t nan = 0;
  };

  static double ratio(double error, double norm) {
    if (norm > 0) return error / norm;
    return error == 0 ? 0.0 : std::numeric_limits<double>::infinity();
  }

  /// What rounding a row once, and once what it depends on, is expected to cost: the scale
  /// of its error where the plain run was lucky. Lanes of a row err together, so a row is one draw.
  static double expected_error(const Compared& sides, int64_t row, double norm) {
    if (norm == 0) return 0.0;  // nothing depends on what nobody sees
    const double carried = sides.carried.empty() ? 0.0 : sides.carried[row];
    return std::hypot(typical_rounding(sides.rounded_to) * norm, carried);
  }

  static Sums sum_up(const Compared& sides, int64_t rows, int64_t lanes) {
    Sums sums;
    double expected = 0, fourth_powers = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const double *seen = sides.seen.values.data() + row * lanes,
                   *exact = sides.exact.values.data() + row * lanes;
      const double error = row_error(seen, exact, lanes), norm = row_norm(exact, lanes);
      const double plain_error = row_error(sides.plain.values.data() + row * lanes, exact, lanes);
      sums.error += error * error;
      sums.norm += norm * norm;
      const double square = std::pow(expected_error(sides, row, norm), 2);
      expected += square;
      fourth_powers += square * square;
      sums.plain_error += std::isfinite(plain_error) ? plain_error * plain_error : 0.0;
      sums.nan += std::count_if(seen, seen + lanes, [](double value) { return std::isnan(value); });
    }
    sums.error = std::sqrt(sums.error);
    sums.norm = std::sqrt(sums.norm);
    sums.plain_error = std::sqrt(sums.plain_error);
    sums.expected_error = std::sqrt(expected);
    sums.draws = fourth_powers > 0 ? expected * expected / fourth_powers : 0.0;
    sums.draws = std::min(sums.draws, sides.sources);
    return sums;
  }

  void find_worst_row(const Compared& sides, const Sums& sums, int64_t rows, int64_t heads,
                      int64_t lanes, TensorGrade& grade) const {
    const double plain_rel = sums.norm > 0 ? sums.plain_error / sums.norm : 0.0;
    const double rms_row = rows > 0 ? sums.norm / std::sqrt(static_cast<double>(rows)) : 0.0;
    const double width = std::sqrt(static_cast<double>(lanes));
    double worst_excess = -1;
    for (int64_t row = 0; row < rows; ++row) {
      const double *seen = sides.seen.values.data() + row * lanes,
                   *exact = sides.exact.values.data() + row * lanes;
      const double error = row_error(seen, exact, lanes), norm = row_norm(exact, lanes);
      const double plain_error = row_error(sides.plain.values.data() + row * lanes, exact, lanes);
      const double explained = (std::isfinite(plain_error) ? plain_error : 0.0) +
                               plain_rel * (norm + sides.row_share * rms_row) +
                               expected_error(sides, row, norm) +
                               floor_ * (sides.magnitude * width + norm);
      if (options_.keeps_row_budgets)
        grade.row_budgets.push_back(static_cast<float>(kSigmas * explained));
      // A row that should be zero has no relative error; its absolute one is in max_abs.
      if (error > 0 && (norm > 0 || !std::isfinite(error))) {
        grade.worst_row_rel_l2 = std::max(grade.worst_row_rel_l2, ratio(error, norm));
      }
      const double excess = explained > 0 && std::isfinite(explained)
                                ? error / (kSigmas * explained)
                                : (error > 0 ? std::numeric_limits<double>::infinity() : 0.0);
      if (excess > 1) grade.passed = grade.rows_passed = false;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const double difference = std::abs(seen[lane] - exact[lane]);
        if (seen[lane] != exact[lane] && !(difference <= grade.max_abs)) grade.max_abs = difference;
      }
      if (excess <= worst_excess && !std::isnan(excess)) continue;
      grade.worst_row_excess = worst_excess = excess;
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
  const GradeOptions options_;
  double floor_;
};

Tensor by_head(const char* name, const std::vector<double>& values) {
  return {name, {1, static_cast<int64_t>(values.size())}, Dtype::fp64, values};
}

/// [row of out] Expected error of delta = rowsum(d_out * out): what typical roundings of out, and
/// the errors that the plain run's out has, make of it. The gradients of q, k and the sink are
/// differences with delta in them, so that this error does not shrink where they cancel.
std::vector<double> delta_errors(const RunInputs& inputs, const Verdict& verdict, Dtype dtype) {
  const Tensor &out = verdict.exact.out, &plain = verdict.plain.out;
  const int64_t lanes = out.shape[2];
  std::vector<double> errors(verdict.exact.lse.values.size(), 0.0);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!std::isfinite(verdict.exact.lse.values[row])) continue;  // d_out may be poison there
    double sum = 0;
    for (size_t i = row * lanes; i < (row + 1) * lanes; ++i) {
      const double rounding = typical_rounding(dtype) * out.values[i];
      const double error = plain.values[i] - out.values[i];
      sum += std::pow(inputs.d_out.values[i] * std::hypot(rounding, error), 2);
    }
    errors[row] = std::sqrt(sum);
  }
  return errors;
}

/// [row of out] Expected error of the share p * d_out that a query adds to dv where p is 1: p is
/// rounded, and so is the sum of shares on its way. It does not shrink where shares cancel.
std::vector<double> share_errors(const RunInputs& inputs, const Answer& exact, Dtype dtype) {
  const int64_t lanes = exact.out.shape[2];
  std::vector<double> errors(exact.lse.values.size(), 0.0);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!std::isfinite(exact.lse.values[row])) continue;  // d_out may be poison there
    errors[row] = std::sqrt(2.0) * typical_rounding(dtype) *
                  row_norm(inputs.d_out.values.data() + row * static_cast<size_t>(lanes), lanes);
  }
  return errors;
}

/// [row of dq] delta's error times the weighted mean of the keys, which is no longer than a key.
std::vector<double> carry_to_queries(std::vector<double> errors, double key_length) {
  for (double& error : errors) error *= key_length;
  return errors;
}

/// [row of dv] Root of the sum of squares of the weights with which the queries see a key, as dv
/// shows it: that sum times d_out, less where shares cancel.
std::vector<double> seen_weights(const RunInputs& inputs, const Answer& exact) {
  const int64_t lanes = exact.dv.shape[2];
  const double row = root_mean_square(inputs.d_out.values) * std::sqrt(static_cast<double>(lanes));
  std::vector<double> weights(static_cast<size_t>(exact.dv.size() / lanes), 0.0);
  for (size_t key = 0; row > 0 && key < weights.size(); ++key)
    weights[key] = row_norm(exact.dv.values.data() + key * static_cast<size_t>(lanes), lanes) / row;
  return weights;
}

/// [row of dk, dv] The errors of all queries of a sequence, spread over its keys by weights whose
/// squares add up to at most 1 a query: evenly, and beside that as the keys are seen.
std::vector<double> carry_to_keys(const std::vector<double>& errors,
                                  const std::vector<double>& weights, const BatchSlots& slots,
                                  const Attention& attention, double query_length) {
  const int64_t kv_heads = attention.kv_heads, group = attention.heads / kv_heads;
  std::vector<double> carried(static_cast<size_t>(slots.kv_tokens * kv_heads), 0.0);
  for (const SequenceSlot& slot : slots.sequences) {
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      double sum = 0;
      int64_t count = 0;
      for (int64_t query = slot.q_begin; query < slot.q_begin + slot.q_valid; ++query) {
        for (int64_t member = 0; member < group; ++member) {
          const double error = errors[query * attention.heads + kv_head * group + member];
          sum += error * error;
          count += error > 0 ? 1 : 0;
        }
      }
      if (count == 0) continue;
      const double share =
          std::sqrt(sum / std::max(1.0, static_cast<double>(slot.kv_valid))) * query_length;
      const double typical = std::sqrt(sum / static_cast<double>(count)) * query_length;
      for (int64_t key = slot.kv_begin; key < slot.kv_begin + slot.kv_valid; ++key) {
        const int64_t row = key * kv_heads + kv_head;
        carried[row] = std::hypot(share, typical * weights[row]);
      }
    }
  }
  return carried;
}

/// [row of dv] What share_errors make of it where its lanes are so few that they cancel now and
/// then; nothing where they never do.
std::vector<double> carry_shares(const RunInputs& inputs, const Answer& exact,
                                 const Attention& attention, const std::vector<double>& weights,
                                 Dtype dtype) {
  if (attention.head_dim_v >= kLanesThatNeverCancel) return {};
  return carry_to_keys(share_errors(inputs, exact, dtype), weights, inputs.slots, attention, 1.0);
}

/// [head] The sink's gradient is the sum of its weight times delta over all rows.
std::vector<double> carry_to_sinks(const std::vector<double>& errors, const RunInputs& inputs,
                                   const Answer& exact) {
  const size_t heads = inputs.sink.size();
  std::vector<double> carried(heads, 0.0);
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!std::isfinite(exact.lse.values[row])) continue;
    const double weight = std::exp(inputs.sink[row % heads] - exact.lse.values[row]);
    carried[row % heads] += std::pow(weight * errors[row], 2);
  }
  for (double& value : carried) value = std::sqrt(value);
  return carried;
}

}  // namespace

double share_of_typical_row(std::string_view tensor, int64_t lanes) {
  return tensor == "out" && lanes >= kLanesThatNeverCancel ? 0.1 : 1.0;
}

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
                   const Verdict& verdict, const GradeOptions& options) {
  const Attention& attention = plan.scenario.attention;
  const Owners owners(plan);
  const Grader grader(plan, options);
  const double v = root_mean_square(inputs.v.values), k = root_mean_square(inputs.k.values),
               q = root_mean_square(inputs.q.values);
  const double logit = attention.effective_scale() * q * k * attention.head_dim_qk;
  Grade grade;
  const auto add = [&](const char* name, const Tensor& seen, const Tensor& exact,
                       const Tensor& plain, double magnitude, Dtype rounded_to, double row_share,
                       const std::vector<int32_t>& owner, std::vector<double> carried = {},
                       double sources = std::numeric_limits<double>::infinity()) {
    grade.tensors.push_back(grader.grade({name, seen, exact, plain, magnitude, rounded_to,
                                          row_share, owner, std::move(carried), sources}));
  };
  const Dtype dtype = plan.scenario.numerics.dtype;
  // Statistics are never rounded to the dtype.
  const Dtype unrounded = dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32;
  // RoPE's results are rounded to the dtype; which way a value falls depends on whose sine it was.
  const double turned = attention.rope_theta > 0
                            ? typical_rounding(dtype) * attention.effective_scale() * q * k *
                                  std::sqrt(2.0 * attention.head_dim_qk)
                            : 0.0;
  const double out_share = share_of_typical_row("out", attention.head_dim_v);
  add("out", answer.out, verdict.exact.out, verdict.plain.out, v, dtype, out_share, owners.q);
  add("lse", answer.lse, verdict.exact.lse, verdict.plain.lse, 1 + logit, unrounded, 1.0, owners.q,
      std::vector<double>(verdict.exact.lse.values.size(), turned));
  add("max_logit", by_head("max_logit", answer.max_logit),
      by_head("max_logit", verdict.exact.max_logit), by_head("max_logit", verdict.plain.max_logit),
      1 + logit, unrounded, 1.0, {}, std::vector<double>(verdict.exact.max_logit.size(), turned));
  if (plan.scenario.numerics.backward) {
    const double d_out = root_mean_square(inputs.d_out.values);
    const double slope = d_out * v * std::sqrt(static_cast<double>(attention.head_dim_v)) *
                         attention.effective_scale();
    const double length =
        attention.effective_scale() * std::sqrt(static_cast<double>(attention.head_dim_qk));
    const std::vector<double> errors = delta_errors(inputs, verdict, dtype);
    add("dq", answer.dq, verdict.exact.dq, verdict.plain.dq, slope * k, dtype, 1.0, owners.q,
        carry_to_queries(errors, length * k));
    // A query's delta errs the same way in the rows of all keys that it sees.
    const std::vector<double> weights = seen_weights(inputs, verdict.exact);
    const auto deltas = static_cast<double>(
        std::count_if(errors.begin(), errors.end(), [](double error) { return error > 0; }));
    add("dk", answer.dk, verdict.exact.dk, verdict.plain.dk, slope * q, dtype, 1.0, owners.kv,
        carry_to_keys(errors, weights, inputs.slots, attention, length * q), deltas);
    add("dv", answer.dv, verdict.exact.dv, verdict.plain.dv, d_out, dtype, 1.0, owners.kv,
        carry_shares(inputs, verdict.exact, attention, weights, dtype));
    if (!verdict.exact.d_sink.empty()) {
      add("d_sink", by_head("d_sink", answer.d_sink), by_head("d_sink", verdict.exact.d_sink),
          by_head("d_sink", verdict.plain.d_sink), 1.0, unrounded, 1.0, {},
          carry_to_sinks(errors, inputs, verdict.exact));
    }
  }
  for (const TensorGrade& tensor : grade.tensors) grade.passed = grade.passed && tensor.passed;
  return grade;
}

std::string describe_first_failure(const Grade& grade) {
  for (const TensorGrade& tensor : grade.tensors) {
    if (tensor.passed) continue;
    return fmt::format(
        "{}: rel_l2 {:.3g}, budget {:.3g}, {} NaN; worst at rank {}, token {}, head {}: expected "
        "{:.9g}, seen {:.9g}",
        tensor.name, tensor.rel_l2, tensor.budget, tensor.nan, tensor.worst.rank,
        tensor.worst.token, tensor.worst.head, tensor.worst.expected, tensor.worst.seen);
  }
  return "";
}

}  // namespace cpscope
