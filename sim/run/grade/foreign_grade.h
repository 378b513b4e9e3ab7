#pragma once

#include "sim/plan/check/plan_check.h"
#include "sim/run/grade/grade.h"
#include "sim/run/record/foreign_record.h"
#include "sim/run/toolbox.h"

#include <cstdint>
#include <string>
#include <vector>

namespace cpscope {

/// How one input of a record compares with the generated one. Padding is not compared.
struct InputNote {
  std::string name;
  int64_t values = 0;     // of valid tokens
  int64_t different = 0;  // values that differ
  int64_t token = -1;     // of the first difference, packed padded id; -1 for sink
  int64_t head = -1;
};

struct ForeignGradeOptions {
  bool ignores_padding = false;  // padding rows are not graded
  int64_t sample_rows = 0;       // judge only about this many query rows; 0 = the whole batch
  bool keeps_exact = false;      // both answers and every row's budget; of a sample `exact`
                                 // holds the judged rows
  std::vector<WidenedBudget> budgets = {};  // wider budgets that the caller allows
  RunControl control = {};
};

/// The grade of tensors that other software computed.
struct ForeignGrade {
  Grade grade;                       // of the tensors present
  std::vector<std::string> missing;  // tensors that the scenario requires and the record lacks
  std::vector<std::string> unasked;  // answers of a backward or a sink that the scenario lacks
  std::vector<InputNote> inputs;     // inputs in the record
  bool uses_own_inputs = false;      // some differ: the record's inputs are used
  std::vector<std::string> hints;    // known mistakes that the errors look like
  JudgedRows judged;                 // empty lists when the whole batch was judged
  Answer seen, exact;                // empty unless requested
};

/// Judges a record against the oracle, and takes the values of its tensors. If inputs of the record
/// differ from the scenario's, the oracle computes from the record's inputs. Errors: no tensor that
/// can be graded, an input that holds NaN, infinity or values that the scenario's dtype cannot hold
/// (bad_input); cancelled (unavailable).
Result<ForeignGrade> grade_foreign(const Toolbox& toolbox, const Plan& plan, ForeignRecord& record,
                                   const ForeignGradeOptions& options);

}  // namespace cpscope
