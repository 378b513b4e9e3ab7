#pragma once

#include "sim/plan/plan.h"
#include "sim/run/grade/grade.h"
#include "sim/run/judge.h"
#include "sim/run/toolbox.h"

#include <optional>
#include <vector>

namespace cpscope {

struct CauseSearch {
  const Answer& seen;                // of all rows
  const Answer& exact;               // of the judged rows
  const JudgedRows* rows = nullptr;  // the judged rows; null: all
  std::vector<WidenedBudget> budgets = {};
  RunControl control = {};
};

/// Names the mistakes that explain the failed tensors of a grade, whose row budgets must be there,
/// and writes them into it, or what the wrong rows have in common. A sample of the wrong rows of
/// each tensor, and some right ones, is computed by the oracle under each suspected mistake. A
/// mistake is named if it gives at least 90 % of the wrong rows within their budgets and no other
/// one explains more tensors or contradicts fewer right rows. Errors: cancelled.
std::optional<Error> find_causes(const Toolbox& toolbox, const Plan& plan, const RunInputs& inputs,
                                 const CauseSearch& search, Grade& grade);

}  // namespace cpscope
