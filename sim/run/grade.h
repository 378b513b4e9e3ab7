#pragma once

#include "sim/plan/plan.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Where a tensor is furthest from the oracle.
struct WorstPlace {
  int32_t rank = 0;   // owner of the token
  int32_t step = 0;   // last step of the schedule: a final answer is what all steps made of it
  int64_t token = 0;  // packed padded id; 0 for tensors by head
  int32_t head = 0;
  double expected = 0.0;
  double seen = 0.0;
};

/// How one tensor compares with the oracle. Errors are |seen - exact|2 over |exact|2, for the
/// tensor and for its worst row.
struct TensorGrade {
  std::string name;
  bool passed = true;
  bool rows_passed = true;  // no single row is further off than the plain run's errors explain
  double max_abs = 0.0;
  double rel_l2 = 0.0;
  double worst_row_rel_l2 = 0.0;
  double worst_row_excess = 0.0;  // the worst row's error over what a row may err; fails above 1
  double budget = 0.0;     // for rel_l2: twice the error of the plain run, a few roundings of
                           // the accumulator, and what chance may add while rows are few
  double budget_l2 = 0.0;  // the same as a length, |seen - exact|2 that is allowed; of a sample:
                           // scaled up to the whole tensor
  int64_t nan = 0;
  WorstPlace worst;
  std::vector<float> row_budgets;  // [row] |seen - exact|2 that a row may err; empty unless asked
};

struct Grade {
  bool passed = true;
  std::vector<TensorGrade> tensors;
};

/// The pieces that a plan makes of a query's and of a key's work.
Hops count_hops(const Plan& plan);

/// How far chance may stray from its standard deviation: a normal one does once in 5e8 draws.
inline constexpr double kSigmas = 6.0;

/// Which part of a tensor's typical row counts as size of every row. A row's own size says little
/// about its error where sums cancel: in gradients, in scalars, in rows of few lanes.
double share_of_typical_row(std::string_view tensor, int64_t lanes);

struct GradeOptions {
  bool keeps_row_budgets = false;  // a float for every row of every tensor
};

/// Weighs an answer against the oracle's. A tensor passes when it has no NaN, is -inf exactly where
/// the oracle is, keeps its budget as a whole and in every row (a row may err six times as far as
/// the plain run's errors and one rounding of the row explain), and shape and size agree.
Grade grade_answer(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                   const Verdict& verdict, const GradeOptions& options = {});

/// The first tensor that failed: figures, place and both values. Empty when all passed.
std::string describe_first_failure(const Grade& grade);

/// Which rows were judged when the batch is too long to judge whole.
struct JudgedRows {
  std::vector<int64_t> query_tokens;
  std::vector<int64_t> key_tokens;  // empty when no key is seen by few enough queries
};

/// `count` query tokens spread over the batch, first and last valid ones of sequences among them,
/// and as many keys from the ends of sequences, which few queries see under a causal mask or a
/// window.
JudgedRows choose_rows(const BatchSlots& slots, int64_t count);

/// Weighs only the judged rows. There is no plain run of a part: the budget is a fixed number of
/// roundings of the dtype (4 for 16 bits, 64 for fp32, 1e-11 for fp64), over all judged rows of a
/// tensor.
Grade grade_rows(const Plan& plan, const Answer& answer, const Answer& exact,
                 const JudgedRows& rows);

}  // namespace cpscope
