#pragma once

#include "sim/plan/plan_check.h"
#include "sim/run/foreign_record.h"
#include "sim/run/grade.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// How one input of a record stands to what the scenario generates. Padding is not compared.
struct InputNote {
  std::string name;
  int64_t values = 0;     // of valid tokens
  int64_t different = 0;  // of them
  int64_t token = -1;     // of the first that differs, packed padded id; -1 for sink
  int64_t head = -1;
};

struct ForeignGradeOptions {
  bool ignores_padding = false;  // what stands in padding rows is not graded
  int64_t sample_rows = 0;       // judge only about so many query rows; 0 = the whole batch
  bool keeps_exact = false;      // both answers, and what every row may err; not of a sample
  std::vector<WidenedBudget> budgets = {};  // of tensors that may err more than they have earned
  RunControl control = {};
};

/// What is right and wrong with tensors that somebody else computed.
struct ForeignGrade {
  Grade grade;                       // of the tensors that are there
  std::vector<std::string> missing;  // tensors that the scenario asks for and the record lacks
  std::vector<std::string> unasked;  // answers of a backward or a sink that the scenario has not
  std::vector<InputNote> inputs;     // that the record holds
  bool uses_own_inputs = false;      // some differ: the record's are the truth
  std::vector<std::string> hints;    // what the errors look like
  JudgedRows judged;                 // empty lists when the whole batch was judged
  Answer seen, exact;                // empty unless asked for
};

/// Judges a record against the oracle. Inputs of the record that differ from the scenario's are
/// what the oracle then answers. Errors: no tensor that can be graded, an input that holds NaN,
/// infinity or values that the scenario's dtype cannot hold (bad_input); cancelled (unavailable).
Result<ForeignGrade> grade_foreign(const Toolbox& toolbox, const Plan& plan,
                                   const ForeignRecord& record, const ForeignGradeOptions& options);

}  // namespace cpscope
