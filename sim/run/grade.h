#pragma once

#include "sim/plan/plan.h"
#include "sim/run/judge.h"
#include "sim/run/tensor_grade.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cpscope {

/// What a grade comes to.
enum class Judgement { pass, fail, blind };
std::string_view to_name(Judgement value);

struct Grade {
  bool passed = true;  // every judged tensor passed, at least one was, and nothing is blind
  std::vector<TensorGrade> tensors;
  std::vector<std::string> blind;  // why it says nothing, one sentence each

  /// A failure is one whatever could not be seen beside it.
  Judgement judgement() const;
  /// Sets `passed` from tensors and `blind`.
  void conclude();
  /// Null where it has none of this name.
  TensorGrade* find(std::string_view name);
};

/// PASS, FAIL or BLIND.
std::string describe_judgement(const Grade& grade);
/// Why a grade says nothing, or less than it seems; empty when it says what it seems.
std::string describe_blindness(const Grade& grade);

/// How many rows of each tensor were judged; empty when all of all were.
std::string describe_coverage(const Grade& grade);

/// Why a tensor has failed, in a few words.
std::string describe_failure(const TensorGrade& tensor);

/// The pieces that a plan makes of a query's and of a key's work.
Hops count_hops(const Plan& plan);

/// How far chance may stray from its standard deviation: a normal one does once in 5e8 draws.
inline constexpr double kSigmas = 6.0;

/// Which part of a tensor's typical row counts as size of every row. A row's own size says little
/// about its error where sums cancel: in gradients, in scalars, in rows of few lanes.
double share_of_typical_row(std::string_view tensor, int64_t lanes);

/// The caller's own budget for the rel_l2 of a tensor. It counts where it is wider than the earned
/// one; a row may then err three times as much of itself.
struct WidenedBudget {
  std::string tensor;
  double rel_l2 = 0.0;
};

struct GradeOptions {
  bool keeps_row_budgets = false;  // a float for every row of every tensor
  bool leaves_out_absent = false;  // tensors that the answer lacks are no failure
  std::vector<WidenedBudget> budgets = {};
};

/// Weighs an answer against the oracle's. A tensor passes when it has no NaN, is -inf exactly where
/// the oracle is, keeps its budget as a whole, in every head, rank and sequence, and in every row
/// (a row may err six times as far as the plain run's errors and one rounding of the row explain),
/// and shape and size agree.
Grade grade_answer(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                   const Verdict& verdict, const GradeOptions& options = {});

/// The same where only some rows were judged: `verdict` holds those of `rows`, `answer` all.
Grade grade_judged_rows(const Plan& plan, const RunInputs& inputs, const Answer& answer,
                        const Verdict& verdict, const JudgedRows& rows,
                        const GradeOptions& options = {});

/// The first tensor that failed: figures, place and both values. Empty when all passed.
std::string describe_first_failure(const Grade& grade);

}  // namespace cpscope
