#include "sim/run/dtype.h"
#include "sim/run/grade.h"
#include "sim/run/probe_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cpscope {
namespace {

double row_budget(Dtype dtype) {
  if (dtype == Dtype::fp64) return 1e-11;
  return (dtype == Dtype::fp32 ? 64 : 4) * unit_roundoff(dtype);
}

TensorGrade grade_tensor(const Plan& plan, const std::string& name, const Tensor& seen,
                         const Tensor& exact, const std::vector<int64_t>& tokens,
                         const std::vector<RunListId>& lists) {
  TensorGrade grade;
  grade.name = name;
  // lse is never rounded to the dtype.
  grade.budget = row_budget(name == "lse" && plan.scenario.numerics.dtype != Dtype::fp64
                                ? Dtype::fp32
                                : plan.scenario.numerics.dtype);
  const int64_t heads = exact.shape[1], lanes = exact.shape.size() > 2 ? exact.shape[2] : 1;
  double error_sum = 0, norm_sum = 0, worst = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()) * heads; ++i) {
    const double* expected = exact.values.data() + i * lanes;
    const double* got = seen.values.data() + (tokens[i / heads] * heads + i % heads) * lanes;
    double error = 0, norm = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      grade.nan += std::isnan(got[lane]) ? 1 : 0;
      if (got[lane] == expected[lane]) {
        norm += std::isfinite(expected[lane]) ? expected[lane] * expected[lane] : 0.0;
        continue;
      }
      const double difference = std::abs(got[lane] - expected[lane]);
      grade.max_abs = std::isnan(difference) ? difference : std::max(grade.max_abs, difference);
      error += std::isfinite(difference) ? difference * difference
                                         : std::numeric_limits<double>::infinity();
      norm += expected[lane] * expected[lane];
    }
    error_sum += error;
    norm_sum += norm;
    const double relative = error == 0 ? 0.0 : std::sqrt(error / norm);
    grade.worst_row_rel_l2 = std::max(grade.worst_row_rel_l2, relative);
    if (relative <= worst) continue;
    worst = relative;
    const int64_t token = tokens[i / heads];
    grade.worst = {owner_of(plan, lists, token),
                   plan.forward.num_steps - 1,
                   token,
                   static_cast<int32_t>(i % heads),
                   expected[0],
                   got[0]};
  }
  grade.rel_l2 = error_sum == 0 ? 0.0 : std::sqrt(error_sum / norm_sum);
  double whole_sum = 0;
  for (const double value : seen.values) whole_sum += std::isfinite(value) ? value * value : 0.0;
  grade.budget_l2 = grade.budget * std::sqrt(whole_sum);
  grade.passed = grade.nan == 0 && grade.rel_l2 <= grade.budget;
  return grade;
}

void add_valid_ends(const SequenceSlot& slot, bool is_query, std::vector<int64_t>& tokens) {
  const int64_t begin = is_query ? slot.q_begin : slot.kv_begin,
                valid = is_query ? slot.q_valid : slot.kv_valid;
  if (valid == 0) return;
  if (is_query) tokens.push_back(begin);
  tokens.push_back(begin + valid - 1);
}

}  // namespace

JudgedRows choose_rows(const BatchSlots& slots, int64_t count) {
  count = std::min(count, slots.tokens);
  JudgedRows rows;
  const size_t step = std::max<size_t>(
      1, slots.sequences.size() / static_cast<size_t>(std::max<int64_t>(1, count / 4)));
  for (size_t s = 0; s < slots.sequences.size(); s += step) {
    add_valid_ends(slots.sequences[s], true, rows.query_tokens);
    add_valid_ends(slots.sequences[s], false, rows.key_tokens);
  }
  // The golden ratio spreads the rest evenly without hitting chunk borders in step.
  constexpr double kGolden = 0.6180339887498949;
  for (int64_t i = 1; static_cast<int64_t>(rows.query_tokens.size()) < count && i <= count; ++i) {
    const double place = std::fmod(static_cast<double>(i) * kGolden, 1.0);
    rows.query_tokens.push_back(static_cast<int64_t>(place * static_cast<double>(slots.tokens)));
  }
  for (auto* tokens : {&rows.query_tokens, &rows.key_tokens}) {
    std::sort(tokens->begin(), tokens->end());
    tokens->erase(std::unique(tokens->begin(), tokens->end()), tokens->end());
  }
  return rows;
}

Grade grade_rows(const Plan& plan, const Answer& answer, const Answer& exact,
                 const JudgedRows& rows) {
  Grade grade;
  grade.tensors.push_back(
      grade_tensor(plan, "out", answer.out, exact.out, rows.query_tokens, plan.q_lists));
  grade.tensors.push_back(
      grade_tensor(plan, "lse", answer.lse, exact.lse, rows.query_tokens, plan.q_lists));
  if (plan.scenario.numerics.backward) {
    grade.tensors.push_back(
        grade_tensor(plan, "dq", answer.dq, exact.dq, rows.query_tokens, plan.q_lists));
    if (!rows.key_tokens.empty()) {
      grade.tensors.push_back(
          grade_tensor(plan, "dk", answer.dk, exact.dk, rows.key_tokens, plan.kv_lists));
      grade.tensors.push_back(
          grade_tensor(plan, "dv", answer.dv, exact.dv, rows.key_tokens, plan.kv_lists));
    }
  }
  for (const TensorGrade& tensor : grade.tensors) grade.passed = grade.passed && tensor.passed;
  return grade;
}

}  // namespace cpscope
