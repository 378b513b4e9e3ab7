#pragma once

#include "sim/plan/plan.h"
#include "sim/run/grade/cause.h"
#include "sim/run/grade/tensor_grade.h"
#include "sim/run/judge.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// Result of a grade.
enum class Judgement { pass, fail, blind };
std::string_view to_name(Judgement value);

struct Grade {
  bool passed = true;  // every judged tensor passed, at least one was judged, and none is blind
  std::vector<TensorGrade> tensors;
  std::vector<std::string> blind;   // why the grade proves nothing, one sentence each
  std::vector<Cause> causes;        // known mistakes that explain a failure, the widest first
  std::vector<std::string> common;  // what wrong rows without a known cause have in common

  /// A failure counts even if other tensors could not be graded.
  Judgement judgement() const;
  /// Sets `passed` from tensors and `blind`.
  void conclude();
  /// Null if there is no tensor of this name.
  TensorGrade* find(std::string_view name);
};

/// PASS, FAIL or BLIND.
std::string describe_judgement(const Grade& grade);
/// Why a grade proves nothing, or less than it seems to; else empty.
std::string describe_blindness(const Grade& grade);

/// Number of judged rows of each tensor; empty when all rows of all tensors were judged.
std::string describe_coverage(const Grade& grade);

/// Why a tensor has failed, in a few words.
std::string describe_failure(const TensorGrade& tensor);

/// Number of pieces that a plan makes of the work of a query and of a key.
Hops count_hops(const Plan& plan);

/// Allowed random deviation in standard deviations: a normal variable exceeds it once in 5e8 draws.
inline constexpr double kSigmas = 6.0;

/// Fraction of a tensor's typical row that counts in the size of every row. A row's own size says
/// little about its error where sums cancel: in gradients, in scalars, in rows with few elements.
double share_of_typical_row(std::string_view tensor, int64_t lanes);

/// The caller's own budget for the rel_l2 of a tensor. It is used if it is wider than the earned
/// one; the allowed relative error of a row is then three times as large.
struct WidenedBudget {
  std::string tensor;
  double rel_l2 = 0.0;
};

struct GradeOptions {
  bool keeps_row_budgets = false;  // stores a float for every row of every tensor
  bool leaves_out_absent = false;  // tensors that the answer lacks are not failures
  std::vector<WidenedBudget> budgets = {};
  bool has_unknown_scales = false;  // dtype fp8: what was quantised with which scales is a guess
};

/// Grades an answer against the oracle's. A tensor passes when it has no NaN, is -inf exactly where
/// the oracle is, is within its budget as a whole, in every head, rank and sequence, and in every
/// row (the error of a row may be six times what the plain run's errors and one rounding of the row
/// explain), and when shape and size agree.
Grade grade_answer(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                   const Verdict& verdict, const GradeOptions& options = {});

/// The same where only some rows were judged: `verdict` holds those of `rows`, `answer` all.
Grade grade_judged_rows(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                        const Verdict& verdict, const JudgedRows& rows,
                        const GradeOptions& options = {});

/// The first tensor that failed: figures, place and both values. Empty when all passed.
std::string describe_first_failure(const Grade& grade);

}  // namespace cpscope
